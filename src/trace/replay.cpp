#include "trace/replay.hpp"

#include <algorithm>

namespace arena {
namespace {

constexpr std::uint32_t kMostStreams = 64;
constexpr std::uint64_t kLegacy = 1;

}  // namespace

Replay::Replay(std::shared_ptr<const Trace> trace, std::shared_ptr<Arena> arena, std::uint64_t every,
               UntrustedMap<Line> lines, Moving moving, std::optional<std::uint64_t> ended_by)
    : trace_(std::move(trace)),
      arena_(std::move(arena)),
      lines_(std::move(lines)),
      every_(std::max<std::uint64_t>(1, every)),
      moving_(moving),
      ended_by_(ended_by),
      end_(ended_by ? std::min<std::uint64_t>(*ended_by + 1, trace_->events().size()) : trace_->events().size()),
      blocks_(*trace_),
      extremes_(find_extremes(*trace_, every_, ended_by_)) {
  arena_->expect_moving(moving);
  make_streams();
}

// Streams of the trace that were default streams use the default stream; every other one gets a new stream.
void Replay::make_streams() {
  const std::uint32_t count = std::clamp<std::uint32_t>(trace_->streams(), 1, kMostStreams);
  for (std::uint32_t i = 0; i < count; ++i) {
    streams_.push_back(trace_->is_default(i) ? nullptr : new_stream());
  }
}

// The arena keeps a stream for as long as it may have to wait for it, which may be longer than this replay lives.
std::shared_ptr<cu::StreamTag> Replay::new_stream() {
  if (!device_) device_ = std::make_shared<const Device>(arena_->device().driver(), arena_->device().number());
  const auto end = [device = device_](cu::Stream stream) { ignore_errors([&] { device->delete_stream(stream); }); };
  return {device_->new_stream(), end};
}

// Called for every event, because the arena drops idle streams from time to time.
void Replay::keep_stream(const TraceEvent& event) const {
  const std::shared_ptr<cu::StreamTag>& stream = streams_[event.stream % streams_.size()];
  if (stream) arena_->keep_stream(stream.get(), stream);
}

Replay::~Replay() {
  for (auto& [number, scope] : scopes_) ignore_errors([&, held = scope] { arena_->end_scope(*held); });
  each_live([&](const Held& held) { ignore_errors([&] { arena_->free(*held.block); }); });
}

template <class Function>
void Replay::each_live(const Function& function) const {
  const auto if_live = [&](const Held& held) {
    if (held.block != nullptr) function(held);
  };
  blocks_.each(if_live);
  if_live(tried_);
}

bool Replay::step(std::uint64_t events) {
  const std::uint64_t end = std::min<std::uint64_t>(end_, next_ + events);
  while (next_ < end && !misfit_) {
    const TraceEvent event = trace_->events()[next_];
    play(event);
    watch(event);
    ++next_;
  }
  return next_ < end_ && !misfit_;
}

// Only an allocation can raise the reserved bytes, and it rarely does.
void Replay::watch(const TraceEvent& event) {
  const bool is_first = next_ % every_ == 0;
  const bool is_last = misfit_ || next_ + 1 == end_;
  if (is_first) finish_bucket();
  if (is_first || event.kind == EventKind::kAllocate || is_tried()) {
    const Bytes reserved = arena_->reserved();
    if (is_first) bucket_.push_back(sample(event));
    if (reserved > bucket_.front().stats.reserved) bucket_.front() = sample(event);
    if (live_ > peak_.live) peak_ = {.event = next_, .time = event.time, .live = live_, .reserved = reserved};
  }
  const bool is_due = due_ < extremes_.events.size() && extremes_.events[due_] == next_;
  if (is_due) ++due_;
  if (is_due || is_last) bucket_.push_back(sample(event));
  if (is_last) finish_bucket();
}

void Replay::finish_bucket() {
  const auto by_event = [](const Sample& a, const Sample& b) { return a.event < b.event; };
  const auto is_same = [](const Sample& a, const Sample& b) { return a.event == b.event; };
  std::sort(bucket_.begin(), bucket_.end(), by_event);
  bucket_.erase(std::unique(bucket_.begin(), bucket_.end(), is_same), bucket_.end());
  samples_.insert(samples_.end(), bucket_.begin(), bucket_.end());
  bucket_.clear();
}

std::vector<Origin> Replay::origins(const std::vector<std::uint64_t>& addresses) const {
  const auto stream_of = [&](const TraceEvent& event) -> std::uint64_t {
    const std::uint64_t handle = trace_->handle_of(event.stream);
    if (handle == kLegacy) return 0;  // as CuPy and PyTorch do
    return handle != 0 ? handle : event.stream;
  };
  UntrustedMap<std::uint64_t> events;
  each_live([&](const Held& held) { events[held.block->address] = held.event; });
  std::vector<Origin> found;
  for (const std::uint64_t address : addresses) {
    const TraceEvent event = trace_->events()[events.at(address)];
    found.push_back({event.time, stream_of(event)});
  }
  return found;
}

Line Replay::line_of(const TraceEvent& event) const {
  if (event.line == 0) return 0;
  const auto it = lines_.find(event.line);
  return it == lines_.end() ? 0 : it->second;
}

void Replay::allocate(const TraceEvent& event) {
  release(event.block);  // in case a malformed trace reuses the number
  if (Block* block = request(event)) blocks_.at(event.block) = {block, next_};
}

Block* Replay::request(const TraceEvent& event) {
  keep_stream(event);
  try {
    Block& block =
        arena_->allocate({.size = event.size, .stream = stream_of(event), .line = line_of(event), .moving = moving_});
    live_ += block.size;
    return &block;
  } catch (const OutOfMemory& error) {
    misfit_ = Misfit{.event = next_, .failure = error.failure()};
  }
  return nullptr;
}

void Replay::release(std::uint64_t block) {
  const Held held = blocks_.take(block);
  if (held.block == nullptr) return;
  live_ -= held.block->size;
  arena_->free(*held.block);
}

void Replay::end_scope(std::uint64_t scope) {
  const auto it = scopes_.find(scope);
  if (it == scopes_.end()) return;
  arena_->end_scope(*it->second);
  scopes_.erase(it);
}

void Replay::play(const TraceEvent& event) {
  using enum EventKind;
  switch (event.kind) {
    case kAllocate:
      allocate(event);
      break;
    case kFree:  // does nothing for a block that was live before the recording began
      release(event.block);
      break;
    case kRecordStream:
      if (const Held held = blocks_.find(event.block); held.block != nullptr) {
        keep_stream(event);
        arena_->record_stream(held.block->address, stream_of(event));
      }
      break;
    case kTrim:
      arena_->trim();
      break;
    case kCompact:
      arena_->compact();
      break;
    case kScopeBegin:
      end_scope(event.block);
      scopes_[event.block] = arena_->begin_scope(trace_->scope_name(event.block), std::nullopt);
      break;
    case kScopeEnd:
      end_scope(event.block);
      break;
    case kFailure:  // the program continued without the others
      if (is_tried()) tried_ = {request(event), next_};
      break;
    case kReserved:  // a consequence
    case kReserve:   // settings of the recorded run: the replay has its own
    case kSetCap:
      break;
  }
}

}  // namespace arena
