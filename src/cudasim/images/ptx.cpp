// PTX: text that declares kernels with .entry and variables of a module with .global and .const, outside of braces. Reads
// declarations only; what stands in a kernel is skipped.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "cudasim/images/image.hpp"

namespace cudasim::ptx {
namespace {

[[noreturn]] void refuse() { throw BadImage{cu::Result::kInvalidPtx}; }

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.' || c == '@';
}

std::uint64_t number_of(std::string_view text) {
  std::uint64_t value = 0;
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  const bool whole = end == text.data() + text.size() || *end == 'U';
  if (error != std::errc{} || !whole) refuse();
  return value;
}

constexpr std::uint64_t kLargestType = 16;  // bytes: .b128

// Bytes of a type: .u32 has 4; 0 for what is no type.
std::uint64_t size_of_type(std::string_view type) {
  if (type.starts_with(".pred")) return 1;
  const std::size_t digits = type.find_first_of("0123456789");
  if (digits != 2 || std::string_view("usfb").find(type[1]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(digits);
  if (!std::all_of(bits.begin(), bits.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) return 0;
  const std::uint64_t size = number_of(bits) / 8;
  if (size > kLargestType) refuse();
  return size;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Image read() {
    for (std::string_view word = next(); !word.empty(); word = next()) {
      if (word == ".version") {
        next();
      } else if (word == ".target") {
        read_target();
      } else if (word == ".entry") {
        read_kernel();
      } else if (word == ".global" || word == ".const") {
        read_variable(word == ".const" ? VariableKind::kConstant : VariableKind::kGlobal);
      } else if (word == ".extern") {  // of another module
        while (word != ";" && !word.empty()) word = next();
      } else if (word == "{") {
        skip_block();
      }
    }
    if (found_.architecture == 0) refuse();  // .target is not optional
    for (KernelInfo& kernel : found_.kernels) kernel.binary_version = kernel.ptx_version = found_.architecture;
    return std::move(found_);
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size()) {
      const std::string_view rest = text_.substr(at_);
      if (std::isspace(static_cast<unsigned char>(rest.front())) != 0) {
        ++at_;
      } else if (rest.starts_with("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (rest.starts_with("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        return;
      }
    }
  }

  // A name, a directive, a number, or one other character; empty at the end.
  std::string_view next() {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == begin && at_ < text_.size()) ++at_;
    if (begin < text_.size() && text_[begin] == '"') {  // a text: .file, .section
      at_ = std::min(text_.find('"', at_), text_.size() - 1) + 1;
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string_view peek() {
    const std::size_t here = at_;
    const std::string_view word = next();
    at_ = here;
    return word;
  }

  void skip_block() {
    for (int depth = 1; depth > 0;) {
      const std::string_view word = next();
      if (word.empty()) refuse();
      depth += word == "{" ? 1 : word == "}" ? -1 : 0;
    }
  }

  // Skips the body of a kernel; returns how many bytes of shared memory it declares.
  std::uint64_t read_body() {
    std::uint64_t shared = 0;
    for (int depth = 1; depth > 0;) {
      const std::string_view word = next();
      if (word.empty()) refuse();
      depth += word == "{" ? 1 : word == "}" ? -1 : 0;
      if (word != ".shared") continue;
      const Declared declared = read_declaration();
      shared = (shared + declared.alignment - 1) / declared.alignment * declared.alignment + declared.size;
    }
    return std::min<std::uint64_t>(shared, 1 << 30);
  }

  void read_target() {
    const std::string_view target = next();
    if (!target.starts_with("sm_")) refuse();
    const std::size_t end = std::min(target.find_first_not_of("0123456789", 3), target.size());
    found_.architecture = static_cast<int>(number_of(target.substr(3, end - 3)));
  }

  void read_kernel() {
    KernelInfo kernel;
    kernel.name = next();
    kernel.registers = kAssumedRegisters;
    kernel.params.emplace();
    if (peek() == "(") read_params(*kernel.params);
    std::string_view word = next();
    for (; word != "{" && word != ";"; word = next()) {
      if (word.empty()) refuse();
      if (word == ".maxntid" || word == ".reqntid") kernel.max_threads = read_threads();
    }
    if (word == ";") return;  // only declared
    kernel.shared = static_cast<int>(read_body());
    found_.kernels.push_back(std::move(kernel));
  }

  int read_threads() {
    std::uint64_t threads = number_of(next());
    while (peek() == ",") {
      next();
      threads *= number_of(next());
    }
    return static_cast<int>(std::min<std::uint64_t>(threads, 1 << 20));
  }

  struct Declared {
    std::string_view name;
    std::uint64_t alignment = 0;
    std::uint64_t size = 0;
    std::uint64_t element = 0;  // bytes
    bool managed = false;
  };

  // What follows .param, .global or .const: attributes, a type, a name, and perhaps lengths.
  Declared read_declaration() {
    Declared found;
    std::uint64_t element = 0, vector = 1;
    bool pointer = false;  // then the alignment is of what it points to
    std::string_view word = next();
    for (; word.starts_with("."); word = next()) {
      if (word == ".align") {
        const std::uint64_t alignment = number_of(next());
        if (!pointer) found.alignment = alignment;
      } else if (word == ".ptr") {
        pointer = true;
      } else if (word == ".attribute") {
        for (word = next(); word != ")"; word = next()) {
          if (word.empty()) refuse();
          found.managed = found.managed || word == ".managed";
        }
      } else if (word == ".v2" || word == ".v4" || word == ".v8") {
        vector = number_of(word.substr(2));
      } else if (const std::uint64_t size = size_of_type(word); size > 0) {
        element = size;
      }
    }
    if (word.empty() || found.alignment > kMostAlignment) refuse();
    found.name = word;
    found.size = element * vector;
    found.element = element;
    if (found.alignment == 0) found.alignment = std::max<std::uint64_t>(found.size, 1);
    while (peek() == "[") {
      next();
      const std::string_view length = next();
      if (length == "]") {
        found.size = 0;  // as many as its initial values, or those of another module
        continue;
      }
      const std::uint64_t count = number_of(length);
      if (count > kMostBytes || found.size > kMostBytes / std::max<std::uint64_t>(count, 1)) refuse();
      found.size *= count;
      if (next() != "]") refuse();
    }
    return found;
  }

  void read_params(std::vector<KernelParam>& params) {
    next();  // (
    std::uint64_t offset = 0;
    for (std::string_view word = next(); word != ")"; word = next()) {
      if (word.empty()) refuse();
      if (word != ".param") continue;
      const Declared param = read_declaration();
      if (param.size == 0) refuse();
      offset = (offset + param.alignment - 1) / param.alignment * param.alignment;
      params.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(param.size)});
      offset += param.size;
    }
  }

  // The initial values of a variable, up to its semicolon: numbers, or floating-point numbers as hexadecimal bits. An
  // address, or anything else, counts as zero.
  std::string read_initial(std::uint64_t element) {
    std::string bytes;
    bool negative = false;
    for (std::string_view word = next(); word != ";"; word = next()) {
      if (word.empty()) refuse();
      if (word == "-") negative = true;
      if (word == "{" || word == "}" || word == "," || word == "=" || word == "-") continue;
      std::uint64_t value = initial_value(word);
      if (std::exchange(negative, false)) value = ~value + 1;
      bytes.append(reinterpret_cast<const char*>(&value), std::min<std::size_t>(element, sizeof value));
    }
    return bytes;
  }

  static std::uint64_t initial_value(std::string_view word) {
    if (word.starts_with("0f") || word.starts_with("0F") || word.starts_with("0d") || word.starts_with("0D")) {
      std::uint64_t bits = 0;
      std::from_chars(word.data() + 2, word.data() + word.size(), bits, 16);
      return bits;
    }
    return std::isdigit(static_cast<unsigned char>(word.front())) != 0 ? number_of(word) : 0;
  }

  void read_variable(VariableKind kind) {
    const Declared declared = read_declaration();
    VariableInfo variable;
    variable.name = declared.name;
    variable.size = declared.size > 0 ? declared.size : kAssumedVariableSize;
    variable.kind = declared.managed ? VariableKind::kManaged : kind;
    variable.initial = read_initial(declared.element);
    if (declared.size == 0 && !variable.initial.empty()) variable.size = variable.initial.size();
    variable.initial.resize(std::min<std::size_t>(variable.initial.size(), variable.size));
    if (kind == VariableKind::kConstant) found_.constant += static_cast<int>(variable.size);
    found_.variables.push_back(std::move(variable));
  }

  static constexpr std::uint64_t kMostAlignment = 4096;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
  std::string_view text_;
  std::size_t at_ = 0;
  Image found_;
};

}  // namespace

Image read(std::string_view text) { return Reader(text).read(); }

}  // namespace cudasim::ptx
