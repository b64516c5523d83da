#include "core/heap/emitter.hpp"

#include <algorithm>
#include <vector>

namespace arena {

void Emitter::emit(Event event) const {
  if (names_stream(event.kind)) {
    event.cu_stream = reinterpret_cast<std::uint64_t>(streams_.stream(event.stream));
    // Index 0 is Streams::kAllStreams, which is never recorded. Before the first request there is no stream at all.
    if (event.stream > 0) --event.stream;
  }
  observer_->on_event(event);
}

void Emitter::emit_live(const Blocks& blocks) const {
  std::vector<const Block*> live;
  blocks.each([&](const Block& block) {
    if (block.live) live.push_back(&block);
  });
  std::sort(live.begin(), live.end(), [](const Block* a, const Block* b) { return a->serial < b->serial; });
  for (const Block* block : live) {
    emit({.kind = EventKind::kAllocate,
          .block = block->serial,
          .size = block->requested,
          .stream = block->stream,
          .line = block->line});
  }
}

void Emitter::emit_reserved(Bytes reserved) {
  if (!is_on() || reserved == emitted_reserved_) return;
  emitted_reserved_ = reserved;
  emit({.kind = EventKind::kReserved, .size = reserved});
}

}  // namespace arena
