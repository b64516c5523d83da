// native_tests [SUBSTRING]: runs the tests whose names contain it, or all.
#include <cstring>

#include "native/check.hpp"

int main(int count, char** arguments) {
  int run = 0;
  for (const arena::test::Test& test : arena::test::tests()) {
    if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr) continue;
    std::fprintf(stderr, "%s\n", test.name);
    test.run();
    ++run;
  }
  std::fprintf(stderr, "%d passed\n", run);
  return run > 0 ? 0 : 1;
}
