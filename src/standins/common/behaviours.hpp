// Turns the lines of a library's table (its .def file) into exported functions. A library includes this file after it has
// declared, in an anonymous namespace,
//
//   constexpr int kNoHandle = ...;      its status for a handle that is not one
//   constexpr int kBadArgument = ...;   its status for a null pointer to a result
//   constexpr int kFailed = ...;        its status for work that could not be queued
//
// and then its table. The lines:
//
//   OK(name)                        succeeds, if argument 0 is a live handle
//   PLAIN(name)                     succeeds
//   CREATE(name, N, Type)           writes a new object of that type to argument N
//   DESTROY(name)                   ends the object that argument 0 is
//   SET(name, N, key)               argument 0 remembers argument N under that key
//   GET(name, N, key, type)         writes what argument 0 remembers to argument N
//   WRITE(name, N, type, value)     writes a value to argument N, if argument 0 is a live handle
//   ANSWER(name, N, type, value)    writes a value to argument N
//   SCALAR(name, N, type, value)    writes a result to argument N, if the pointer mode says that it is in host memory
//   INFO(name, N, count)            clears `count` ints of device memory at argument N, in the order of the handle's stream
//   RETURN(name, type, value)       returns a value that is not a status
//   SPECIAL(name)                   has a definition of its own beside the table
//
// Values are expressions of the arguments a0, a1, ...
//
// Arguments are numbered as the C function has them, without those of type float, double and complex. These come in other
// registers on x86-64 and on aarch64, and are not looked at. A caller may pass more or fewer arguments than the definition has: it is the
// caller who knows how many it put on its stack, and only arguments that the function has are read. Integers narrower
// than a word have undefined upper bits: cast them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "standins/common/driver.hpp"
#include "standins/common/objects.hpp"
#include "standins/common/settings.hpp"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

#define STANDIN_ARGUMENTS                                                                                            \
  [[maybe_unused]] standins::Word a0, [[maybe_unused]] standins::Word a1, [[maybe_unused]] standins::Word a2,        \
      [[maybe_unused]] standins::Word a3, [[maybe_unused]] standins::Word a4, [[maybe_unused]] standins::Word a5,    \
      [[maybe_unused]] standins::Word a6, [[maybe_unused]] standins::Word a7, [[maybe_unused]] standins::Word a8,    \
      [[maybe_unused]] standins::Word a9, [[maybe_unused]] standins::Word a10, [[maybe_unused]] standins::Word a11,  \
      [[maybe_unused]] standins::Word a12, [[maybe_unused]] standins::Word a13, [[maybe_unused]] standins::Word a14, \
      [[maybe_unused]] standins::Word a15, [[maybe_unused]] standins::Word a16, [[maybe_unused]] standins::Word a17, \
      [[maybe_unused]] standins::Word a18, [[maybe_unused]] standins::Word a19, [[maybe_unused]] standins::Word a20, \
      [[maybe_unused]] standins::Word a21

namespace standins {

template <class T>
bool write(Word address, T value) {
  if (address == 0) return false;
  *reinterpret_cast<T*>(address) = value;
  return true;
}

// The low half of an argument that is an int in C.
inline std::int64_t as_int(Word argument) { return static_cast<std::int32_t>(argument); }

// A result of a reduction lies in host memory (pointer mode 0) or in device memory, which is left alone.
inline bool is_result_on_host(const Object& handle) { return as_int(handle.get(Key::kPointerMode)) == 0; }

template <class T>
void write_scalar(const Object& handle, Word address, T value) {
  if (is_result_on_host(handle)) write(address, value);
}

}  // namespace standins

#define STANDIN_FUNCTION(name) STANDIN_EXPORT int name(STANDIN_ARGUMENTS)

#define OK(name) \
  STANDIN_FUNCTION(name) { return standins::find_object(a0) != nullptr ? 0 : kNoHandle; }
#define PLAIN(name) \
  STANDIN_FUNCTION(name) { return 0; }
#define CREATE(name, N, Type)                        \
  STANDIN_FUNCTION(name) {                           \
    if (a##N == 0) return kBadArgument;              \
    standins::write(a##N, standins::create<Type>()); \
    return 0;                                        \
  }
#define DESTROY(name) \
  STANDIN_FUNCTION(name) { return standins::remove_object(a0) ? 0 : kNoHandle; }
#define SET(name, N, key)                                       \
  STANDIN_FUNCTION(name) {                                      \
    standins::Object* const object = standins::find_object(a0); \
    if (object == nullptr) return kNoHandle;                    \
    object->set(standins::Key::key, a##N);                      \
    return 0;                                                   \
  }
#define GET(name, N, key, type)                                            \
  STANDIN_FUNCTION(name) {                                                 \
    const standins::Object* const object = standins::find_object(a0);      \
    if (object == nullptr) return kNoHandle;                               \
    const auto value = static_cast<type>(object->get(standins::Key::key)); \
    return standins::write<type>(a##N, value) ? 0 : kBadArgument;          \
  }
#define WRITE(name, N, type, value)                             \
  STANDIN_FUNCTION(name) {                                      \
    if (standins::find_object(a0) == nullptr) return kNoHandle; \
    if (a##N == 0) return kBadArgument;                         \
    standins::write<type>(a##N, static_cast<type>(value));      \
    return 0;                                                   \
  }
#define ANSWER(name, N, type, value)                       \
  STANDIN_FUNCTION(name) {                                 \
    if (a##N == 0) return kBadArgument;                    \
    standins::write<type>(a##N, static_cast<type>(value)); \
    return 0;                                              \
  }
#define SCALAR(name, N, type, value)                                  \
  STANDIN_FUNCTION(name) {                                            \
    const standins::Object* const handle = standins::find_object(a0); \
    if (handle == nullptr) return kNoHandle;                          \
    standins::write_scalar<type>(*handle, a##N, type(value));         \
    return 0;                                                         \
  }
#define INFO(name, N, count)                                                \
  STANDIN_FUNCTION(name) {                                                  \
    const standins::Object* const handle = standins::find_object(a0);       \
    if (handle == nullptr) return kNoHandle;                                \
    return standins::clear_device_ints(*handle, a##N, count) ? 0 : kFailed; \
  }
#define RETURN(name, type, value) \
  STANDIN_EXPORT type name(STANDIN_ARGUMENTS) { return value; }
#define SPECIAL(name)
