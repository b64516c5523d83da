// A process that forks while its threads, which have streams of their own, come and go: can its children tell their threads
// apart? Not among the other tests without Python, which run under sanitizers: these forget their own locks in a child.
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
      alarm(20);  // ends it if it waits for ever
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
