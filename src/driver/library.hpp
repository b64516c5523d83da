// A shared library opened at run time. Owns the system's handle; knows nothing of CUDA.
#pragma once

#include <optional>
#include <string>

namespace arena {

class Library {
 public:
  // `name` is a path, or a name that the system looks for. Nothing, with the system's reason in `why`, if it cannot be
  // opened.
  static std::optional<Library> open(const std::string& name, std::string& why);

  // Whether `why`, the reason for which `name` could not be opened, is that there is no such library, as opposed to one
  // that is broken or lacks another. In whatever language the system gives its reasons.
  static bool is_missing(const std::string& name, const std::string& why);

  // Whether a library of that name is in the process already; and it, without loading it.
  static bool is_loaded(const std::string& name);
  static std::optional<Library> find_loaded(const std::string& name);

  ~Library();
  Library(Library&& other) noexcept;
  Library& operator=(Library&& other) noexcept;

  // As it was opened.
  const std::string& name() const { return name_; }

  // The address of an exported function, or null.
  void* symbol(const char* name) const;
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

  // The file that an address of this library was loaded from.
  std::string path_of(void* address) const;

  // Leaves the library in the process for good. A driver must stay once it is initialised: it has started threads and
  // registered functions to run at exit, and without their code the process would fault.
  void keep_loaded() { kept_ = true; }

 private:
  Library(void* handle, std::string name);
  void close() noexcept;

  void* handle_;
  std::string name_;
  bool kept_ = false;
};

}  // namespace arena
