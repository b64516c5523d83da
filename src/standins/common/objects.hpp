// What a library hands out: handles and descriptors. Each is a real object that remembers what was set on it, and lives from
// its create call to its destroy call. A pointer that is no live object is refused by every function it is passed to.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace standins {

using Word = std::uintptr_t;  // an argument: an integer or a pointer

// What handles remember between a Set and its Get. All are 0 until they are set, which is the libraries' default, too.
enum class Key {
  kStream,
  kPointerMode,
  kMathMode,
  kAtomicsMode,
  kSmCount,
  kMode,
  kType,
  kFillMode,
  kDiagonalType,
  kIndexBase,
};

class Object {
 public:
  virtual ~Object() = default;

  void set(Key key, Word value);
  Word get(Key key) const;

 private:
  std::vector<std::pair<Key, Word>> values_;
};

struct Handle : Object {};
struct Descriptor : Object {};

Word add_object(std::unique_ptr<Object> object);  // returns the handle: the object's address
Object* find_object(Word handle);                 // null if there is no such live object
bool remove_object(Word handle);                  // false if there is no such live object

template <class T>
T* find(Word handle) {
  return dynamic_cast<T*>(find_object(handle));
}

template <class T>
Word create() {
  return add_object(std::make_unique<T>());
}

}  // namespace standins
