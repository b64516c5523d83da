// Threads that have streams of their own.
#include "core/streams.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "native/check.hpp"

namespace arena {
namespace {

#ifndef __SANITIZE_THREAD__  // which forbids a child of several threads to have another
TEST(a_child_can_tell_its_threads_apart_whatever_its_parents_threads_were_at) {
  const auto use_own = [] { key_of(cu::per_thread_stream()); };
  const auto in_a_thread = [&] { std::thread(use_own).join(); };
  std::atomic<bool> over{false};
  std::thread others([&] {
    while (!over) in_a_thread();
  });
  for (int i = 0; i < 500; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends it if it waits for ever
      in_a_thread();
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  }
  over = true;
  others.join();
}
#endif

}  // namespace
}  // namespace arena
