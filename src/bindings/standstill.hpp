// Other threads that were found asleep, and whether they have slept ever since.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace arena {

using ThreadId = int;

// Where a thread sleeps. A thread that has run since sleeps elsewhere, or was switched off once more.
struct Sleep {
  std::string call;  // the system's line: the number of the call, its arguments, stack pointer and address
  std::uint64_t switches = 0;
  bool is_wait = false;  // a call that only waits
  std::uint64_t stack_pointer = 0, address = 0;
  bool operator==(const Sleep& other) const { return call == other.call && switches == other.switches; }
};

class Standstill {
 public:
  // Inspects all threads but the calling one and the ignored ones.
  explicit Standstill(std::set<ThreadId> ignored);
  // Nothing for a thread that runs, or cannot be inspected.
  const std::map<ThreadId, std::optional<Sleep>>& threads() const { return threads_; }
  // Whether the same threads exist, and none has run since. While the caller holds the GIL, this stays true for threads that
  // need it.
  bool holds() const;

 private:
  std::set<ThreadId> ignored_;
  ThreadId caller_;
  std::map<ThreadId, std::optional<Sleep>> threads_;
};

// How many threads the process has, at the cost of a system call and without the GIL; 0 if the system does not say.
int thread_count();

// Whether this is certainly the only thread that runs Python. Cheap. Needs the GIL.
bool is_only_thread();

}  // namespace arena
