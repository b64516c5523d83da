// The errors that the C++ side throws. Owns their facts, not their wording: whoever throws writes the whole text. The
// bindings turn each into the Python class of the same name in arena.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace arena {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A setting or an argument that cannot be meant.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A CUDA driver that cannot be used, or a call that it refused.
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

// Where an error changes nothing: the driver is gone at the end of things, and what it held with it.
template <typename Function>
void quietly(const Function& function) {
  try {
    function();
  } catch (const Error&) {
  }
}

// For what gives something back for the last time: nobody else will, so one refusal is not the end of it.
template <typename Function>
void insist(const Function& function) {
  try {
    function();
  } catch (const Error&) {
    quietly(function);
  }
}

}  // namespace arena
