// User objects: objects of the program that graphs keep alive. The last release calls the object's destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi/types.hpp"

namespace cudasim {

namespace cu = arena::cu;

// The count is atomic, because graphs are destroyed on any thread, with and without the machine's mutex.
struct UserObjectState {
  void* data = nullptr;
  cu::HostFunction destroy = nullptr;
  std::atomic<std::uint64_t> references{0};

  // Gives references back; the destructor is called by a thread of its own after the last.
  void release(std::uint64_t count);
};
using UserObjectRef = std::shared_ptr<UserObjectState>;

// References that a graph owns, and releases when it is destroyed.
class UserRefs {
 public:
  UserRefs() = default;
  UserRefs(const UserRefs& other);
  UserRefs& operator=(const UserRefs&) = delete;
  ~UserRefs();

  void add(const UserObjectRef& object, std::uint64_t count);     // the references are the caller's until now
  void take(const UserRefs& others);                              // as many more references as the others have
  bool remove(const UserObjectRef& object, std::uint64_t count);  // false if there are not as many

 private:
  std::vector<std::pair<UserObjectRef, std::uint64_t>> held_;
};

}  // namespace cudasim
