#include "core/arena.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>

#include "base/units.hpp"
#include "core/process.hpp"
#include "core/stitched.hpp"

namespace arena {
namespace {

constexpr const char* kClosed = "the arena is closed: make another one to allocate from";
constexpr std::chrono::seconds kLongestWait{3};  // for others who are giving or taking memory
constexpr int kPatience = 64;                    // rounds in which others may come in between
constexpr std::uint64_t kSerials = 4096;         // for a front, at a time

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
      plain_(settings_.upstream || !settings_.virtual_memory || !device_.virtual_memory() ||
             !std::has_single_bit(device_.granule())),
      born_(forks()),
      id_(next_id()),
      streams_(device_, [this](StreamIndex stream) { fronts_.forget(stream); }),
      gaps_(plain_ ? Plain::kUnit : device_.granule(), [this](Mark mark) { return streams_.reached(mark); }),
      backing_(make_backing(device_, streams_, gaps_, settings_, plain_)) {
  if (settings_.reserve > 0) reserve(settings_.reserve);
  set_fronts();
}

Arena::~Arena() {
  bool is_done = false;
  insist([&] {
    if (streams_.any_capturing()) return;  // a capture would not survive the wait
    device_.synchronize();
    is_done = true;
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
  // What is on its way is counted as reserved, and the driver counts it as free.
  const Bytes kept = settings_.headroom + backing_->coming() * backing_->granule();
  const Bytes room = device_free - std::min(device_free, kept);
  return in_granules(std::min(settings_.cap, backing_->reserved() * backing_->granule() + room));
}

Arena::Call Arena::call(Bytes size, cu::Stream stream, Line line) const {
  const StreamKey key = key_of(stream);
  const Bytes rounded = block_size(size);
  Front* front = fronts_.find(key);
  return {size, rounded, key, front, line, front != nullptr && front->seems_to_have(rounded)};
}

Arena::Request Arena::request(const Call& call, bool may_reback, bool is_last) {
  Front* front = call.front;
  if (front == nullptr || !front->serves(call.stream)) front = &fronts_.of(streams_.index(call.stream), call.stream);
  auto scope = current_scope(id_);
  const bool may_be_kept = call.may_be_kept && !scope;  // blocks that are kept know of no scope
  return {call.size, call.rounded, front->index(), front,  std::move(scope),
          call.line, may_reback,   may_be_kept,    is_last};
}

void Arena::check_budget(const Request& wanted) {
  if (!wanted.scope) return;
  const Scope* scope = wanted.scope->exceeded_by(wanted.rounded);
  if (scope == nullptr) return;
  const Bytes left = round_down(wanted.scope->left_in_all(), kAlignment);
  fail(wanted, "budget of scope " + scope->name() + " reached", left);
}

std::optional<Place> Arena::find_hit(const Request& request) const {
  const std::optional<Place> place = gaps_.find(request.rounded);
  if (!place || !backing_->is_backed(backing_->span_of(place->offset, request.rounded))) return std::nullopt;
  if (streams_.must_wait(request.stream, gaps_.marks_of(*place))) return std::nullopt;
  return place;
}

Block& Arena::allocate(Bytes size, cu::Stream stream, bool may_reback, Line line, bool is_last) {
  check_process();
  const Call asked = call(size, stream, line);
  if (Block* block = take_directly(asked)) return *block;
  return allocate_with_lock(asked, may_reback, is_last);
}

Block& Arena::allocate_with_lock(const Call& asked, bool may_reback, bool is_last) {
  Lock held = lock();
  if (streams_.are_many()) {
    tidy_streams(held);
    check_still_open(held);
  }
  const Request wanted = request(asked, may_reback, is_last);
  check_budget(wanted);
  if (Block* block = take_hit(wanted)) return *block;
  Block& block = allocate_slowly(wanted, held);
  tell_reserved();
  set_fronts();
  return block;
}

Block* Arena::try_allocate(Bytes size, cu::Stream stream, Line line) {
  if (is_inherited()) return nullptr;
  const Call asked = call(size, stream, line);
  if (Block* block = take_directly(asked)) return block;
  return try_allocate_with_lock(asked);
}

Block* Arena::try_allocate_with_lock(const Call& asked) {
  const Lock held(mutex_, std::try_to_lock);
  if (!held || closed_ || streams_.are_many()) return nullptr;
  const Request wanted = request(asked, false, true);
  if (wanted.scope && wanted.scope->exceeded_by(wanted.rounded) != nullptr) return nullptr;
  return take_hit(wanted);
}

Block& Arena::allocate_slowly(const Request& wanted, Lock& held) {
  const Relaxed relaxed(device_);
  struct Tell {
    std::condition_variable_any& moved;
    ~Tell() { moved.notify_all(); }
  } const tell{moved_};
  backing_->forget_refusal();
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  while (true) {
    if (Block* block = try_efforts(wanted, held)) return *block;
    // Memory that is on its way to or from somebody else's hands may be what a request lacks.
    if (backing_->moving() == 0 || Plain::is_calling()) break;
    if (moved_.wait_until(held, deadline) == std::cv_status::timeout) break;
    check_still_open(held);
  }
  // Who gives memory, and had none, cannot be asked how much there is.
  const Bytes passes = settings_.upstream && backing_->was_refused() ? gaps_.largest_gap() : ~Bytes{0};
  fail(wanted, why_full(wanted.rounded), passes);
}

// Looks for a place anew each time: while the lock was not held, another thread may have been here.
Block* Arena::try_efforts(const Request& wanted, Lock& held) {
  static constexpr Effort kEfforts[] = {Effort::kAtOnce, Effort::kPoll, Effort::kWait, Effort::kRelease,
                                        Effort::kReback};
  std::size_t step = 0;
  for (int round = 0; round < kPatience && step < std::size(kEfforts); ++round) {
    empty_fronts();
    Demand demand{wanted.rounded, gaps_.find(wanted.rounded), {}};
    if (settings_.upstream) demand.used.add(streams_.mark(wanted.stream));  // it may know of this stream alone
    if (streams_.any_capturing()) return &allocate_in_capture(wanted, demand, held);
    const Span span = demand.place ? backing_->span_of(demand.place->offset, wanted.rounded) : Span{};
    if (demand.place && backing_->is_backed(span)) {
      if (order(wanted, demand.place->offset, held)) return &hand_out(demand.place->offset, wanted);
      check_still_open(held);
      continue;
    }
    const bool is_bare = demand.place && backing_->is_bare(span);
    if (!backing_->could_hold(demand, limit())) return nullptr;
    const Effort effort = kEfforts[step++];
    if (effort == Effort::kReback && backing_->compactable() == 0) return nullptr;
    if (effort == Effort::kReback && !wanted.may_reback) fail(wanted, "re-backing not allowed");
    const std::optional<Offset> offset = back(demand, effort, held);
    check_still_open(held);
    if (!offset) continue;
    // What was backed nowhere before has no last user.
    if (is_bare || order(wanted, *offset, held)) return &hand_out(*offset, wanted);
  }
  return nullptr;
}

// Nothing may be unmapped, no event asked for, and no work outside waited for: new memory will do, or what was used and
// freed by the same stream.
Block& Arena::allocate_in_capture(const Request& wanted, Demand demand, Lock& held) {
  if (demand.place) {
    const bool must_wait = streams_.must_wait(wanted.stream, gaps_.marks_at(demand.place->offset));
    const Span span = backing_->span_of(demand.place->offset, wanted.rounded);
    if (!must_wait && backing_->is_backed(span)) return hand_out(demand.place->offset, wanted);
    if (must_wait && !backing_->is_bare(span)) demand.place.reset();
  }
  std::optional<Offset> offset;
  if (device_.can_relax()) offset = backing_->back_anew(demand, [this] { return limit(); }, held);
  check_still_open(held);
  if (offset) return hand_out(*offset, wanted);
  const Granules most = limit(), taken = backing_->reserved() - backing_->spare();
  fail(wanted, "a stream is being captured", (most > taken ? most - taken : 0) * backing_->granule());
}

std::optional<Offset> Arena::back(const Demand& demand, Effort effort, Lock& held) {
  if (effort == Effort::kWait) {
    wait_for_pending(held);
    return std::nullopt;
  }
  try {
    if (effort == Effort::kReback) {
      device_.synchronize();
      streams_.finish(streams_.frees());
      backing_->poll();
    }
    return backing_->back(demand, [this] { return limit(); }, effort, held);
  } catch (const Error&) {
    disown_lost();
    throw;
  }
}

// Makes the request's stream wait for the last users of a place. False if the lock was let go meanwhile.
bool Arena::order(const Request& wanted, Offset offset, Lock& held) {
  const Marks marks = gaps_.marks_at(offset);
  if (streams_.order(wanted.stream, marks)) return true;
  wait_for_device(held);
  return false;
}

// Other threads may free more meanwhile.
void Arena::wait_for_pending(Lock& held) {
  for (int round = 0; round < kPatience && backing_->pending() > 0 && !closed_; ++round) {
    const Marks marks = backing_->pending_marks();
    if (!streams_.poll(marks)) {
      wait_for_device(held);
    } else {
      const std::vector<cu::Event> events = streams_.events_after(marks);
      const Unlocked unlocked(held);
      for (const cu::Event event : events) device_.synchronize(event);
    }
    backing_->poll();
  }
}

void Arena::wait_for_device(Lock& held) {
  const std::vector<std::uint64_t> frees = streams_.frees();
  {
    const Unlocked unlocked(held);
    device_.synchronize();
  }
  streams_.finish(frees);
}

void Arena::tidy_streams(Lock& held) {
  if (streams_.any_capturing()) return streams_.postpone_tidying();
  const std::vector<StreamIndex> gone = streams_.gone();
  empty_fronts();
  wait_for_device(held);
  streams_.tidy(gone);
}

Block& Arena::hand_out(Offset offset, const Request& wanted) {
  if (!gaps_.take(offset, wanted.rounded)) ++splits_;
  return new_block(offset, wanted);
}

Block& Arena::new_block(Offset offset, const Request& wanted) {
  backing_->touch(backing_->span_of(offset, wanted.rounded));
  Block& block = blocks_.add(backing_->address_of(offset));
  block.offset = offset;
  block.size = wanted.rounded;
  block.stream = wanted.stream;
  block.front = wanted.front;
  block.ordinary = !wanted.scope;
  if (wanted.scope) {
    block.scope = wanted.scope;
    wanted.scope->add(wanted.rounded);
  }
  start(block, wanted, true);
  return block;
}

// A block comes into a user's hands.
void Arena::start(Block& block, const Request& wanted, bool is_new) {
  Front& front = *wanted.front;
  Tally& tally = tallies_.mine();
  Block* dropped = nullptr;
  const auto begin = [&] {
    if (is_new && !wanted.scope) dropped = front.miss(wanted.rounded);
    front.start(block, wanted.size, fronts_.next_serial(front, observer_ ? 1 : kSerials), wanted.line);
  };
  {
    const Fronts::Guard held(fronts_, front);
    if (tally.has_room(wanted.size, wanted.rounded)) {
      tally.add(wanted.size, wanted.rounded);
      begin();
    }
  }
  if (!block.live) {
    const Fronts::Held held(fronts_);
    tallies_.add(tally, wanted.size, wanted.rounded);
    begin();
  }
  while (dropped != nullptr) put_down(*std::exchange(dropped, dropped->next));
  note_peak();
  if (observer_) tell({EventKind::kAllocate, block.serial, wanted.size, wanted.stream, 0, wanted.line});
  check_in_debug();
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
  if (!block.lost) tallies_.mine().remove(block.requested, block.size);
  if (!keep(block)) put_down(block);
  if (observer_) tell({EventKind::kFree, serial});
  check_in_debug();
}

// What is not backed any more is not held either: its bytes leave the account.
void Arena::disown_lost() {
  blocks_.each([&](Block& block) {
    if (block.lost || !backing_->has_lost(backing_->span_of(block.offset, block.size))) return;
    const Fronts::Guard held(fronts_, *block.front);
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
  const StreamIndex index = streams_.index(key_of(stream));
  if (index == block.stream || std::find(block.others.begin(), block.others.end(), index) != block.others.end()) return;
  bind(block);
  block.others.push_back(index);
  if (observer_) tell({EventKind::kRecordStream, block.serial, 0, index});
}

void Arena::pin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  bind(block);
  if (block.lost) throw UsageError(format_address(address) + " has lost its data in a re-backing that failed");
  if (block.pins++ == 0) backing_->pin(backing_->span_of(block.offset, block.size));
  check_in_debug();
}

void Arena::unpin(std::uint64_t address) {
  const Lock held = lock(When::kAlways);
  Block& block = block_at(address);
  if (block.pins == 0) throw UsageError(format_address(address) + " is not pinned");
  if (--block.pins == 0) backing_->unpin(backing_->span_of(block.offset, block.size));
  check_in_debug();
}

void Arena::close() {
  if (is_inherited()) return;
  Lock held = lock(When::kAlways);
  closed_ = true;
  set_fronts();
  const Relaxed relaxed(device_);
  trim_to(0, held);
}

void Arena::trim() {
  Lock held = lock();
  if (observer_) tell({EventKind::kTrim});
  const Relaxed relaxed(device_);
  trim_to(settings_.reserve, held);
}

void Arena::compact() {
  Lock held = lock();
  if (streams_.any_capturing()) throw UsageError("a stream is being captured: nothing can be moved meanwhile");
  if (observer_) tell({EventKind::kCompact});
  const Relaxed relaxed(device_);
  empty_fronts();
  device_.synchronize();
  streams_.finish(streams_.frees());
  try {
    while (backing_->compactable() > 0 && backing_->reback({})) {
    }
  } catch (const Error&) {
    disown_lost();
    throw;
  }
  trim_to(settings_.reserve, held);
  const Granules kept = in_granules(settings_.reserve);
  if (backing_->reserved() < kept) backing_->reserve(kept - backing_->reserved(), [this] { return limit(); }, held);
  tell_reserved();
  set_fronts();
}

// While a stream is being captured nothing is unmapped, and nothing asked: what is free then goes back another time.
void Arena::trim_to(Bytes keep, Lock& held, bool may_wait) {
  empty_fronts();
  if (streams_.any_capturing()) return;
  if (!backing_->poll() && may_wait) wait_for_device(held);
  const Bytes granule = backing_->granule();
  try {
    backing_->trim(round_up(keep, granule) / granule, in_granules(settings_.cap), held);
  } catch (...) {
    moved_.notify_all();
    throw;
  }
  moved_.notify_all();
  tell_reserved();
  set_fronts();
  check_in_debug();
}

void Arena::reserve(Bytes size) {
  Lock held = lock();
  if (observer_) tell({EventKind::kReserve, 0, size});
  const Relaxed relaxed(device_);
  Granules wanted = in_granules(round_up(size, backing_->granule()));
  if (size <= settings_.cap) wanted = std::min(wanted, in_granules(settings_.cap));
  const Request asked{size, round_up(size, kAlignment), 0, nullptr, nullptr, 0, true, false, true};
  empty_fronts();
  backing_->forget_refusal();
  if (wanted > limit()) fail(asked, why_full(size));
  const bool enough = wanted <= backing_->reserved() ||
                      backing_->reserve(wanted - backing_->reserved(), [this] { return limit(); }, held);
  moved_.notify_all();
  check_still_open(held);
  if (!enough) fail(asked, why_full(size));
  settings_.reserve = std::max(settings_.reserve, size);
  note_peak();
  tell_reserved();
  set_fronts();
  check_in_debug();
}

void Arena::set_cap(Bytes cap) {
  Lock held = lock();
  settings_.cap = cap;
  if (observer_) tell({EventKind::kSetCap, 0, cap});
  set_fronts();
  if (backing_->reserved() <= in_granules(cap)) return;
  const Relaxed relaxed(device_);
  trim_to(cap, held);
}

}  // namespace arena
