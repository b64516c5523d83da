#include "cudasim/machine/streams.hpp"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

constexpr auto kIdleBeforeExit = std::chrono::milliseconds(50);
std::atomic<std::uint64_t> next_stream_id{1};

}  // namespace

bool Mark::reached() const { return !stream || stream->completed() >= tasks; }
void Mark::wait() const {
  if (stream) stream->wait_for(tasks);
}

StreamState::StreamState(ContextRef owner, cu::Stream number, unsigned stream_flags, int stream_priority)
    : context(std::move(owner)),
      handle(number),
      flags(stream_flags),
      priority(stream_priority),
      id(next_stream_id++),
      actor(std::make_shared<Actor>(Actor{number, id})) {}

StreamState::Pushed StreamState::push(Task task, bool small) {
  const std::lock_guard lock(mutex_);
  bool ready = small && task.delay_us == 0 && !running_ && tasks_.empty();
  for (const Mark& mark : task.after) ready = ready && mark.reached();
  tasks_.push_back(std::move(task));
  const Mark mark{shared_from_this(), ++queued_};
  if (ready) {
    running_ = true;
  } else {
    try {
      start_worker();
    } catch (const std::system_error&) {
      if (!running_) {  // no thread would ever run it
        tasks_.pop_back();
        --queued_;
        throw;
      }
    }
  }
  return {mark, ready};
}

Mark StreamState::last() { return {shared_from_this(), queued_.load()}; }

void StreamState::wait_for(std::uint64_t tasks) {
  if (completed_.load() >= tasks) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_.load() >= tasks; });
}

void StreamState::run(Task& task) {
  for (const Mark& mark : task.after) mark.wait();
  if (task.delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(task.delay_us));
  // After a fault the context runs no more work; its tasks just complete.
  if (!task.run || (context->error.load() != kSuccess && !task.even_failed)) return;
  Result result;
  try {
    result = task.run();
  } catch (const std::bad_alloc&) {  // out of host memory
    result = kOutOfMemory;
  }
  if (result != kSuccess) context->error.store(result);
}

void StreamState::run_inline() {
  std::unique_lock lock(mutex_);
  while (true) {
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    run(task);
    task = {};
    lock.lock();
    ++completed_;
    changed_.notify_all();
    if (tasks_.empty()) break;
    try {
      start_worker();
      break;
    } catch (const std::system_error&) {  // no worker: this thread runs the other tasks, too
    }
  }
  running_ = false;
  changed_.notify_all();
}

// Workers are detached and exit after a while without work, so nothing has to be joined at process exit. Their name,
// set before this call returns, distinguishes them from other threads in /proc/self/task/*/comm.
void StreamState::start_worker() {
  if (!worker_) {
    std::thread worker([self = shared_from_this()] { self->work(); });
    pthread_setname_np(worker.native_handle(), "cudasim");
    worker.detach();
    worker_ = true;
  }
  changed_.notify_all();
}

void StreamState::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!changed_.wait_for(lock, kIdleBeforeExit, [&] { return !tasks_.empty() && !running_; })) {
      worker_ = false;  // a thread that runs a task inline starts another worker if more tasks come
      return;
    }
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    run(task);
    task = {};  // free what it holds before it counts as done
    lock.lock();
    running_ = false;
    ++completed_;
    changed_.notify_all();
  }
}

}  // namespace cudasim
