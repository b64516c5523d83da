// Streams: queues of tasks that run in order. A small task on an idle stream runs on the thread that queued it, others
// on a worker thread. Knows nothing of what the tasks do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cudasim/machine/checker.hpp"

namespace cudasim {

struct ContextState;
struct Capture;
class StreamState;
using StreamRef = std::shared_ptr<StreamState>;

// A point in a stream, reached when its first `tasks` tasks are done. Always reached without a stream.
struct Mark {
  StreamRef stream;
  std::uint64_t tasks = 0;
  bool reached() const;
  void wait() const;
};

struct Task {
  std::function<cu::Result()> run;  // empty if it only waits
  std::vector<Mark> after;
  std::uint64_t delay_us = 0;
  bool even_failed = false;  // runs even if the context has failed
};

class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  StreamState(std::shared_ptr<ContextState> context, cu::Stream handle, unsigned flags, int priority);

  // Returns the mark that is reached when the task is done, and whether the calling thread must call run_inline() once
  // it holds no lock.
  struct Pushed {
    Mark mark;
    bool run_here;
  };
  Pushed push(Task task, bool small);
  void run_inline();
  Mark last();
  bool idle() const { return completed_.load() == queued_.load(); }
  std::uint64_t completed() const { return completed_.load(); }
  void wait_for(std::uint64_t tasks);

  const std::shared_ptr<ContextState> context;
  const cu::Stream handle;
  const unsigned flags;
  const int priority;
  const std::uint64_t id;  // never reused; default streams have one, too
  // Guarded by the machine's mutex:
  ActorRef actor;
  Clock clock;
  std::shared_ptr<Capture> capture;
  std::map<cu::LaunchAttributeId, cu::LaunchAttributeValue> attributes;  // that were set

  bool blocking() const { return flags == 0; }

 private:
  void start_worker();
  void work();
  void run(Task& task);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool running_ = false;  // a task is being run, by the worker or inline
  bool worker_ = false;   // a worker is alive
  std::atomic<std::uint64_t> queued_{0};
  std::atomic<std::uint64_t> completed_{0};
};

}  // namespace cudasim
