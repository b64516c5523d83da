// What a request does: it takes what a front keeps or a gap that is backed, or makes an effort, or fails.
#include <chrono>

#include "base/units.hpp"
#include "core/arena.hpp"

namespace arena {
namespace {

constexpr std::chrono::seconds kLongestWait{3};  // for others who are giving or taking memory, or free more and more
constexpr int kPatience = 128;                   // rounds in which others may come in between
constexpr std::uint64_t kSerials = 4096;         // for a front, at a time

}  // namespace

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

// Looks for a place anew each time: while the lock was not held, another thread may have been here. What others freed
// while it waited is waited for in turn, but not for ever: they may give the device more work than it gets done.
Block* Arena::try_efforts(const Request& wanted, Lock& held) {
  static constexpr Effort kEfforts[] = {Effort::kAtOnce, Effort::kPoll, Effort::kWait, Effort::kRelease,
                                        Effort::kReback};
  constexpr std::size_t kWait = 2;
  std::size_t step = 0;
  std::optional<std::chrono::steady_clock::time_point> deadline;  // after the first wait
  for (int round = 0; round < kPatience && step < std::size(kEfforts); ++round) {
    empty_fronts();
    Demand demand{wanted.rounded, gaps_.find(wanted.rounded), {}};
    if (settings_.upstream) demand.used.add(streams_.mark(wanted.stream));  // it may know of this stream alone
    if (streams_.any_capturing()) return &allocate_in_capture(wanted, demand, held);
    const auto span = [&] { return backing_->span_of(demand.place->offset, wanted.rounded); };
    if (demand.place && backing_->is_backed(span())) {
      if (order(wanted, demand.place->offset, held)) return &hand_out(demand.place->offset, wanted);
      check_still_open(held);
      continue;
    }
    // A device that has refused memory has less than the cap allows.
    const Granules most = backing_->was_refused() && !settings_.upstream ? reach_with(device_free()) : reach();
    if (!backing_->can_hold(demand, most, false)) {
      if (!backing_->can_hold(demand, most, true)) return nullptr;
      if (!wanted.may_reback) fail(wanted, "re-backing not allowed");
    }
    const bool is_bare = demand.place && backing_->is_bare(span());
    const bool is_patient = deadline && std::chrono::steady_clock::now() < *deadline;
    if (kEfforts[step] == Effort::kReback && backing_->pending() > 0 && is_patient) step = kWait;
    const Effort effort = kEfforts[step++];
    if (effort == Effort::kReback && (!wanted.may_reback || backing_->compactable() == 0)) return nullptr;
    const std::optional<Offset> offset = back(demand, effort, held);
    check_still_open(held);
    if (effort == Effort::kWait && !deadline) deadline = std::chrono::steady_clock::now() + kLongestWait;
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
  const Granules most = limit_with(device_free()), taken = backing_->reserved() - backing_->spare();
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
  if (backing_->pending() == 0) return;
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
  const std::vector<Streams::Gone> gone = streams_.gone();
  if (!gone.empty()) {
    empty_fronts();
    wait_for_device(held);
  }
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
  check_if_told();
}

}  // namespace arena
