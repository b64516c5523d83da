// What happens to a thread that runs Python while the interpreter shuts down. Before Python 3.14, CPython ends it where it wants the
// GIL, by pthread_exit(): glibc unwinds its stack, without the GIL. In our functions that would drop Python objects without
// the GIL, or terminate the process in a destructor, which may not throw. So a thread that is unwound through any of our
// functions sleeps until the process ends, as every thread does from Python 3.14 on.
//
// The unwinder asks the personality function of each frame what to do there. This library has its own, which the linker prefers to
// those of the runtimes for all our frames, so nothing that calls Python has to remember it. There are two: optimised at link time,
// a function that has only destructors to run gets that of C. Such a thread must not hold a lock that others need at the exit; none
// is held while Python runs.
#include <dlfcn.h>
#include <unwind.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "bindings/bindings.hpp"

namespace {

using Personality = _Unwind_Reason_Code (*)(int, _Unwind_Action, _Unwind_Exception_Class, _Unwind_Exception*,
                                            _Unwind_Context*);

Personality find_in(const char* library, const char* name) {
  void* runtime = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (runtime == nullptr) runtime = RTLD_NEXT;  // other runtimes
  void* found = dlsym(runtime, name);
  if (found == nullptr) std::abort();  // code that throws could not have been loaded
  return reinterpret_cast<Personality>(found);
}

void stay_if_ending(_Unwind_Action actions) {
  const bool is_ending = (actions & _UA_FORCE_UNWIND) != 0 && (Py_IsInitialized() == 0 || arena::is_finalizing());
  while (is_ending) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

#define ARENA_HIDDEN extern "C" __attribute__((used, visibility("hidden")))

ARENA_HIDDEN _Unwind_Reason_Code __gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                      _Unwind_Exception* exception, _Unwind_Context* context) {
  static const Personality runtimes = find_in("libstdc++.so.6", "__gxx_personality_v0");
  stay_if_ending(actions);
  return runtimes(version, actions, kind, exception, context);
}

ARENA_HIDDEN _Unwind_Reason_Code __gcc_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                                                      _Unwind_Exception* exception, _Unwind_Context* context) {
  static const Personality runtimes = find_in("libgcc_s.so.1", "__gcc_personality_v0");
  stay_if_ending(actions);
  return runtimes(version, actions, kind, exception, context);
}
