#include "bindings/torch/symbols.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string_view>

namespace arena::torch {
namespace {

// A file, mapped for reading; empty if that fails.
class MappedLibrary {
 public:
  explicit MappedLibrary(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status = {};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      const auto size = static_cast<std::size_t>(status.st_size);
      void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
      if (mapped != MAP_FAILED) start_ = static_cast<const std::byte*>(mapped), size_ = size;
    }
    ::close(file);
  }
  ~MappedLibrary() {
    if (start_ != nullptr) munmap(const_cast<std::byte*>(start_), size_);
  }
  MappedLibrary(const MappedLibrary&) = delete;
  MappedLibrary& operator=(const MappedLibrary&) = delete;

  // `count` things at an offset; null if they are not all in the file.
  template <typename Thing>
  const Thing* at(std::uint64_t offset, std::uint64_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(Thing) || offset % alignof(Thing) != 0) return nullptr;
    return reinterpret_cast<const Thing*>(start_ + offset);
  }

 private:
  const std::byte* start_ = nullptr;
  std::size_t size_ = 0;
};

// The symbol table of a library's file.
class SymbolTable {
 public:
  explicit SymbolTable(const MappedLibrary& file) {
    const auto* header = file.at<ElfW(Ehdr)>(0);
    if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(ElfW(Shdr))) return;
    const auto* sections = file.at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
    if (sections == nullptr) return;
    for (const ElfW(Shdr)* section = sections; section != sections + header->e_shnum; ++section) {
      if (section->sh_type != SHT_SYMTAB || section->sh_link >= header->e_shnum) continue;
      const ElfW(Shdr) & texts = sections[section->sh_link];
      const std::uint64_t count = section->sh_size / sizeof(ElfW(Sym));
      const auto* symbols = file.at<ElfW(Sym)>(section->sh_offset, count);
      const auto* names = file.at<char>(texts.sh_offset, texts.sh_size);
      if (symbols == nullptr || names == nullptr) return;
      symbols_ = symbols, count_ = count, names_ = names, size_of_names_ = texts.sh_size;
    }
  }
  template <typename Visit>
  void each_function(Visit visit) const {
    for (const ElfW(Sym)* symbol = symbols_; symbol != symbols_ + count_; ++symbol) {
      if ((symbol->st_info & 0xf) != STT_FUNC || symbol->st_name >= size_of_names_) continue;
      const char* name = names_ + symbol->st_name;
      visit(symbol->st_value, std::string_view(name, strnlen(name, size_of_names_ - symbol->st_name)));
    }
  }

 private:
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  std::uint64_t count_ = 0, size_of_names_ = 0;
};

// What the linker says about an address: the library, and the name if one is exported.
struct Known {
  const link_map* library = nullptr;
  std::string name;
};

Known ask_linker(const void* address) {
  Dl_info info = {};
  void* found = nullptr;
  if (dladdr1(address, &info, &found, RTLD_DL_LINKMAP) == 0) return {};
  Known known{.library = static_cast<const link_map*>(found), .name = {}};
  if (info.dli_saddr == address && info.dli_sname != nullptr) known.name = info.dli_sname;
  return known;
}

struct OfLibrary {
  std::map<const void*, std::string> exported;
  std::vector<const void*> unexported;
};

void add_unexported(const link_map& library, const OfLibrary& functions, NamesByAddress& names) {
  const MappedLibrary file(library.l_name);
  NamesByAddress found;
  for (const void* function : functions.unexported) found[function];
  for (const auto& [function, name] : functions.exported) found[function];
  SymbolTable(file).each_function([&](std::uint64_t value, std::string_view name) {
    const auto it = found.find(reinterpret_cast<const void*>(library.l_addr + value));
    if (it != found.end()) it->second.emplace_back(name);
  });
  const bool agrees = std::ranges::all_of(functions.exported, [&](const auto& one) {
    return std::ranges::find(found[one.first], one.second) != found[one.first].end();
  });
  if (!agrees || functions.exported.empty()) return;
  for (const void* function : functions.unexported) {
    if (!found[function].empty()) names[function] = std::move(found[function]);
  }
}

}  // namespace

NamesByAddress find_names(const std::vector<const void*>& functions) {
  NamesByAddress names;
  std::map<const link_map*, OfLibrary> libraries;
  for (const void* function : functions) {
    const Known known = ask_linker(function);
    if (known.library == nullptr) continue;
    OfLibrary& library = libraries[known.library];
    if (known.name.empty()) {
      library.unexported.push_back(function);
    } else {
      names[function] = {known.name};
      library.exported.emplace(function, known.name);
    }
  }
  for (const auto& [library, its] : libraries) {
    if (!its.unexported.empty()) add_unexported(*library, its, names);
  }
  return names;
}

bool exports_function(const void* address, const char* name) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0) return false;
  void* library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_NOW);
  return library != nullptr && dlsym(library, name) != nullptr;
}

ExportedObject find_exported_object(const void* address) {
  Dl_info info = {};
  void* found = nullptr;
  if (dladdr1(address, &info, &found, RTLD_DL_SYMENT) == 0) return {};
  if (info.dli_saddr != address || info.dli_sname == nullptr || found == nullptr) return {};
  const auto* symbol = static_cast<const ElfW(Sym)*>(found);
  return {.name = info.dli_sname, .size = static_cast<std::size_t>(symbol->st_size)};
}

}  // namespace arena::torch
