// A small framework for tests without Python: named functions, and checks that print where they fail.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace arena::test {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

[[noreturn]] inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
  std::abort();  // prints the stack under a sanitizer or a fuzzer
}

}  // namespace arena::test

#define TEST(name)                                            \
  static void name();                                         \
  static const ::arena::test::Register name##_{#name, &name}; \
  static void name()

#define CHECK(...) ((__VA_ARGS__) ? void() : ::arena::test::fail(__FILE__, __LINE__, #__VA_ARGS__))

#define CHECK_THROWS(type, ...)           \
  do {                                    \
    bool thrown_ = false;                 \
    try {                                 \
      __VA_ARGS__;                        \
    } catch (const type&) {               \
      thrown_ = true;                     \
    }                                     \
    CHECK(thrown_ && #type #__VA_ARGS__); \
  } while (false)
