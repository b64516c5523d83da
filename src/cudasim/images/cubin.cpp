// Cubins: ELF files with a section of code for each kernel, a section of attributes beside it, and symbols for kernels and
// variables. NVIDIA documents the commands that print these, not the bytes: what is not as expected is left unknown.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "cudasim/images/image.hpp"

namespace cudasim::cubin {
namespace {

struct Header {
  unsigned char ident[16];
  std::uint16_t type, machine;
  std::uint32_t version;
  std::uint64_t entry, programs, sections;
  std::uint32_t flags;
  std::uint16_t size, program_size, program_count, section_size, section_count, name_section;
};
struct Section {
  std::uint32_t name, type;
  std::uint64_t flags, address, offset, size;
  std::uint32_t link, info;
  std::uint64_t alignment, entry_size;
};
struct Symbol {
  std::uint32_t name;
  unsigned char info, other;
  std::uint16_t section;
  std::uint64_t value, size;
};
static_assert(sizeof(Header) == 64 && sizeof(Section) == 64 && sizeof(Symbol) == 24);

constexpr std::uint16_t kCudaMachine = 190;
constexpr std::uint32_t kSymbolTable = 2, kNoBits = 8;
constexpr unsigned char kObject = 1, kFunction = 2;             // kinds of symbols
constexpr unsigned char kManagedMark = 0x4, kEntryMark = 0x10;  // of a symbol
constexpr unsigned char kNewFlags = 8;                          // the version of the ABI that moved the architecture

// Attributes of a kernel: a format, a name, and a value, or a size and then a value.
constexpr unsigned char kSized = 4;
constexpr unsigned char kMaxThreads = 0x05, kRequiredThreads = 0x10, kFrameSize = 0x11, kParam = 0x17;

[[noreturn]] void refuse() { throw BadImage{cu::Result::kInvalidImage}; }

class Cubin {
 public:
  explicit Cubin(const unsigned char* image) : image_(image) {
    std::memcpy(&header_, image, sizeof header_);
    const bool known = header_.ident[4] == 2 && header_.ident[5] == 1 && header_.machine == kCudaMachine;
    if (!known || header_.section_size != sizeof(Section) || header_.section_count == 0) refuse();
    if (header_.name_section >= header_.section_count) refuse();
    for (std::size_t i = 0; i < header_.section_count; ++i) {
      Section section;
      std::memcpy(&section, image + header_.sections + i * sizeof section, sizeof section);
      sections_.push_back(section);
    }
  }

  int architecture() const {
    return static_cast<int>(header_.ident[8] >= kNewFlags ? header_.flags >> 8 & 0xff : header_.flags & 0xff);
  }

  Image read() {
    found_.architecture = architecture();
    for (const Section& section : sections_) {
      if (section.type == kSymbolTable) read_symbols(section);
      if (name_of(section) == ".nv.constant3") found_.constant = static_cast<int>(section.size);
    }
    for (const Section& section : sections_) read_section(section);
    for (KernelInfo& kernel : found_.kernels) finish(kernel);
    return std::move(found_);
  }

 private:
  std::string_view text_at(const Section& table, std::uint32_t offset) const {
    if (offset >= table.size) refuse();
    const char* text = reinterpret_cast<const char*>(image_ + table.offset + offset);
    return {text, strnlen(text, table.size - offset)};
  }
  std::string_view name_of(const Section& section) const {
    return text_at(sections_[header_.name_section], section.name);
  }

  void read_symbols(const Section& table) {
    if (table.link >= sections_.size() || table.entry_size != sizeof(Symbol)) refuse();
    for (std::uint64_t at = 0; at + sizeof(Symbol) <= table.size; at += sizeof(Symbol)) {
      Symbol symbol;
      std::memcpy(&symbol, image_ + table.offset + at, sizeof symbol);
      if (symbol.section == 0 || symbol.section >= sections_.size()) continue;
      const std::string_view name = text_at(sections_[table.link], symbol.name);
      const unsigned char kind = symbol.info & 0xf;
      if (kind == kFunction && (symbol.other & kEntryMark) != 0) {
        by_symbol_[at / sizeof(Symbol)] = found_.kernels.size();
        add_kernel(name, sections_[symbol.section]);
      }
      if (kind == kObject) add_variable(name, symbol, sections_[symbol.section]);
    }
  }

  void add_kernel(std::string_view name, const Section& code) {
    KernelInfo kernel;
    kernel.name = name;
    kernel.registers = static_cast<int>(code.info >> 24);
    kernel.binary_version = kernel.ptx_version = architecture();
    kernel.params.emplace();
    by_name_[kernel.name] = found_.kernels.size();
    found_.kernels.push_back(std::move(kernel));
  }

  void add_variable(std::string_view name, const Symbol& symbol, const Section& section) {
    const std::string_view where = name_of(section);
    const bool constant = where == ".nv.constant3";
    if (!constant && where != ".nv.global" && where != ".nv.global.init") return;
    VariableInfo variable;
    variable.name = name;
    variable.size = symbol.size;
    variable.kind = (symbol.other & kManagedMark) != 0 ? VariableKind::kManaged
                    : constant                         ? VariableKind::kConstant
                                                       : VariableKind::kGlobal;
    if (section.type != kNoBits) {
      if (symbol.value > section.size || symbol.size > section.size - symbol.value) refuse();
      variable.initial.assign(reinterpret_cast<const char*>(image_ + section.offset + symbol.value), symbol.size);
    }
    found_.variables.push_back(std::move(variable));
  }

  KernelInfo* kernel_of(std::string_view section, std::string_view prefix) {
    if (!section.starts_with(prefix)) return nullptr;
    const auto it = by_name_.find(std::string(section.substr(prefix.size())));
    return it == by_name_.end() ? nullptr : &found_.kernels[it->second];
  }

  void read_section(const Section& section) {
    const std::string_view name = name_of(section);
    if (KernelInfo* kernel = kernel_of(name, ".nv.shared.")) kernel->shared = static_cast<int>(section.size);
    if (name == ".nv.info") {
      each_attribute(section, [&](unsigned char what, const unsigned char* value, std::uint16_t size) {
        read_shared_attribute(what, value, size);
      });
    }
    if (KernelInfo* kernel = kernel_of(name, ".nv.info.")) {
      each_attribute(section, [&](unsigned char what, const unsigned char* value, std::uint16_t size) {
        read_attribute(what, value, size, *kernel);
      });
    }
  }

  template <typename Function>
  void each_attribute(const Section& section, const Function& function) const {
    const unsigned char* at = image_ + section.offset;
    for (std::uint64_t left = section.size; left >= 4;) {
      std::uint16_t size = 0;
      if (at[0] == kSized) std::memcpy(&size, at + 2, sizeof size);
      if (size > left - 4) refuse();
      if (at[0] == kSized) function(at[1], at + 4, size);
      at += 4 + size;
      left -= 4 + size;
    }
  }

  // Of the section about all kernels, which names each by its symbol.
  void read_shared_attribute(unsigned char what, const unsigned char* value, std::uint16_t size) {
    if (what != kFrameSize || size != 8) return;
    const auto it = by_symbol_.find(word_at(value, 0));
    if (it != by_symbol_.end()) found_.kernels[it->second].local = static_cast<int>(word_at(value, 1));
  }

  static std::uint32_t word_at(const unsigned char* value, std::size_t i) {
    std::uint32_t found;
    std::memcpy(&found, value + 4 * i, sizeof found);
    return found;
  }

  static void read_attribute(unsigned char what, const unsigned char* value, std::uint16_t size, KernelInfo& kernel) {
    const auto word = [&](std::size_t i) { return word_at(value, i); };
    if ((what == kMaxThreads || what == kRequiredThreads) && size == 12) {
      kernel.max_threads = static_cast<int>(word(0) * std::max(word(1), 1U) * std::max(word(2), 1U));
    }
    if (what != kParam || !kernel.params) return;
    const std::uint32_t ordinal = size == 12 ? word(1) & 0xffff : kMostParams;
    if (ordinal >= kMostParams) return kernel.params.reset();
    if (kernel.params->size() <= ordinal) kernel.params->resize(ordinal + 1);
    (*kernel.params)[ordinal] = {word(1) >> 16, word(2) >> 18};
  }

  // Every parameter must have been described, and none lie on another: otherwise nothing is known of them.
  static void finish(KernelInfo& kernel) {
    if (!kernel.params) return;
    std::uint32_t end = 0;
    for (const KernelParam& param : *kernel.params) {
      if (param.size == 0 || param.offset < end) return kernel.params.reset();
      end = param.offset + param.size;
    }
  }

  static constexpr std::uint32_t kMostParams = 4096;
  const unsigned char* image_;
  Header header_;
  std::vector<Section> sections_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::unordered_map<std::uint64_t, std::size_t> by_symbol_;
  Image found_;
};

}  // namespace

Image read(const unsigned char* image) { return Cubin(image).read(); }

int architecture(const unsigned char* image) { return Cubin(image).architecture(); }

}  // namespace cudasim::cubin
