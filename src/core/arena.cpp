#include "core/arena.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/units.hpp"
#include "core/process.hpp"
#include "core/stitched.hpp"

namespace arena {
namespace {

constexpr const char* kClosed = "the arena is closed: make another one to allocate from";
constexpr Bytes kLargestRequest = Bytes{1} << 46;

std::string format_address(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Plain memory from the device itself.
PlainSource from_device(const Device& device) {
  return [&device](Bytes size) -> std::optional<PlainMemory> {
    const std::optional<std::uint64_t> address = device.allocate(size);
    if (!address) return std::nullopt;
    return PlainMemory{*address, [&device, address = *address] { device.deallocate(address); }};
  };
}

std::unique_ptr<Backing> make_backing(const Device& device, Streams& streams, Gaps& gaps, const ArenaSettings& settings,
                                      bool plain) {
  const Bytes granule = plain ? Plain::kUnit : device.granule();
  const Granules growth = std::max<Granules>(1, settings.growth / granule);
  if (!plain) return std::make_unique<Stitched>(device, streams, gaps, growth);
  PlainSource source = settings.upstream ? settings.upstream : from_device(device);
  return std::make_unique<Plain>(device, streams, gaps, growth, std::move(source));
}

}  // namespace

Arena::Arena(std::shared_ptr<const Driver> driver, int device, ArenaSettings settings)
    : device_(std::move(driver), device),
      settings_(std::move(settings)),
      plain_(settings_.upstream || !settings_.virtual_memory || !device_.virtual_memory()),
      born_(forks()),
      streams_(device_),
      gaps_(plain_ ? Plain::kUnit : device_.granule()),
      backing_(make_backing(device_, streams_, gaps_, settings_, plain_)) {
  if (settings_.reserve > 0) reserve(settings_.reserve);
}

Arena::~Arena() {
  try {
    if (!streams_.any_capturing()) {  // a capture would not survive the wait
      device_.synchronize();
      return;
    }
  } catch (const Error&) {
  }
  // The device may be using the memory: losing it is safe, unmapping it is not.
  backing_->abandon();
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

void Arena::synchronize() {
  {
    const Lock held = lock(When::kAlways);
    if (streams_.any_capturing()) return;
  }
  device_.synchronize();
}

// How many granules may be reserved now.
Granules Arena::limit() const {
  return settings_.headroom > 0 ? limit_with(device_.free()) : in_granules(settings_.cap);
}

Granules Arena::limit_with(Bytes device_free) const {
  const Bytes room = device_free - std::min(device_free, settings_.headroom);
  return in_granules(std::min(settings_.cap, backing_->reserved() * backing_->granule() + room));
}

Arena::Request Arena::request(Bytes size, cu::Stream stream, Line line) {
  const Bytes rounded = std::max(kAlignment, round_up(std::min(size, kLargestRequest), kAlignment));
  return {size, rounded, streams_.index(stream), current_scope(this), line};
}

void Arena::check_budget(const Request& request) {
  if (!request.scope) return;
  const Scope* scope = request.scope->exceeded_by(request.rounded);
  if (scope == nullptr) return;
  fail(request.size, "budget of scope " + scope->name() + " reached", scope->left());
}

std::optional<Offset> Arena::find_hit(const Request& request) const {
  const std::optional<Place> place = gaps_.find(request.rounded);
  if (!place || !backing_->is_backed(backing_->span_of(place->offset, request.rounded))) return std::nullopt;
  if (streams_.must_wait(request.stream, gaps_.marks_at(place->offset))) return std::nullopt;
  return place->offset;
}

std::uint64_t Arena::allocate(Bytes size, cu::Stream stream, bool may_reback, Line line) {
  Lock held = lock();
  const Request wanted = request(size, stream, line);
  check_budget(wanted);
  if (const std::optional<Offset> offset = find_hit(wanted)) {
    ++hits_;
    return hand_out(*offset, wanted);
  }
  return allocate_slowly(wanted, may_reback, held);
}

std::optional<std::uint64_t> Arena::try_allocate(Bytes size, cu::Stream stream, Line line) {
  if (is_inherited()) return std::nullopt;
  const Lock held(mutex_, std::try_to_lock);
  if (!held || closed_) return std::nullopt;
  const Request wanted = request(size, stream, line);
  if (wanted.scope && wanted.scope->exceeded_by(wanted.rounded) != nullptr) return std::nullopt;
  const std::optional<Offset> offset = find_hit(wanted);
  if (!offset) return std::nullopt;
  ++hits_;
  return hand_out(*offset, wanted);
}

std::uint64_t Arena::allocate_slowly(const Request& wanted, bool may_reback, Lock& held) {
  const Relaxed relaxed(device_);
  using enum Effort;
  for (const Effort effort : {kAtOnce, kPoll, kWait, kRelease, kReback}) {
    // Looked for anew each time: while the lock was not held, another thread may have been here.
    const std::optional<Place> place = gaps_.find(wanted.rounded);
    const Granules most = limit();
    const Span span = place ? backing_->span_of(place->offset, wanted.rounded) : Span{};
    const bool is_backed = place && backing_->is_backed(span);
    if (streams_.any_capturing()) {
      // Nothing may be unmapped, no event asked for, and no work outside waited for: new memory will do, or what was
      // used and freed by the same stream.
      const bool waits = place && streams_.must_wait(wanted.stream, gaps_.marks_at(place->offset));
      const auto offset = waits || !device_.can_relax() || !backing_->could_hold(place, wanted.rounded, most)
                              ? std::nullopt
                              : backing_->back_anew(place, wanted.rounded, most, held);
      if (!offset) fail(wanted.size, "a stream is being captured");
      return hand_out(*offset, wanted);
    }
    if (is_backed) return hand_out(place->offset, wanted);
    if (!backing_->could_hold(place, wanted.rounded, most)) break;
    if (effort == kReback && backing_->compactable() > 0 && !may_reback) fail(wanted.size, "re-backing not allowed");
    if (const auto offset = back(wanted, place, effort, held)) return hand_out(*offset, wanted);
  }
  fail(wanted.size, why_full(wanted.rounded));
}

std::optional<Offset> Arena::back(const Request& wanted, const std::optional<Place>& place, Effort effort, Lock& held) {
  if (effort == Effort::kWait) {
    wait_for_pending(held);
    return std::nullopt;
  }
  if (effort == Effort::kReback && backing_->compactable() > 0) {
    device_.synchronize();
    backing_->poll();
  }
  return backing_->back(place, wanted.rounded, limit(), effort, held);
}

// Other threads may free more meanwhile; a few rounds are enough, and bounded.
void Arena::wait_for_pending(Lock& held) {
  for (int round = 0; round < 4 && backing_->pending() > 0; ++round) {
    const std::vector<cu::Event> events = streams_.events_after(backing_->pending_marks());
    held.unlock();
    for (const cu::Event event : events) device_.synchronize(event);
    held.lock();
    backing_->poll();
  }
  if (closed_) throw UsageError(kClosed);
}

std::uint64_t Arena::hand_out(Offset offset, const Request& wanted) {
  const Span span = backing_->span_of(offset, wanted.rounded);
  const bool is_whole = gaps_.is_whole(offset, wanted.rounded);
  const Marks marks = gaps_.take(offset, wanted.rounded);
  backing_->touch(span);
  try {
    streams_.order(wanted.stream, marks);
  } catch (const Error&) {  // nobody has it, then
    backing_->leave(span, marks);
    gaps_.add({offset, offset + wanted.rounded, marks});
    throw;
  }
  const std::uint64_t address = backing_->address_of(offset);
  Block block{offset, wanted.rounded, wanted.size, wanted.stream};
  block.scope = wanted.scope;
  block.serial = allocations_;
  block.line = wanted.line;
  if (wanted.line != 0) block.born = now();
  blocks_.emplace(address, std::move(block));
  if (wanted.scope) wanted.scope->add(wanted.rounded);
  requested_ += wanted.size;
  live_ += wanted.rounded;
  ++allocations_;
  if (!is_whole) ++splits_;
  peak_requested_ = std::max(peak_requested_, requested_);
  peak_live_ = std::max(peak_live_, live_);
  if (backing_->reserved() * backing_->granule() > peak_.stats.reserved) note_peak();
  check_in_debug();
  return address;
}

std::unordered_map<std::uint64_t, Block>::iterator Arena::block_at(std::uint64_t address) {
  const auto it = blocks_.find(address);
  if (it != blocks_.end()) return it;
  throw UsageError(format_address(address) + (backing_->holds(address)
                                                  ? " is not the beginning of a live block; was it freed twice?"
                                                  : " is not an address of this arena"));
}

bool Arena::is_over_limit() const { return closed_ || backing_->reserved() > in_granules(settings_.cap); }

void Arena::free(std::uint64_t address) {
  if (is_inherited()) return;  // the memory is the parent's
  Lock held = lock(When::kAlways);
  take_back(block_at(address));
  if (!is_over_limit()) return;
  const Relaxed relaxed(device_);
  trim_to(closed_ ? 0 : settings_.reserve, held);
}

bool Arena::try_free(std::uint64_t address) {
  if (is_inherited()) return true;
  const Lock held(mutex_, std::try_to_lock);
  if (!held || is_over_limit()) return false;
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return false;
  take_back(it);
  return true;
}

void Arena::take_back(std::unordered_map<std::uint64_t, Block>::iterator it) {
  const Block block = std::move(it->second);
  blocks_.erase(it);
  Marks marks;
  marks.add(streams_.mark(block.stream));
  for (const StreamIndex other : block.others) marks.add(streams_.mark(other));
  const Span span = backing_->span_of(block.offset, block.size);
  if (block.pins > 0) backing_->unpin(span);
  backing_->leave(span, marks);
  gaps_.add({block.offset, block.offset + block.size, marks});
  if (block.scope) block.scope->remove(block.size);
  requested_ -= block.requested;
  live_ -= block.size;
  check_in_debug();
}

void Arena::record_stream(std::uint64_t address, cu::Stream stream) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address)->second;
  const StreamIndex index = streams_.index(stream);
  if (index == block.stream || std::find(block.others.begin(), block.others.end(), index) != block.others.end()) return;
  block.others.push_back(index);
}

void Arena::pin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address)->second;
  if (block.pins++ == 0) backing_->pin(backing_->span_of(block.offset, block.size));
  check_in_debug();
}

void Arena::unpin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address)->second;
  if (block.pins == 0) throw UsageError(format_address(address) + " is not pinned");
  if (--block.pins == 0) backing_->unpin(backing_->span_of(block.offset, block.size));
  check_in_debug();
}

void Arena::close() {
  if (is_inherited()) return;
  Lock held = lock(When::kAlways);
  closed_ = true;
  const Relaxed relaxed(device_);
  trim_to(0, held);
}

void Arena::trim() {
  Lock held = lock();
  const Relaxed relaxed(device_);
  trim_to(settings_.reserve, held);
}

void Arena::compact() {
  Lock held = lock();
  if (streams_.any_capturing()) throw UsageError("a stream is being captured: nothing can be moved meanwhile");
  const Relaxed relaxed(device_);
  device_.synchronize();
  while (backing_->compactable() > 0 && backing_->reback({})) {
  }
  trim_to(settings_.reserve, held);
}

// While a stream is being captured nothing is unmapped, and nothing asked: what is free then goes back another time.
void Arena::trim_to(Bytes keep, Lock& held) {
  if (streams_.any_capturing()) return;
  const Bytes granule = backing_->granule();
  backing_->trim(round_up(keep, granule) / granule, in_granules(settings_.cap), held);
  check_in_debug();
}

void Arena::reserve(Bytes size) {
  Lock held = lock();
  const Relaxed relaxed(device_);
  const Granules wanted = in_granules(round_up(size, backing_->granule()));
  if (wanted > limit()) fail(size, why_full(size));
  settings_.reserve = std::max(settings_.reserve, size);
  if (wanted > backing_->reserved() && !backing_->reserve(wanted - backing_->reserved(), limit(), held)) {
    fail(size, why_full(size));
  }
  check_in_debug();
}

void Arena::set_cap(Bytes cap) {
  Lock held = lock();
  settings_.cap = cap;
  if (backing_->reserved() <= in_granules(cap)) return;
  const Relaxed relaxed(device_);
  trim_to(cap, held);
}

}  // namespace arena
