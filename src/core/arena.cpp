#include "core/arena.hpp"

#include <algorithm>
#include <cstdio>

#include "base/units.hpp"

namespace arena {
namespace {

constexpr Bytes kAddressesPerByte = 8;  // addresses cost nothing, and room to place blocks saves mapping
constexpr const char* kClosed = "the arena is closed: make another one to allocate from";
constexpr Bytes kLargestRequest = Bytes{1} << 46;

std::string format_address(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

Arena::Segment::~Segment() {
  if (abandoned) return;
  try {
    device.free_addresses(address, size);
  } catch (const Error&) {  // the driver is gone, and the addresses with it
  }
}

Arena::Arena(std::shared_ptr<const Driver> driver, int device, const ArenaSettings& settings)
    : device_(std::move(driver), device),
      settings_(settings),
      segment_(device_, round_up(kAddressesPerByte * device_.total(), device_.granule())),
      streams_(device_),
      backing_(device_, streams_, segment_.address, segment_.size / device_.granule(),
               std::max<Granules>(1, settings.growth / device_.granule())),
      gaps_(device_.granule()) {
  gaps_.add({0, segment_.size, {}});
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
  backing_.abandon();
  segment_.abandoned = true;
}

void Arena::synchronize() const {
  {
    const std::lock_guard lock(mutex_);
    if (streams_.any_capturing()) return;
  }
  device_.synchronize();
}

Span Arena::span_of(Offset offset, Bytes size) const {
  const Bytes granule = device_.granule();
  return {offset / granule, (offset + size + granule - 1) / granule};
}

// How many granules may be reserved now.
Granules Arena::limit() const {
  Bytes bytes = settings_.cap;
  if (settings_.headroom > 0) {
    const Bytes free = device_.free(), reserved = backing_.reserved() * device_.granule();
    bytes = std::min(bytes, reserved + (free > settings_.headroom ? free - settings_.headroom : 0));
  }
  return bytes / device_.granule();
}

std::uint64_t Arena::allocate(Bytes size, cu::Stream stream, bool may_reback) {
  std::unique_lock lock(mutex_);
  if (closed_) throw UsageError(kClosed);
  const Bytes rounded = std::max(kAlignment, round_up(std::min(size, kLargestRequest), kAlignment));
  const StreamIndex user = streams_.index(stream);
  using enum Effort;
  for (const Effort effort : {kPlain, kPoll, kWait, kRelease, kReback}) {
    // Looked for anew each time: while the lock was not held, another thread may have been here.
    const std::optional<Place> place = gaps_.find(rounded);
    const Granules most = limit();
    if (!place || backing_.touched() + place->new_granules > most) fail(size, why_full(most));
    const Span span = span_of(place->offset, rounded);
    // Mapping, asking about events or waiting for work outside would break a capture: then only memory will do that
    // needs none of it, such as what was used and freed before the capture began.
    const bool quiet = backing_.is_backed(span) && !streams_.must_wait(user, gaps_.marks_at(place->offset));
    if (!quiet && streams_.any_capturing()) fail(size, "a stream is being captured");
    if (effort == kReback && !may_reback) fail(size, "re-backing not allowed");
    if (!back(span, most, effort, lock)) continue;
    return hand_out(place->offset, rounded, size, user);
  }
  fail(size, why_full(limit()));
}

std::optional<std::uint64_t> Arena::try_allocate(Bytes size, cu::Stream stream) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || closed_ || size > kLargestRequest) return std::nullopt;
  const Bytes rounded = std::max(kAlignment, round_up(size, kAlignment));
  const std::optional<Place> place = gaps_.find(rounded);
  if (!place || !backing_.is_backed(span_of(place->offset, rounded))) return std::nullopt;
  // What is reserved stays as it is, so headroom, which the driver would have to be asked for, does not matter.
  if (backing_.touched() + place->new_granules > settings_.cap / device_.granule()) return std::nullopt;
  const StreamIndex user = streams_.index(stream);
  if (streams_.must_wait(user, gaps_.marks_at(place->offset))) return std::nullopt;
  return hand_out(place->offset, rounded, size, user);
}

bool Arena::back(Span span, Granules most, Effort effort, std::unique_lock<std::mutex>& lock) {
  switch (effort) {
    case Effort::kPlain:
      return backing_.back(span, most);
    case Effort::kPoll:
      backing_.poll();
      return backing_.back(span, most);
    case Effort::kWait: {
      // Other threads may free more meanwhile; a few rounds are enough, and bounded.
      for (int round = 0; round < 4 && backing_.pending() > 0; ++round) {
        const std::vector<cu::Event> events = streams_.events_after(backing_.pending_marks());
        lock.unlock();
        for (const cu::Event event : events) device_.synchronize(event);
        lock.lock();
        backing_.poll();
      }
      if (closed_) throw UsageError(kClosed);
      return false;
    }
    case Effort::kRelease:
      while (!backing_.back(span, most)) {
        if (backing_.release_idle(span.count(), span) == 0) return false;
      }
      return true;
    case Effort::kReback:
      device_.synchronize();
      backing_.poll();
      while (!backing_.back(span, most)) {
        if (!backing_.reback(span)) return false;
      }
      return true;
  }
  return false;
}

std::uint64_t Arena::hand_out(Offset offset, Bytes rounded, Bytes size, StreamIndex user) {
  const Span span = span_of(offset, rounded);
  const Marks marks = gaps_.take(offset, rounded);
  backing_.touch(span);
  try {
    streams_.order(user, marks);
  } catch (const Error&) {  // nobody has it, then
    backing_.leave(span, marks);
    gaps_.add({offset, offset + rounded, marks});
    throw;
  }
  const std::uint64_t address = segment_.address + offset;
  blocks_.emplace(address, Block{offset, rounded, size, user, {}});
  requested_ += size;
  live_ += rounded;
  ++allocations_;
  peak_requested_ = std::max(peak_requested_, requested_);
  peak_live_ = std::max(peak_live_, live_);
  return address;
}

Block& Arena::block_at(std::uint64_t address) {
  const auto it = blocks_.find(address);
  if (it != blocks_.end()) return it->second;
  const bool ours = address - segment_.address < segment_.size;
  throw UsageError(format_address(address) + (ours ? " is not the beginning of a live block; was it freed twice?"
                                                   : " is not an address of this arena"));
}

void Arena::free(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  take_back(address);
  if (closed_ || backing_.reserved() > settings_.cap / device_.granule()) trim_to(closed_ ? 0 : settings_.reserve);
}

bool Arena::try_free(std::uint64_t address) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || closed_ || backing_.reserved() > settings_.cap / device_.granule()) return false;
  take_back(address);
  return true;
}

void Arena::take_back(std::uint64_t address) {
  const Block block = std::move(block_at(address));
  blocks_.erase(address);
  Marks marks;
  marks.add(streams_.mark(block.stream));
  for (const StreamIndex other : block.others) marks.add(streams_.mark(other));
  backing_.leave(span_of(block.offset, block.size), marks);
  gaps_.add({block.offset, block.offset + block.size, marks});
  requested_ -= block.requested;
  live_ -= block.size;
}

void Arena::record_stream(std::uint64_t address, cu::Stream stream) {
  const std::lock_guard lock(mutex_);
  Block& block = block_at(address);
  const StreamIndex index = streams_.index(stream);
  if (index == block.stream || std::find(block.others.begin(), block.others.end(), index) != block.others.end()) return;
  block.others.push_back(index);
}

void Arena::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  trim_to(0);
}

void Arena::trim() {
  const std::lock_guard lock(mutex_);
  trim_to(settings_.reserve);
}

void Arena::compact() {
  const std::lock_guard lock(mutex_);
  if (streams_.any_capturing()) throw UsageError("a stream is being captured: nothing can be moved meanwhile");
  device_.synchronize();
  while (backing_.compactable() > 0 && backing_.reback({})) {
  }
  trim_to(settings_.reserve);
}

// While a stream is being captured nothing is unmapped, and nothing asked: what is free then goes back another time.
void Arena::trim_to(Bytes keep) {
  const Bytes granule = device_.granule();
  if (!streams_.any_capturing()) backing_.trim(round_up(keep, granule) / granule, settings_.cap / granule);
}

void Arena::reserve(Bytes size) {
  const std::lock_guard lock(mutex_);
  const Granules wanted = round_up(size, device_.granule()) / device_.granule();
  if (wanted > limit()) fail(size, why_full(limit()));
  settings_.reserve = std::max(settings_.reserve, size);
  if (wanted > backing_.reserved() && !backing_.reserve(wanted - backing_.reserved(), limit()))
    fail(size, why_full(limit()));
}

void Arena::set_cap(Bytes cap) {
  const std::lock_guard lock(mutex_);
  settings_.cap = cap;
  if (backing_.reserved() > cap / device_.granule()) trim_to(cap);
}

Stats Arena::stats() const {
  const std::lock_guard lock(mutex_);
  return figures();
}

Stats Arena::figures() const {
  const Bytes granule = device_.granule();
  Stats s;
  s.requested = requested_;
  s.live = live_;
  s.reserved = backing_.reserved() * granule;
  s.rounding = live_ - requested_;
  s.pending = backing_.pending() * granule;
  s.releasable = backing_.idle() * granule - s.pending;
  s.spare = backing_.spare() * granule;
  s.stranded = s.reserved - live_ - s.pending - s.releasable - s.spare;
  s.compactable = backing_.compactable() * granule;
  s.cap = settings_.cap;
  s.headroom = settings_.headroom;
  s.device_total = device_.total();
  s.largest = largest();
  s.peak_requested = peak_requested_;
  s.peak_live = peak_live_;
  s.peak_reserved = backing_.peak() * granule;
  s.allocations = allocations_;
  s.maps = backing_.maps();
  s.unmaps = backing_.unmaps();
  s.rebacked = backing_.rebacked();
  s.driver_calls = device_.calls();
  s.waits = streams_.waits();
  return s;
}

Bytes Arena::largest() const {
  const Granules most = limit(), touched = backing_.touched();
  return std::min(gaps_.largest(most > touched ? most - touched : 0), most * device_.granule());
}

const char* Arena::why_full(Granules most) const {
  if (most < settings_.cap / device_.granule()) return "headroom kept";
  return device_.free() < device_.granule() && backing_.reserved() < most ? "device full" : "cap reached";
}

void Arena::fail(Bytes size, const char* verdict) const {
  const Bytes passes = largest();
  throw OutOfMemory("out of memory: " + format_bytes(size) + " asked, " + verdict +
                        "; the largest request that would pass is " + format_bytes(passes),
                    verdict, size, passes, figures());
}

void Arena::validate() const {
  const std::lock_guard lock(mutex_);
  const auto demand = [](bool condition, const std::string& text) {
    if (!condition) throw Error("the arena is inconsistent: " + text);
  };
  demand(gaps_.consistent(), "the index of gaps");
  if (const auto problem = backing_.problem()) demand(false, *problem);
  Bytes requested = 0, live = 0, free = 0;
  for (const auto& [address, block] : blocks_) {
    demand(address == segment_.address + block.offset, "a block's address");
    requested += block.requested;
    live += block.size;
  }
  gaps_.each([&](const Gap& gap) { free += gap.size(); });
  demand(requested == requested_ && live == live_, "the sums over all blocks differ from the running counts");
  demand(live + free == segment_.size, "blocks and gaps do not fill the segment");
}

}  // namespace arena
