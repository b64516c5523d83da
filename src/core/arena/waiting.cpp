#include "core/arena/waiting.hpp"

#include <algorithm>
#include <thread>
#include <unordered_set>

namespace arena {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestBrief{1};  // shorter waits never wait for the whole device
constexpr std::chrono::microseconds kFirstSleep{20}, kLongestSleep{1000};

// False if a capture that the arena does not know of forbids it.
bool synchronize_all(const Device& device, const Streams::Progress& progress) {
  const auto synchronize = [&](const auto& other) { return device.synchronize(other->get()); };
  return device.synchronize() && std::all_of(progress.others.begin(), progress.others.end(), synchronize);
}

}  // namespace

void wait_for_pending(Heap& heap, Lock& lock, std::chrono::nanoseconds longest) {
  const auto deadline = steady_clock::now() + longest;
  std::chrono::nanoseconds sleep = kFirstSleep;
  for (const Marks marks = heap.backing->pending_marks(); !marks.empty();) {
    if (!heap.streams.ensure_events(marks, EventScope::kContexts)) {
      // A capture prevents it, or the driver is too old for events of whole contexts.
      if (!heap.device.can_record_context() && longest >= kLongestBrief) wait_for_device(heap, lock);
      break;
    }
    heap.streams.poll(marks, EventScope::kContexts);
    if (std::all_of(marks.begin(), marks.end(), [&](Mark mark) { return heap.streams.reached(mark); })) break;
    if (steady_clock::now() >= deadline) break;
    const Unlocked unlocked(lock);
    std::this_thread::sleep_for(sleep);
    sleep = std::min<std::chrono::nanoseconds>(2 * sleep, kLongestSleep);
  }
  heap.backing->poll();
}

bool wait_for_device(Heap& heap, Lock& lock) {
  if (heap.streams.any_capturing()) return false;
  const Streams::Progress progress = heap.streams.progress();
  bool is_done = false;
  {
    const Unlocked unlocked(lock);
    is_done = synchronize_all(heap.device, progress);
  }
  if (is_done) heap.streams.finish(progress);
  return is_done;
}

bool synchronize_now(Heap& heap) {
  const Streams::Progress progress = heap.streams.progress();
  if (!synchronize_all(heap.device, progress) || !heap.device.synchronize_others()) return false;
  heap.streams.finish(progress);
  return true;
}

// With older drivers, the only way is to wait until all work is done.
bool wait_until_idle(Heap& heap, Lock& lock, steady_clock::time_point deadline) {
  if (!heap.device.can_record_context()) return wait_for_device(heap, lock);
  const Mark all = heap.streams.mark(Streams::kAllStreams);
  Marks marks;
  marks.add(all);
  while (heap.streams.ensure_events(marks, EventScope::kContexts)) {
    heap.streams.poll(marks, EventScope::kContexts);
    if (heap.streams.reached(all)) return true;
    if (steady_clock::now() >= deadline) return false;
    const Unlocked unlocked(lock);
    std::this_thread::sleep_for(kFirstSleep);
  }
  return false;
}

std::vector<std::shared_ptr<void>> drop_idle_streams(Heap& heap) {
  constexpr std::size_t kVeryMany = 512;
  const RelaxedCapture relaxed(heap.device);
  heap.flush_caches();
  heap.streams.poll_all(heap.streams.count() < kVeryMany ? EventScope::kStreams : EventScope::kContexts);
  std::unordered_set<StreamIndex> used;
  heap.blocks.each([&](const Block& block) {
    used.insert(block.stream);
    used.insert(block.others.begin(), block.others.end());
  });
  for (const auto& graph : heap.graphs) {
    for (const auto& [offset, piece] : graph->pieces()) used.insert(piece.order.stream);
  }
  heap.streams.drop_idle([&](StreamIndex index) { return used.contains(index); });
  return heap.streams.take_released();
}

}  // namespace arena
