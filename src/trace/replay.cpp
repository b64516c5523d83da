#include "trace/replay.hpp"

#include <algorithm>

namespace arena {
namespace {

constexpr std::uint32_t kMostStreams = 64;

}  // namespace

Replay::Replay(std::shared_ptr<const Trace> trace, std::shared_ptr<Arena> arena, std::uint64_t every)
    : trace_(std::move(trace)), arena_(std::move(arena)), every_(std::max<std::uint64_t>(1, every)) {
  make_streams();
}

// The default stream for what ran on it, and for stream 0 of a trace that does not tell; for each other one of its own.
void Replay::make_streams() {
  const std::uint32_t count = std::clamp<std::uint32_t>(trace_->streams(), 1, kMostStreams);
  for (std::uint32_t i = 0; i < count; ++i) {
    streams_.push_back(trace_->is_default(i) ? nullptr : arena_->device().new_stream());
  }
}

Replay::~Replay() {
  for (auto& [number, scope] : scopes_) quietly([&, held = scope] { arena_->end_scope(*held); });
  for (const auto& [block, address] : addresses_) quietly([&, at = address] { arena_->free(at); });
  for (const cu::Stream stream : streams_) {
    if (stream != nullptr) quietly([&] { arena_->device().delete_stream(stream); });
  }
}

bool Replay::step(std::uint64_t events) {
  const std::uint64_t end = std::min<std::uint64_t>(trace_->events().size(), next_ + events);
  while (next_ < end && !misfit_) {
    const TraceEvent& event = trace_->events()[next_];
    play(event);
    ++next_;
    if (next_ % every_ == 0 || next_ == trace_->events().size() || misfit_) sample(event);
  }
  return next_ < trace_->events().size() && !misfit_;
}

void Replay::sample(const TraceEvent& event) { samples_.push_back({next_ - 1, event.time, arena_->stats()}); }

void Replay::play(const TraceEvent& event) {
  using enum EventKind;
  const auto address = addresses_.find(event.block);
  switch (event.kind) {
    case kAllocate:
      try {
        addresses_[event.block] = arena_->allocate(event.size, stream_of(event), true, event.line);
      } catch (const OutOfMemory& error) {
        misfit_ = Misfit{next_, error.what(), error.verdict(), error.requested(), error.largest(), error.stats()};
      }
      break;
    case kFree:  // of a block that was live when the recording began, it is unknown here
      if (address == addresses_.end()) break;
      arena_->free(address->second);
      addresses_.erase(address);
      break;
    case kRecordStream:
      if (address != addresses_.end()) arena_->record_stream(address->second, stream_of(event));
      break;
    case kTrim:
      arena_->trim();
      break;
    case kCompact:
      arena_->compact();
      break;
    case kScopeBegin:
      scopes_[event.block] = arena_->begin_scope(trace_->scope_name(event.block), std::nullopt);
      break;
    case kScopeEnd:
      if (const auto it = scopes_.find(event.block); it != scopes_.end()) {
        arena_->end_scope(*it->second);
        scopes_.erase(it);
      }
      break;
    case kFailure:   // what did not fit then may fit now, and the program went on without it
    case kReserved:  // a consequence
    case kReserve:   // settings of that run: this one has its own
    case kSetCap:
      break;
  }
}

}  // namespace arena
