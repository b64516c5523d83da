#include "marks.hpp"

#include <dlfcn.h>

namespace arena::values {

Marks marks{};

namespace {

template <typename Function>
bool look_up(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace

bool find_marks() {
  return look_up(marks.mark, "cudasimValuesMark") && look_up(marks.query, "cudasimValuesQuery") &&
         look_up(marks.read, "cudasimValuesRead") && look_up(marks.write, "cudasimValuesWrite") &&
         look_up(marks.settle, "cudasimValuesSettle") && look_up(marks.drain, "cudasimValuesDrain") &&
         look_up(marks.enter, "cudasimValuesEnter") && look_up(marks.leave, "cudasimValuesLeave") &&
         look_up(marks.expect, "cudasimValuesExpect") && look_up(marks.forget, "cudasimValuesForget");
}

}  // namespace arena::values
