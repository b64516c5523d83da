#include "core/arena/arena.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/arena/failure.hpp"
#include "core/arena/trimming.hpp"
#include "core/arena/waiting.hpp"
#include "core/heap/inspect.hpp"
#include "core/process.hpp"

namespace arena {
namespace {

std::string format_address(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}

}  // namespace

Arena::Arena(std::shared_ptr<const Driver> driver, int device, ArenaSettings settings)
    : forks_at_creation_(forks()), heap_(std::move(driver), device, std::move(settings), next_id()) {
  if (heap_.settings.reserve > 0) reserve(heap_.settings.reserve);
  heap_.update_cache_policy();
}

// Polls the device for a while before it waits, because waiting would invalidate a capture.
Arena::~Arena() {
  constexpr std::chrono::milliseconds kLongest{200};
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  Streams& streams = heap_.streams;
  bool is_done = false;
  if (heap_.watch) sample_before(heap_, Watch::Trend::kFalling, SampleCost::kAny);
  try_twice([&] {
    const RelaxedCapture relaxed(heap_.device);
    streams.note_end_of_captures();
    heap_.flush_caches();  // so that everything freed is waited for
    if (heap_.blocks.size() > 0 || !heap_.graphs.empty()) streams.mark(Streams::kAllStreams);
    streams.poll_all(EventScope::kStreams);
    if (!streams.are_done() && streams.any_capturing()) return;
    streams.poll_all(EventScope::kContexts);
    while (!streams.are_done() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      streams.poll_all(EventScope::kContexts);
    }
    is_done = streams.are_done() || synchronize_now(heap_);
  });
  // The device may be using the memory: leaking it is safe, unmapping it is not.
  if (!is_done) heap_.backing->abandon();
}

bool Arena::is_inherited() const { return forks_at_creation_ != forks(); }

// Call this before locking: in a forked child the lock may never be released.
void Arena::check_process() const {
  if (is_inherited()) {
    throw UsageError(
        "this arena was created before the process was forked; CUDA cannot be used in the child: start "
        "processes with the \"spawn\" method, or create the arena only in the child");
  }
}

Lock Arena::lock(When when) const {
  check_process();
  mutex_.lock();  // directly, because this is inlined and std::unique_lock's constructor is not
  Lock lock(mutex_, std::adopt_lock);
  if (when == When::kOpen && heap_.closed) throw_closed();
  return lock;
}

Block& Arena::block_at(std::uint64_t address) {
  if (Block* block = heap_.blocks.find(address)) {
    const StreamCaches::Guard held(heap_.caches, *block->cache);
    if (block->live) return *block;
  }
  throw UsageError(format_address(address) + (heap_.backing->holds(address)
                                                  ? " is not the start of a live block; was it freed twice?"
                                                  : " is not an address of this arena"));
}

Block& Arena::find(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  return block_at(address);
}

std::optional<std::uint64_t> Arena::find_around(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  if (!heap_.backing->holds(address)) return std::nullopt;
  Block* around = heap_.blocks.find(address);
  if (around == nullptr) {
    heap_.blocks.each([&](Block& block) {
      if (address - block.address < block.size) around = &block;  // false below it, too: the difference wraps around
    });
  }
  if (around == nullptr) return std::nullopt;
  const StreamCaches::Guard guard(heap_.caches, *around->cache);
  return around->live ? std::optional(around->address) : std::nullopt;
}

void Arena::record_stream(std::uint64_t address, cu::Stream stream) {
  const Lock held = lock(When::kAlways);
  record_use(block_at(address), heap_.streams.index(stream));
}

void Arena::record_default_streams(std::uint64_t address, cu::Stream stream) {
  const auto others = heap_.device.active_others();  // without the lock
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  record_use(block, heap_.streams.index(stream));
  for (const auto& other : others) record_use(block, heap_.streams.index(context_key(other->get())));
}

void Arena::record_use(Block& block, StreamIndex index) {
  if (index == block.stream || std::find(block.others.begin(), block.others.end(), index) != block.others.end()) return;
  heap_.make_uncacheable(block);
  block.others.push_back(index);
  if (heap_.events.is_on()) {
    heap_.events.emit({.kind = EventKind::kRecordStream, .block = block.serial, .stream = index});
  }
}

void Arena::keep_stream(cu::Stream stream, std::shared_ptr<void> owner) {
  const Lock held = lock();
  heap_.streams.keep(stream, owner);  // if not kept, `owner` is destroyed without the lock: that may run anything
}

void Arena::pin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  heap_.make_uncacheable(block);
  if (block.lost) throw UsageError(format_address(address) + " lost its data in a failed re-backing");
  if (block.pins++ == 0) heap_.backing->pin(heap_.backing->span_of(block.offset, block.size));
  heap_.check_if_validating();
}

void Arena::unpin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  if (block.pins == 0) throw UsageError(format_address(address) + " is not pinned");
  if (--block.pins == 0) heap_.backing->unpin(heap_.backing->span_of(block.offset, block.size));
  heap_.check_if_validating();
}

void Arena::close() {
  if (is_inherited()) return;
  std::vector<std::shared_ptr<void>> released;  // destroyed without the lock
  Lock held = lock(When::kAlways);
  heap_.closed = true;
  heap_.update_cache_policy();
  heap_.streams.note_end_of_captures();  // they do not matter here any more
  const RelaxedCapture relaxed(heap_.device);
  trim_to(heap_, 0, Patience::kLong, held);
  released = arena::drop_idle_streams(heap_);
}

void Arena::trim() {
  std::vector<std::shared_ptr<void>> released;  // destroyed without the lock
  Lock held = lock();
  if (heap_.events.is_on()) heap_.events.emit({.kind = EventKind::kTrim});
  const RelaxedCapture relaxed(heap_.device);
  trim_to(heap_, heap_.settings.reserve, Patience::kLong, held);
  released = arena::drop_idle_streams(heap_);
}

void Arena::drop_idle_streams(Lock& held) {
  {
    std::vector<std::shared_ptr<void>> released = arena::drop_idle_streams(heap_);
    const Unlocked unlocked(held);
    released.clear();
  }
  check_still_open(heap_, held);
}

void Arena::reserve(Bytes size, Moving moving) {
  Lock held = lock();
  if (heap_.events.is_on()) heap_.events.emit({.kind = EventKind::kReserve, .size = size});
  const RelaxedCapture relaxed(heap_.device);
  try {
    reserve(size, moving, held);
  } catch (const DriverError& error) {
    if (!heap_.fall_back(error, held)) throw;
    reserve(size, moving, held);
  }
}

void Arena::reserve(Bytes size, Moving moving, Lock& held) {
  const HeapRequest request{{.size = size, .moving = moving}, {.rounded = block_size(size)}};
  Limits& limits = heap_.limits;
  limits.ask_before_growing(request, held);
  check_still_open(heap_, held);
  Granules wanted = limits.in_granules(round_up(size, heap_.backing->granule()));
  if (size <= heap_.settings.cap) wanted = std::min(wanted, limits.cap());
  heap_.flush_caches();
  heap_.backing->forget_refusal();
  if (wanted > limits.limit()) fail(heap_, request, held);
  const Granules reserved = heap_.backing->reserved();
  const bool is_enough =
      wanted <= reserved || heap_.backing->reserve(wanted - reserved, [&] { return limits.limit(); }, held);
  heap_.memory_moved.notify_all();
  check_still_open(heap_, held);
  if (!is_enough) fail(heap_, request, held);
  heap_.settings.reserve = std::max(heap_.settings.reserve, size);
  heap_.note_peak();
  heap_.emit_reserved();
  heap_.update_cache_policy();
  heap_.check_if_validating();
}

void Arena::set_cap(Bytes cap) {
  Lock held = lock();
  heap_.backing->extend_addresses(round_up(cap, heap_.backing->granule()) / heap_.backing->granule());
  heap_.settings.cap = cap;
  if (heap_.events.is_on()) heap_.events.emit({.kind = EventKind::kSetCap, .size = cap});
  heap_.update_cache_policy();
  if (heap_.backing->reserved() <= heap_.limits.cap()) return;
  const RelaxedCapture relaxed(heap_.device);
  trim_to(heap_, cap, Patience::kLong, held);
}

void Arena::synchronize() {
  Lock held = lock(When::kAlways);
  if (heap_.streams.count() > 1) heap_.flush_caches();  // so that other streams can use cached memory afterwards
  wait_for_device(heap_, held);
  const Unlocked unlocked(held);
  heap_.device.synchronize_others();
}

Bytes Arena::addresses() const {
  const Lock held = lock(When::kAlways);
  return heap_.is_plain ? 0 : heap_.backing->size();
}

std::vector<int> Arena::peers() const {
  const Lock held = lock(When::kAlways);
  return heap_.backing->kind().peers;
}

bool Arena::rdma() const {
  const Lock held = lock(When::kAlways);
  return heap_.backing->kind().rdma;
}

std::string Arena::remark() const {
  const Lock held = lock(When::kAlways);
  return heap_.plan.remark;
}

Bytes Arena::reserved() const {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  return heap_.reserved();
}

Arena::Reserved Arena::reserved_and_peak() const {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  return {.now = heap_.reserved(),
          .peak = heap_.backing->peak() * heap_.backing->granule(),
          .returned = heap_.backing->returned(),
          .mappings = heap_.backing->maps() - heap_.backing->unmaps(),
          .mappings_at_peak = heap_.peak.stats.maps - heap_.peak.stats.unmaps};
}

Bytes Arena::live() const {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  const StreamCaches::AllLocked all(heap_.caches);
  return static_cast<Bytes>(heap_.tracker.sums().live);
}

Bytes Arena::cap() const {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  return heap_.settings.cap;
}

std::optional<Stats> Arena::try_stats(Moving moving) {
  check_process();
  const std::unique_lock held(mutex_.for_inspection(), std::try_to_lock);
  if (!held) return std::nullopt;
  heap_.flush_for_inspection();
  return stats_of(heap_, moving);
}

Stats Arena::stats(Moving moving) {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  heap_.flush_for_inspection();
  return stats_of(heap_, moving);
}

void Arena::reset_peaks() {
  const Lock held = lock();
  heap_.restart_peaks();
}

Highest Arena::highest() const {
  const Lock held = lock(When::kAlways);
  return heap_.highest();
}

Snapshot Arena::snapshot(Moving moving) {
  Lock held = lock(When::kAlways);
  heap_.limits.ask_device(held);
  const Inspection inspection(heap_);
  return take_snapshot(heap_, moving);
}

Stats Arena::stats_after_asking(Moving moving) {
  Lock held = lock(When::kAlways);
  heap_.limits.ask_device(held);
  const Inspection inspection(heap_);
  return stats_of(heap_, moving);
}

void Arena::validate() const {
  const Lock held = lock(When::kAlways);
  check(heap_);
}

}  // namespace arena
