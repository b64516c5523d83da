// A shared library opened at run time. Owns the system's handle; knows nothing of CUDA.
#pragma once

#include <optional>
#include <string>

namespace arena {

class Library {
 public:
  // `name` is a path, or a name that the system looks for. nullopt if it cannot be opened; `why` is the system's
  // reason.
  static std::optional<Library> open(const std::string& name, std::string& why);

  // Whether `why`, from a failed open(), means that there is no such library, and not that it is broken or needs
  // another one. Works in any language of the system's messages.
  static bool is_missing(const std::string& name, const std::string& why);

  // A library that is already in the process: never loads one.
  static bool is_loaded(const std::string& name);
  static std::optional<Library> find_loaded(const std::string& name);

  ~Library();
  Library(Library&& other) noexcept;
  Library& operator=(Library&& other) noexcept;

  // As passed to open().
  const std::string& name() const { return name_; }

  // The address of an exported function, or null.
  void* symbol(const char* name) const;
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

  // The file that an address of this library was loaded from.
  std::string path_of(void* address) const;

  // Keeps the library in the process for good. An initialised driver must stay: it has started threads and registered
  // exit handlers, and without their code the process would crash.
  void keep_loaded() { kept_ = true; }

 private:
  Library(void* handle, std::string name);
  void close() noexcept;

  void* handle_;
  std::string name_;
  bool kept_ = false;
};

}  // namespace arena
