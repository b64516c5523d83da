// The errors that the C++ side throws. Owns their facts, not their wording: the code that throws writes the whole text.
// The bindings turn each into the Python class of the same name in arena.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace arena {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A setting or an argument that makes no sense.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A CUDA driver that cannot be used, or a call that failed.
class DriverError : public Error {
 public:
  DriverError(std::string call, int code, const std::string& text, std::string name = {});

  // The function that failed: "cuMemCreate".
  const std::string& call() const { return call_; }
  // The driver's result code, and its name, "CUDA_ERROR_OUT_OF_MEMORY". 0 and "" when no driver was reached.
  int code() const { return code_; }
  const std::string& name() const { return name_; }

 private:
  std::string call_;
  std::string name_;
  int code_;
};

// For calls whose failure does not matter, such as those to a driver that has already shut down.
template <typename Function>
void ignore_errors(const Function& function) {
  try {
    function();
  } catch (const Error&) {
  }
}

// For the last chance to release something: one failed call should not leak it.
template <typename Function>
void try_twice(const Function& function) {
  try {
    function();
  } catch (const Error&) {
    ignore_errors(function);
  }
}

}  // namespace arena
