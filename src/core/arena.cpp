#include "core/arena.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/units.hpp"
#include "core/process.hpp"
#include "core/stitched.hpp"

namespace arena {
namespace {

constexpr const char* kClosed = "the arena is closed: make another one to allocate from";

std::string format_address(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}

// Plain memory from the device itself.
PlainSource from_device(const Device& device) {
  return [&device](Bytes size) -> std::optional<PlainMemory> {
    const std::optional<std::uint64_t> address = device.allocate(size);
    if (!address) return std::nullopt;
    return PlainMemory{*address, [&device, address = *address] { device.deallocate(address); }};
  };
}

}  // namespace

Arena::Arena(std::shared_ptr<const Driver> driver, int device, ArenaSettings settings)
    : device_(std::move(driver), device),
      settings_(std::move(settings)),
      last_free_(device_.free()),
      start_(start()),
      plain_(start_.is_plain),
      moves_(settings_.moves),
      born_(forks()),
      id_(next_id()),
      streams_(device_, {[this](StreamIndex stream) { fronts_.forget(stream); },
                         [this](StreamIndex stream, std::uint64_t mark) { fronts_.set_mark(stream, mark); }}),
      gaps_(plain_ ? Plain::kUnit : device_.granule(), [this](Mark mark) { return streams_.reached(mark); }),
      backing_(make_backing()) {
  if (settings_.reserve > 0) reserve(settings_.reserve);
  set_fronts();
}

Start Arena::start() const {
  if (settings_.upstream || !settings_.virtual_memory) return {.is_plain = true};
  const Relaxed relaxed(device_);
  return start_on(device_, settings_.cap, settings_.peers);
}

std::unique_ptr<Backing> Arena::make_backing() {
  const Bytes granule = start_.is_plain ? Plain::kUnit : device_.granule();
  const Granules growth = std::max<Granules>(1, settings_.growth / granule);
  if (!start_.is_plain) return std::make_unique<Stitched>(device_, streams_, gaps_, growth, start_, moves_);
  PlainSource source = settings_.upstream ? settings_.upstream : from_device(device_);
  return std::make_unique<Plain>(device_, streams_, gaps_, growth, std::move(source));
}

// A driver that has never given virtual memory, and says now that it does not support it, gives plain segments. There are
// no blocks yet.
bool Arena::fall_back(const DriverError& error, Lock& held) {
  if (backing_->is_proven() || error.code() != static_cast<int>(cu::Result::kNotSupported)) return false;
  start_ = plain_because(error.call() + " is not supported here");
  std::unique_ptr<Backing> plain = make_backing();
  plain->note_earlier_peak(backing_->peak() * backing_->granule());
  backing_.reset();
  std::destroy_at(&gaps_);
  std::construct_at(&gaps_, Plain::kUnit, [this](Mark mark) { return streams_.reached(mark); });
  backing_ = std::move(plain);
  plain_ = true;
  const Granules kept = in_granules(round_up(settings_.reserve, Plain::kUnit));
  quietly([&] { backing_->reserve(kept, [this] { return limit(); }, held); });
  return true;
}

// The device is asked for a while before it is waited for, which a capture would not survive.
Arena::~Arena() {
  constexpr std::chrono::milliseconds kLongest{200};
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  bool is_done = false;
  insist([&] {
    const Relaxed relaxed(device_);
    streams_.note_end_of_captures();
    empty_fronts();  // so that all that was freed is among what is waited for
    if (blocks_.size() > 0 || !graphs_.empty()) streams_.mark(Streams::kEverything);
    streams_.poll_all(Means::kStreams);
    if (!streams_.are_done() && streams_.any_capturing()) return;
    streams_.poll_all(Means::kContexts);
    while (!streams_.are_done() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      streams_.poll_all(Means::kContexts);
    }
    is_done = streams_.are_done() || synchronize_now();
  });
  // The device may be using the memory: losing it is safe, unmapping it is not.
  if (!is_done) backing_->abandon();
}

bool Arena::is_inherited() const { return born_ != forks(); }

// Before the lock: in a forked child it may be closed for ever.
void Arena::check_process() const {
  if (is_inherited()) {
    throw UsageError(
        "this arena was made before the process was forked; CUDA cannot be used in the child: start "
        "processes with the method \"spawn\", or make the arena in the child alone");
  }
}

Lock Arena::lock(When when) const {
  check_process();
  Lock lock(mutex_);
  if (when == When::kOpen && closed_) throw UsageError(kClosed);
  return lock;
}

// After the lock was let go.
void Arena::check_still_open(Lock& held) {
  if (!closed_) return;
  trim_to(0, held);
  throw UsageError(kClosed);
}

void Arena::synchronize() {
  Lock held = lock(When::kAlways);
  if (streams_.count() > 1) empty_fronts();  // what one keeps is known to be done then, and the others may have it
  wait_for_device(held);
  const Unlocked unlocked(held);
  device_.synchronize_others();
}

// How many granules may be reserved now.
Granules Arena::limit() const {
  return settings_.headroom > 0 ? limit_with(device_free()) : in_granules(settings_.cap);
}

Granules Arena::limit_with(Bytes device_free) const {
  // What is on its way is counted as reserved, and the driver counts it as free.
  const Bytes kept = settings_.headroom + backing_->coming() * backing_->granule();
  const Bytes room = device_free - std::min(device_free, kept);
  return in_granules(std::min(settings_.cap, backing_->reserved() * backing_->granule() + room));
}

// How far a request can come when what is idle goes back for it. Plain segments go before a larger one is taken, and
// while others are in the headroom none could be: what is idle would be lost for nothing.
Granules Arena::reach() const {
  return settings_.headroom > 0 ? reach_with(device_free()) : in_granules(settings_.cap);
}

Granules Arena::reach_with(Bytes device_free) const {
  return plain_ && device_free < settings_.headroom ? 0 : limit_with(device_free);
}

Block& Arena::block_at(std::uint64_t address) {
  if (Block* block = blocks_.find(address)) {
    const Fronts::Guard held(fronts_, *block->front);
    if (block->live) return *block;
  }
  throw UsageError(format_address(address) + (backing_->holds(address)
                                                  ? " is not the beginning of a live block; was it freed twice?"
                                                  : " is not an address of this arena"));
}

Block& Arena::find(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  return block_at(address);
}

bool Arena::is_over_limit() const { return closed_ || backing_->reserved() > in_granules(settings_.cap); }

void Arena::free(Block& block) {
  if (!is_inherited() && !give_directly(block)) free_with_lock(block);  // a child's memory is the parent's
}

void Arena::free_with_lock(Block& block) {
  Lock held = lock(When::kAlways);
  end(block, held);
}

void Arena::free(std::uint64_t address) {
  if (is_inherited()) return;
  Lock held = lock(When::kAlways);
  end(block_at(address), held);
}

void Arena::end(Block& block, Lock& held) {
  take_back(block);
  if (!is_over_limit()) return;
  const Relaxed relaxed(device_);
  trim_to(closed_ ? 0 : settings_.reserve, held, false);  // the device may be what calls
}

bool Arena::try_free(Block& block) { return is_inherited() || give_directly(block) || try_free_with_lock(block); }

bool Arena::try_free_with_lock(Block& block) {
  const Lock held(mutex_, std::try_to_lock);
  if (!held || is_over_limit()) return false;
  take_back(block);
  return true;
}

// A block leaves a user's hands, for its front or, if that does not keep it, for good.
void Arena::take_back(Block& block) {
  const std::uint64_t serial = observer_ ? block.serial : 0;
  block.live = false;
  block.mark = 0;
  if (!block.lost) tallies_.mine().remove(block.requested, block.size);
  if (!keep(block)) put_down(block);
  if (observer_) tell({EventKind::kFree, serial});
  check_if_told();
}

// What is not backed any more is not held either: its bytes leave the account. What others freed meanwhile was counted
// then, and is not handed out again: no front keeps it.
void Arena::disown_lost() {
  const Fronts::Held held(fronts_);
  fronts_.each([&](Front& front) { front.pop_all(Front::Which::kAll, [&](Block& block) { put_down(block); }); });
  blocks_.each([&](Block& block) {
    if (block.lost || !backing_->has_lost(backing_->span_of(block.offset, block.size))) return;
    block.lost = true;
    block.ordinary = false;
    tallies_.mine().remove(block.requested, block.size);
  });
}

// Others have to do with it from now on: no front keeps it.
void Arena::bind(Block& block) {
  const Fronts::Guard held(fronts_, *block.front);
  block.ordinary = false;
}

void Arena::record_stream(std::uint64_t address, cu::Stream stream) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  const StreamIndex index = streams_.index(stream);
  if (index == block.stream || std::find(block.others.begin(), block.others.end(), index) != block.others.end()) return;
  bind(block);
  block.others.push_back(index);
  if (observer_) tell({EventKind::kRecordStream, block.serial, 0, index});
}

void Arena::keep_stream(cu::Stream stream, std::shared_ptr<void> owner) {
  const Lock held = lock();
  streams_.keep(stream, owner);  // which is dropped without the lock, if it is not kept: that may run anything
}

void Arena::pin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  bind(block);
  if (block.lost) throw UsageError(format_address(address) + " has lost its data in a re-backing that failed");
  if (block.pins++ == 0) backing_->pin(backing_->span_of(block.offset, block.size));
  check_if_told();
}

void Arena::unpin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  if (block.pins == 0) throw UsageError(format_address(address) + " is not pinned");
  if (--block.pins == 0) backing_->unpin(backing_->span_of(block.offset, block.size));
  check_if_told();
}

void Arena::close() {
  if (is_inherited()) return;
  std::vector<std::shared_ptr<void>> released;  // dropped without the lock
  Lock held = lock(When::kAlways);
  closed_ = true;
  set_fronts();
  streams_.note_end_of_captures();  // as far as they matter here
  const Relaxed relaxed(device_);
  trim_to(0, held);
  released = tidy_streams();
}

void Arena::trim() {
  std::vector<std::shared_ptr<void>> released;  // dropped without the lock
  Lock held = lock();
  if (observer_) tell({EventKind::kTrim});
  const Relaxed relaxed(device_);
  trim_to(settings_.reserve, held);
  released = tidy_streams();
}

void Arena::compact(const Still& still) {
  Lock held = lock();
  constexpr const char* kCaptured = "a stream is being captured: nothing can be moved until it ends";
  if (streams_.any_capturing()) throw UsageError(kCaptured);
  ask_before_growing(Request{}, held);
  check_still_open(held);
  if (observer_) tell({EventKind::kCompact});
  const Relaxed relaxed(device_);
  empty_fronts();
  if (!synchronize_now()) throw UsageError(kCaptured);
  if (still && !still()) throw UsageError("another thread has run, which may have given the device work");
  backing_->poll();  // what is idle may be needed in the place of what the device does not give again
  try {
    while (backing_->compactable() > 0 && backing_->reback({})) {
    }
  } catch (const Error&) {
    disown_lost();
    throw;
  }
  trim_to(settings_.reserve, held);
  check_still_open(held);
  const Granules kept = in_granules(settings_.reserve);
  if (backing_->reserved() < kept) backing_->reserve(kept - backing_->reserved(), [this] { return limit(); }, held);
  check_still_open(held);
  tell_reserved();
  set_fronts();
}

// While a stream is being captured nothing is unmapped: what is free then goes back another time. Otherwise what the
// device is about to be done with is waited for, because a caller who gives memory back means that, too.
void Arena::trim_to(Bytes keep, Lock& held, bool may_wait) {
  using namespace std::chrono_literals;
  empty_fronts();
  if (streams_.any_capturing()) return;
  backing_->poll();
  if (backing_->pending() > 0) wait_for_pending(held, may_wait ? 150ms : 300us);
  const Bytes granule = backing_->granule();
  try {
    backing_->trim(round_up(keep, granule) / granule, in_granules(settings_.cap), held);
  } catch (...) {
    moved_.notify_all();
    throw;
  }
  moved_.notify_all();
  backing_->forget_refusal();  // what went back can be had again
  tell_reserved();
  set_fronts();
  check_if_told();
}

void Arena::reserve(Bytes size) {
  Lock held = lock();
  if (observer_) tell({EventKind::kReserve, 0, size});
  const Relaxed relaxed(device_);
  try {
    reserve(size, held);
  } catch (const DriverError& error) {
    if (!fall_back(error, held)) throw;
    reserve(size, held);
  }
}

void Arena::reserve(Bytes size, Lock& held) {
  const Request asked{.size = size, .rounded = round_up(size, kAlignment), .may_reback = true};
  ask_before_growing(asked, held);
  check_still_open(held);
  Granules wanted = in_granules(round_up(size, backing_->granule()));
  if (size <= settings_.cap) wanted = std::min(wanted, in_granules(settings_.cap));
  empty_fronts();
  backing_->forget_refusal();
  if (wanted > limit()) fail(asked, held);
  const bool enough = wanted <= backing_->reserved() ||
                      backing_->reserve(wanted - backing_->reserved(), [this] { return limit(); }, held);
  moved_.notify_all();
  check_still_open(held);
  if (!enough) fail(asked, held);
  settings_.reserve = std::max(settings_.reserve, size);
  note_peak();
  tell_reserved();
  set_fronts();
  check_if_told();
}

void Arena::set_cap(Bytes cap) {
  Lock held = lock();
  backing_->make_room(round_up(cap, backing_->granule()) / backing_->granule());
  settings_.cap = cap;
  if (observer_) tell({EventKind::kSetCap, 0, cap});
  set_fronts();
  if (backing_->reserved() <= in_granules(cap)) return;
  const Relaxed relaxed(device_);
  trim_to(cap, held);
}

}  // namespace arena
