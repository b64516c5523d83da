// Shared libraries on POSIX systems and on Windows.
#include "driver/library.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace arena {
namespace {

#ifdef _WIN32

void* open_handle(const std::string& name) { return LoadLibraryA(name.c_str()); }

void* loaded_handle(const std::string& name) {
  return GetModuleHandleA(name.c_str()) != nullptr ? LoadLibraryA(name.c_str()) : nullptr;
}

void close_handle(void* handle) { FreeLibrary(static_cast<HMODULE>(handle)); }

void* find_symbol(void* handle, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle), name));
}

std::string last_error(const std::string&) { return std::system_category().message(static_cast<int>(GetLastError())); }

std::string file_of(void* address) {
  constexpr DWORD kFlags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  HMODULE module = nullptr;
  char file[MAX_PATH] = "";
  if (GetModuleHandleExA(kFlags, static_cast<const char*>(address), &module)) {
    GetModuleFileNameA(module, file, sizeof file);
  }
  return file;
}

#else

// RTLD_LOCAL: two drivers in one process must not find each other's functions.
void* open_handle(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); }

void close_handle(void* handle) { dlclose(handle); }

void* loaded_handle(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD); }

void* find_symbol(void* handle, const char* name) { return dlsym(handle, name); }

std::string last_error(const std::string& name) {
  const char* error = dlerror();
  std::string text = error ? error : "no reason given";
  // The system's message starts with the name; ours already has it.
  if (text.starts_with(name + ": ")) text.erase(0, name.size() + 2);
  return text;
}

std::string file_of(void* address) {
  Dl_info info{};
  return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

#endif

}  // namespace

std::optional<Library> Library::open(const std::string& name, std::string& why) {
  if (void* handle = open_handle(name)) return Library(handle, name);
  why = last_error(name);
  return std::nullopt;
}

bool Library::is_missing(const std::string& name, const std::string& why) {
  const std::string nowhere = name + ".there-is-no-such-library";
  std::string expected;
  if (open(nowhere, expected)) return false;
  const auto without = [](std::string text, const std::string& part) {
    const std::size_t at = text.find(part);
    return at == std::string::npos ? text : text.erase(at, part.size());
  };
  return without(why, name) == without(expected, nowhere);
}

bool Library::is_loaded(const std::string& name) { return find_loaded(name).has_value(); }

std::optional<Library> Library::find_loaded(const std::string& name) {
  if (void* handle = loaded_handle(name)) return Library(handle, name);
  return std::nullopt;
}

Library::Library(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

Library::~Library() { close(); }

Library::Library(Library&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), name_(std::move(other.name_)), kept_(other.kept_) {}

Library& Library::operator=(Library&& other) noexcept {
  if (this == &other) return *this;
  close();
  handle_ = std::exchange(other.handle_, nullptr);
  name_ = std::move(other.name_);
  kept_ = other.kept_;
  return *this;
}

void Library::close() noexcept {
  if (handle_ && !kept_) close_handle(handle_);
  handle_ = nullptr;
}

void* Library::symbol(const char* name) const { return find_symbol(handle_, name); }

std::string Library::path_of(void* address) const {
  std::string file = file_of(address);
  if (file.empty()) return name_;
  // Resolves links, so that libcuda.so.1 shows its version: libcuda.so.580.82.07.
  std::error_code failed;
  std::filesystem::path real = std::filesystem::canonical(file, failed);
  return failed ? file : real.string();
}

}  // namespace arena
