// A process forks while threads with streams of their own start and end: its children must still be able to number
// their threads. Not part of native_tests, which run under sanitizers: those do not support forks like this.
#include "load/forks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/streams/streams.hpp"

namespace arena {

int count_hung_children(int forks) {
  const auto use_own = [] { default_key(cu::per_thread_stream()); };
  const auto in_a_thread = [&] { std::thread(use_own).join(); };
  std::atomic<bool> over{false};
  std::thread others([&] {
    while (!over) in_a_thread();
  });
  int hung = 0;
  for (int i = 0; i < forks && hung == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // kills it if it hangs
      in_a_thread();
      _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) ++hung;
  }
  over = true;
  others.join();
  return hung;
}

}  // namespace arena
