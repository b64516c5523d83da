// What a request does: it takes what a front keeps or a gap that is backed, or makes an effort, or fails.
//
// The order of choice: memory that was last used on the same stream, or whose users are known to be done; new memory,
// while the cap allows; only then memory that another stream may still be using, behind a wait on the device.
#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_set>

#include "base/units.hpp"
#include "core/arena.hpp"
#include "core/entered.hpp"

namespace arena {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestWait{3};   // for others who are giving or taking memory, or free more and more
constexpr std::chrono::seconds kLongestWork{60};  // that was queued: a device that waits for the host never gets done
constexpr std::chrono::milliseconds kLongestBrief{1};  // a wait in which the whole device is not waited for
constexpr std::chrono::microseconds kFirstSleep{20}, kLongestSleep{1000};
constexpr int kPatience = 128;            // rounds in which others may come in between
constexpr std::uint64_t kSerials = 4096;  // for a front, at a time
constexpr int kRecordsForWait = 64;       // events behind frees that are worth it because one was waited for
constexpr int kMostRecords = 4096;
constexpr int kMostGranules = 1024;  // looked at for a place that nobody else uses

}  // namespace

// Only the legacy default stream can neither be captured nor be another one by now.
Arena::Call Arena::call(Bytes size, cu::Stream stream, Line line) const {
  if (stream != nullptr && stream != cu::legacy_stream()) return call_on_stream(size, stream, line);
  const StreamKey key{cu::legacy_stream(), 0};
  const Bytes rounded = block_size(size);
  Front* front = fronts_.find(key);
  return {size, rounded, key, front, line, front != nullptr && front->seems_to_have(rounded), std::nullopt};
}

Arena::Call Arena::call_on_stream(Bytes size, cu::Stream stream, Line line) const {
  StreamKey key = is_default(stream) ? default_key(stream) : StreamKey{stream, 0};
  Front* front = fronts_.find(key);
  if (front == nullptr && !is_default(stream)) {
    key = borrowed_key(device_, stream);
    front = fronts_.find(key);
  }
  const std::optional<std::uint64_t> capture = device_.capture_of(stream);
  const bool capturing = capture.has_value();
  const Bytes rounded = block_size(size);
  const bool may_be_kept = !capturing && front != nullptr && front->seems_to_have(rounded);
  return {size, rounded, key, front, line, may_be_kept, capture};
}

Arena::Request Arena::request(const Call& call, bool may_reback, bool is_last) {
  Request wanted{.size = call.size,
                 .rounded = call.rounded,
                 .line = call.line,
                 .may_reback = may_reback,
                 .capture = call.capture,
                 .is_last = is_last};
  if (call.front != nullptr && call.front->serves(call.stream)) {
    wanted.front = call.front;
    wanted.stream = call.front->index();
  } else {
    wanted.stream = streams_.index(call.stream);
    const StreamKey key = streams_.key(wanted.stream);
    const std::uint64_t mark = streams_.next_mark(wanted.stream);
    wanted.front = &fronts_.of(wanted.stream, key, mark, streams_.owner(wanted.stream));
  }
  if (is_any_entered()) {
    wanted.scope = current_scope(id_);
    wanted.graph = current_graph(id_);
  }
  if (call.stream.stream != cu::legacy_stream()) note_capture(wanted);
  wanted.may_be_kept = call.may_be_kept && !wanted.scope && !wanted.graph;  // blocks that are kept know of neither
  return wanted;
}

void Arena::check_budget(const Request& wanted, Lock& held) {
  if (!wanted.scope) return;
  const Scope* scope = wanted.scope->exceeded_by(wanted.rounded);
  if (scope == nullptr) return;
  const Bytes left = round_down(wanted.scope->left_in_all(), kAlignment);
  fail(wanted, held, "budget of scope " + scope->name() + " reached", {.now = left, .by_moving = left});
}

bool Arena::must_wait(const Request& wanted, Offset offset) const {
  return backing_->must_wait(user_of(wanted), backing_->span_of(offset, wanted.rounded), gaps_.marks_at(offset));
}

std::optional<Place> Arena::best_place(Bytes rounded) const {
  const std::optional<Place> place = gaps_.find(rounded);
  if (!place || place->new_granules == 0 || moves_.load(std::memory_order_relaxed)) return place;
  return backing_->best_place(rounded, *place, in_granules(settings_.cap));
}

bool Arena::is_wasteful(const Place& place, Span span) const {
  if (place.new_granules == 0 || moves_.load(std::memory_order_relaxed)) return false;
  return backing_->is_wasteful(span, in_granules(settings_.cap));
}

std::optional<Place> Arena::find_hit(const Request& wanted) const {
  std::optional<Place> place = gaps_.find(wanted.rounded);
  if (!place) return std::nullopt;
  const bool may_do_better = place->new_granules > 0 && !moves_.load(std::memory_order_relaxed);
  if (may_do_better) place = backing_->best_place(wanted.rounded, *place, in_granules(settings_.cap));
  const Span span = backing_->span_of(place->offset, wanted.rounded);
  if (!backing_->is_backed(span)) return std::nullopt;
  if (may_do_better && is_wasteful(*place, span)) return std::nullopt;
  if (backing_->must_wait(wanted.stream, span, gaps_.marks_of(*place))) return std::nullopt;
  return place;
}

Block& Arena::allocate(Bytes size, cu::Stream stream, bool may_reback, Line line, bool is_last, const Still& still) {
  check_process();
  const Call asked = call(size, stream, line);
  if (Block* block = take_directly(asked)) return *block;
  return allocate_with_lock(asked, may_reback, is_last, still);
}

Block& Arena::allocate_with_lock(const Call& asked, bool may_reback, bool is_last, const Still& still) {
  Lock held = lock();
  if (streams_.are_many()) tidy(held);
  Request wanted = request(asked, may_reback, is_last);
  if (still) wanted.still = &still;
  check_budget(wanted, held);
  if (wanted.graph) {
    if (Block* block = take_from_graph(wanted)) return *block;
  }
  if (!wanted.capture) {
    if (Block* block = take_hit(wanted)) return *block;
  }
  const Streams::Visit visit(streams_, wanted.stream);
  Block& block = allocate_slowly(wanted, held);
  if (is_over_limit()) {  // what could not go when the cap was lowered may go now
    const Relaxed relaxed(device_);
    quietly([&] { trim_to(settings_.reserve, held, false); });
  }
  tell_reserved();
  set_fronts();
  return block;
}

// A stream that is new here takes the long way, in which its owner may be kept.
Block* Arena::try_allocate(Bytes size, cu::Stream stream, Line line) {
  if (is_inherited()) return nullptr;
  const Call asked = call(size, stream, line);
  if (asked.front == nullptr) return nullptr;
  if (Block* block = take_directly(asked)) return block;
  return try_allocate_with_lock(asked);
}

// The same for an owner that is kept already: by that alone a number is known to be still the same stream's.
Block* Arena::try_allocate(Bytes size, cu::Stream stream, const void* owner, Line line) {
  if (is_inherited()) return nullptr;
  const Front* front = fronts_.find({stream, 0});
  if (front == nullptr || !front->is_owned_by(owner)) return nullptr;
  const Call asked = call(size, stream, line);
  if (asked.front != front) return nullptr;
  if (Block* block = take_directly(asked)) return block;
  return try_allocate_with_lock(asked);
}

Block* Arena::try_allocate_with_lock(const Call& asked) {
  const Lock held(mutex_, std::try_to_lock);
  if (!held || asked.capture || is_over_limit() || streams_.are_many()) return nullptr;
  if (!asked.front->serves(asked.stream)) return nullptr;  // let go since it was looked up
  const Request wanted = request(asked, false, true);
  if (wanted.scope && wanted.scope->exceeded_by(wanted.rounded) != nullptr) return nullptr;
  if (wanted.graph) {
    if (Block* block = take_from_graph(wanted)) return block;
  }
  return take_hit(wanted);
}

Block& Arena::allocate_slowly(const Request& wanted, Lock& held) {
  const Relaxed relaxed(device_);
  try {
    return allocate_or_fail(wanted, held);
  } catch (const DriverError& error) {
    if (!fall_back(error, held)) throw;
    return allocate_or_fail(wanted, held);
  }
}

Block& Arena::allocate_or_fail(const Request& wanted, Lock& held) {
  struct Tell {
    std::condition_variable_any& moved;
    ~Tell() { moved.notify_all(); }
  } const tell{moved_};
  ask_before_growing(wanted, held);
  if (wanted.capture) ask_device(wanted, held);
  check_still_open(held);
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
  fail(wanted, held, {}, {.now = passes, .by_moving = passes});
}

// A place that is backed and whose last users are this stream, or are done. Not looked for everywhere: a request takes
// no longer because there are many gaps.
std::optional<Place> Arena::find_unshared(const Request& wanted) const {
  std::optional<Place> found;
  int left = kMostGranules;
  gaps_.each_that_holds(wanted.rounded, [&](const Gap& gap, std::uint32_t index) {
    if (const auto offset = backing_->find_unshared(user_of(wanted), gap, wanted.rounded, left)) {
      found = Place{.offset = *offset, .gap = index};
    }
    return found || left == 0;
  });
  return found;
}

// The best place of a request, if that is backed. What lies on aliases may be large enough only as long as they are there.
std::optional<Place> Arena::find_backed(Bytes rounded) const {
  std::optional<Place> place = best_place(rounded);
  if (place && backing_->is_backed(backing_->span_of(place->offset, rounded))) return place;
  if (backing_->lent() == 0 || backing_->largest_free() < rounded) return std::nullopt;
  place = backing_->find_mapped(rounded);
  return backing_->is_backed(backing_->span_of(place->offset, rounded)) ? place : std::nullopt;
}

// The best place is in use by other streams, on the device: another, or new memory, is better than to wait for them.
Block* Arena::take_shared(const Request& wanted, const Demand& demand, Lock& held) {
  if (const std::optional<Place> place = find_unshared(wanted)) return &hand_out(place->offset, wanted);
  if (const std::optional<Offset> offset = back_anew(demand, held)) return &hand_out(*offset, wanted);
  const std::optional<Place> place = find_backed(wanted.rounded);  // again: others may have come in between
  if (!place) return nullptr;
  return order(wanted, place->offset, held) ? &hand_out(place->offset, wanted) : nullptr;
}

// Where memory is scarce, what would add much to what is in use is put together instead from what is free there.
Block* Arena::take_lent(const Request& wanted, Demand demand, const std::function<bool()>& may_unmap, Lock& held) {
  if (!demand.place || !demand.may_lend) return nullptr;
  if (!is_wasteful(*demand.place, backing_->span_of(demand.place->offset, demand.size))) return nullptr;
  if (!backing_->find_better(demand)) return nullptr;
  demand.may_unmap = may_unmap;
  const std::optional<Offset> offset = back(demand, Effort::kAtOnce, held);
  return offset && order(wanted, *offset, held) ? &hand_out(*offset, wanted) : nullptr;
}

// Looks for a place again each time: while the lock was not held, another thread may have been here. What others freed
// while it waited is waited for in turn, but not for ever: they may give the device more work than it gets done.
Block* Arena::try_efforts(const Request& wanted, Lock& held) {
  static constexpr Effort kEfforts[] = {Effort::kAtOnce, Effort::kPoll, Effort::kWait, Effort::kRelease,
                                        Effort::kReback};
  constexpr std::size_t kWait = 2;
  std::size_t step = 0;
  std::optional<steady_clock::time_point> deadline;  // after the first wait
  for (int round = 0; round < kPatience && step < std::size(kEfforts); ++round) {
    empty_fronts();
    Demand demand{
        .size = wanted.rounded, .place = best_place(wanted.rounded), .may_lend = !wanted.may_reback && !moves_};
    if (settings_.upstream) demand.used.add(streams_.mark(wanted.stream));  // it may know of this stream alone
    if (wanted.capture) return &allocate_in_capture(wanted, demand, held);
    const std::function<bool()> may_unmap = [this, known = std::optional<bool>()]() mutable {
      if (!known) known = !streams_.any_capturing();
      return *known;
    };
    if (Block* block = take_lent(wanted, demand, may_unmap, held)) return block;
    // What is there, if its users are done by now.
    if (demand.place && must_wait(wanted, demand.place->offset)) {
      streams_.poll(gaps_.marks_of(*demand.place), is_near_cap() ? Means::kContexts : Means::kStreams);
    }
    if (const std::optional<Place> place = find_backed(wanted.rounded)) {
      if (!must_wait(wanted, place->offset)) return &hand_out(place->offset, wanted);
      if (Block* block = take_shared(wanted, demand, held)) return block;
      check_still_open(held);
      continue;
    }
    if (backing_->recall(may_unmap)) continue;
    // A device that has refused memory has less than the cap allows.
    if (backing_->was_refused() && !settings_.upstream && !wanted.has_asked) {
      ask_device(wanted, held);
      check_still_open(held);
      continue;
    }
    const Granules most = backing_->was_refused() && !settings_.upstream ? reach_with(device_free()) : reach();
    if (!backing_->can_hold(demand, most, false)) {
      if (!backing_->can_hold(demand, most, true)) return nullptr;
      if (!wanted.may_reback) fail(wanted, held, kNotAllowed);
    }
    if (step == 0 && demand.place && must_wait(wanted, demand.place->offset)) {  // at its edges
      if (const std::optional<Offset> offset = back_anew(demand, held)) return &hand_out(*offset, wanted);
    }
    const bool is_patient = deadline && steady_clock::now() < *deadline;
    if (kEfforts[step] == Effort::kReback && backing_->pending() > 0 && is_patient) step = kWait;
    const Effort effort = kEfforts[step++];
    demand.may_unmap = may_unmap;
    if (effort == Effort::kReback) {
      if (!demand.may_unmap()) fail(wanted, held, kCapturing);
      if (!wanted.may_reback || backing_->compactable() == 0) return nullptr;
      if (!synchronize_now()) fail(wanted, held, kCapturing);
      if (wanted.still != nullptr && !(*wanted.still)()) return try_without_moving(wanted, held);
      backing_->poll();
    }
    const std::optional<Offset> offset = back(demand, effort, held);
    check_still_open(held);
    if (effort == Effort::kWait && !deadline) deadline = steady_clock::now() + kLongestWait;
    if (offset && order(wanted, *offset, held)) return &hand_out(*offset, wanted);
  }
  return nullptr;
}

Block* Arena::try_without_moving(Request wanted, Lock& held) {
  wanted.may_reback = false;
  wanted.still = nullptr;
  expect_moving(false);
  return try_efforts(wanted, held);
}

std::optional<Offset> Arena::back(const Demand& demand, Effort effort, Lock& held) {
  if (effort == Effort::kWait) {
    wait_for_pending(held, kLongestWork);
    return std::nullopt;
  }
  try {
    return backing_->back(demand, [this] { return limit(); }, effort, held);
  } catch (const Error&) {
    disown_lost();
    throw;
  }
}

std::optional<Offset> Arena::back_anew(const Demand& demand, Lock& held) {
  const std::optional<Offset> offset = backing_->back_anew(demand, [this] { return limit(); }, held);
  check_still_open(held);
  return offset;
}

// Makes the request's stream wait for the last users of a place. False if the lock was let go meanwhile.
bool Arena::order(const Request& wanted, Offset offset, Lock& held) {
  if (!must_wait(wanted, offset)) return true;
  const Marks marks = backing_->marks_in(backing_->span_of(offset, wanted.rounded), gaps_.marks_at(offset));
  streams_.poll(marks, Means::kContexts);
  if (streams_.order(wanted.stream, marks)) {
    records_left_ = std::min(records_left_ + kRecordsForWait, kMostRecords);
    return true;
  }
  if (device_.can_record_context() || !wait_for_device(held))
    fail(wanted, held, kCapturing);  // a capture is in the way
  return false;
}

// Where memory is scarce, it is worth to ask whole contexts which of it is done.
bool Arena::is_near_cap() const {
  constexpr Granules kShare = 6;
  const Granules most = in_granules(settings_.cap);
  return kShare * (most - std::min(most, backing_->reserved())) < most;
}

// Other threads may free more meanwhile. A device that waits for this thread would never be done.
void Arena::wait_for_pending(Lock& held, std::chrono::nanoseconds longest) {
  const auto deadline = steady_clock::now() + longest;
  std::chrono::nanoseconds sleep = kFirstSleep;
  for (const Marks marks = backing_->pending_marks(); !marks.empty();) {
    if (!streams_.can_tell(marks, Means::kContexts)) {
      // A capture is in the way, or the driver is too old for events of whole contexts.
      if (!device_.can_record_context() && longest >= kLongestBrief) wait_for_device(held);
      break;
    }
    streams_.poll(marks, Means::kContexts);
    if (std::all_of(marks.begin(), marks.end(), [&](Mark mark) { return streams_.reached(mark); })) break;
    if (steady_clock::now() >= deadline) break;
    const Unlocked unlocked(held);
    std::this_thread::sleep_for(sleep);
    sleep = std::min<std::chrono::nanoseconds>(2 * sleep, kLongestSleep);
  }
  backing_->poll();
}

// False if a stream is being captured, which would not survive it.
bool Arena::wait_for_device(Lock& held) {
  if (streams_.any_capturing()) return false;
  const Streams::Progress progress = streams_.progress();
  bool is_done = false;
  {
    const Unlocked unlocked(held);
    is_done = synchronize_all(progress);
  }
  if (is_done) streams_.finish(progress);
  return is_done;
}

// The same with the lock, for callers who may let nobody in, because they are about to move or unmap what is live: other
// devices may be using that, too.
bool Arena::synchronize_now() {
  const Streams::Progress progress = streams_.progress();
  if (!synchronize_all(progress) || !device_.synchronize_others()) return false;
  streams_.finish(progress);
  return true;
}

// False if a capture, which nobody knew of, does not allow it.
bool Arena::synchronize_all(const Streams::Progress& progress) const {
  const auto synchronize = [&](const auto& other) { return device_.synchronize(other->get()); };
  return device_.synchronize() && std::all_of(progress.others.begin(), progress.others.end(), synchronize);
}

void Arena::tidy(Lock& held) {
  {
    std::vector<std::shared_ptr<void>> released = tidy_streams();
    const Unlocked unlocked(held);
    released.clear();
  }
  check_still_open(held);
}

// Lets go of streams that are done and have no blocks. What owned them is to be dropped without the lock.
std::vector<std::shared_ptr<void>> Arena::tidy_streams() {
  constexpr std::size_t kVeryMany = 512;
  const Relaxed relaxed(device_);
  empty_fronts();
  streams_.poll_all(streams_.count() < kVeryMany ? Means::kStreams : Means::kContexts);
  std::unordered_set<StreamIndex> used;
  blocks_.each([&](const Block& block) {
    used.insert(block.stream);
    used.insert(block.others.begin(), block.others.end());
  });
  for (const auto& graph : graphs_) {
    for (const auto& [offset, piece] : graph->pieces()) used.insert(piece.order.stream);
  }
  streams_.tidy([&](StreamIndex index) { return used.contains(index); });
  return streams_.take_released();
}

Block& Arena::hand_out(Offset offset, const Request& wanted) {
  if (!gaps_.take(offset, wanted.rounded)) ++splits_;
  return new_block(offset, wanted);
}

Block& Arena::new_block(Offset offset, const Request& wanted, Offset chunk) {
  if (chunk == kNoChunk) backing_->touch(backing_->span_of(offset, wanted.rounded));
  Block& block = blocks_.add(backing_->address_of(offset));
  block.offset = offset;
  block.size = wanted.rounded;
  block.stream = wanted.stream;
  block.handle = streams_.stream(wanted.stream);
  block.front = wanted.front;
  block.ordinary = !wanted.scope && !wanted.graph;
  if (wanted.scope) {
    block.scope = wanted.scope;
    wanted.scope->add(wanted.rounded);
  }
  if (wanted.graph) give_chunk(block, wanted, chunk);
  start(block, wanted, true);
  return block;
}

// A block comes into a user's hands.
void Arena::start(Block& block, const Request& wanted, bool is_new) {
  Front& front = *wanted.front;
  Tally& tally = tallies_.mine();
  Block* dropped = nullptr;
  const auto begin = [&] {
    if (is_new && block.ordinary) dropped = front.miss(wanted.rounded);
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
