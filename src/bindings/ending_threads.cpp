// What happens to a thread that runs Python while the interpreter shuts down. Before Python 3.14, CPython ends it where it wants the
// GIL, by pthread_exit(): glibc unwinds its stack, without the GIL. In our functions that would drop Python objects without
// the GIL, or terminate the process in a destructor, which may not throw. So a thread that is unwound through any of our
// functions sleeps until the process ends, as every thread does from Python 3.14 on.
//
// The unwinder asks the personality function of each frame what to do there. The linker has all our frames call this one
// (--wrap in CMakeLists.txt), so nothing that calls Python has to remember it. Such a thread must not hold a lock that others need
// at the exit; none is held while Python runs.
#include <unwind.h>

#include <chrono>
#include <thread>

#include "bindings/bindings.hpp"

extern "C" {
_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

__attribute__((used, visibility("hidden"))) _Unwind_Reason_Code
__wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                            _Unwind_Exception* exception, _Unwind_Context* context) {
  const bool is_ending = (actions & _UA_FORCE_UNWIND) != 0 && (Py_IsInitialized() == 0 || arena::is_finalizing());
  while (is_ending) std::this_thread::sleep_for(std::chrono::hours(1));
  return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
}
