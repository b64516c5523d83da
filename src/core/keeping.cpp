// What fronts keep: how the common pair of calls takes and gives it, and when the arena puts it down among the gaps.
#include <algorithm>

#include "core/arena.hpp"
#include "core/entered.hpp"

namespace arena {
namespace {

constexpr Bytes kMuchRoom = 8;  // times what is reserved, under the cap

}  // namespace

// Without the lock.
Block* Arena::take_directly(const Call& asked) {
  if (!asked.may_be_kept || (is_any_entered() && is_in_scope())) return nullptr;
  Tally* tally = tallies_.find();
  if (tally == nullptr) return nullptr;
  return asked.front->take(asked.stream, asked.size, asked.rounded, asked.line, *tally);
}

bool Arena::is_in_scope() const { return current_scope(id_) != nullptr || current_graph(id_) != nullptr; }

bool Arena::give_directly(Block& block) {
  Tally* tally = tallies_.find();
  return tally != nullptr && block.front->give(block, *tally);
}

Block* Arena::take_kept(const Request& wanted) {
  if (!wanted.may_be_kept) return nullptr;
  Block* block = nullptr;
  {
    const Fronts::Guard held(fronts_, *wanted.front);
    block = wanted.front->pop(wanted.rounded);
  }
  if (block != nullptr) start(*block, wanted, false);
  return block;
}

// What fronts keep is not in the way: no new granule is touched while they keep anything. Where there is much room, they go
// on keeping what is small until more memory is needed than there is.
Block* Arena::take_hit(const Request& wanted) {
  Block* block = take_kept(wanted);
  if (block == nullptr) {
    std::optional<Place> place = find_hit(wanted);
    const Front::Which which = place && has_much_room_ ? Front::Which::kLarge : Front::Which::kAll;
    if ((!place || place->new_granules > 0) && empty_fronts(which)) place = find_hit(wanted);
    if (!place) return nullptr;
    if (!gaps_.take(*place, wanted.rounded)) ++splits_;
    block = &new_block(place->offset, wanted);
  }
  ++hits_;
  return block;
}

// By its front, if that wants it.
bool Arena::keep(Block& block) {
  Front& front = *block.front;
  if (!front.seems_to_want(block.size)) return false;
  const auto push = [&] {
    const Fronts::Guard held(fronts_, front);
    return front.would_keep(block) ? front.push(block) : Front::Push::kRefused;
  };
  Front::Push pushed = push();
  if (pushed == Front::Push::kFull && empty_front(front)) pushed = push();
  return pushed == Front::Push::kKept;
}

// Where its stream was when it was freed.
Mark Arena::mark_of(Block& block) {
  if (block.mark == 0) {
    block.mark = streams_.mark(block.stream).number;
  } else {
    streams_.raise({block.stream, block.mark});
  }
  return {block.stream, block.mark};
}

void Arena::put_down(Block& block) {
  if (!block.ordinary) {
    let_go(block);
  } else {
    const bool was_kept = block.mark != 0;  // an event behind its free would come too late
    const Marks marks(mark_of(block));
    if (block.size > left_ && !was_kept) record_contended(marks);
    put_among_gaps(block, marks);
  }
  blocks_.remove(block);
}

// Of a block that others have to do with, too.
void Arena::let_go(Block& block) {
  if (block.pins > 0) backing_->unpin(backing_->span_of(block.offset, block.size));
  if (block.scope) block.scope->remove(block.size);
  if (block.graph) return give_to_graph(block);
  Marks marks(mark_of(block));
  for (const StreamIndex other : block.others) marks.add(streams_.mark(other));
  if (block.size > left_) record_contended(marks);
  put_among_gaps(block, marks);
}

void Arena::put_among_gaps(const Block& block, const Marks& marks) {
  backing_->leave(backing_->span_of(block.offset, block.size), marks);
  gaps_.add({block.offset, block.offset + block.size}, marks);
}

// There is no new memory for as much as is freed here, so another stream may have to wait for it. Then an event right behind
// the free is worth its price, if there is another stream and the event is one of the stream's own. Events of whole contexts
// cost more and disturb captures, and another stream may never come: those are recorded as long as they are waited for.
void Arena::record_contended(const Marks& marks) {
  const bool has_others = streams_.count() > 1;
  for (const Mark mark : marks) {
    if (!has_others || !streams_.can_name(mark.stream)) {
      if (records_left_ == 0) continue;
      --records_left_;
    }
    quietly([&] {
      const Relaxed relaxed(device_);
      streams_.record_now(mark);
    });
  }
}

bool Arena::empty_front(Front& front, Front::Which which) {
  const Fronts::Guard held(fronts_, front);
  if (front.is_empty() || (which == Front::Which::kLarge && !front.has_large())) return false;
  front.pop_all(which, [&](Block& block) { put_down(block); });
  return true;
}

bool Arena::empty_fronts(Front::Which which) {
  bool any = false;
  fronts_.each([&](Front& front) { any |= empty_front(front, which); });
  return any;
}

void Arena::lay_down() {
  if (is_laid_) return;
  is_laid_ = true;
  set_fronts();
  fronts_.each([&](Front& front) {
    front.each_kept([&](Block& block) {
      const Offset end = block.offset + block.size;
      const Span span = backing_->span_of(block.offset, block.size);
      const Marks marks(mark_of(block));
      laid_.push_back({&block, gaps_.met_by(block.offset, end), backing_->marks_under(span)});
      backing_->leave(span, marks);
      gaps_.add({block.offset, end}, marks);
    });
  });
}

void Arena::pick_up() {
  if (!is_laid_) return;
  for (; !laid_.empty(); laid_.pop_back()) {
    const Laid& laid = laid_.back();
    gaps_.restore(laid.block->offset, laid.met);
    backing_->touch_again(backing_->span_of(laid.block->offset, laid.block->size), laid.marks);
  }
  is_laid_ = false;
  set_fronts();
}

// Large blocks are kept only while there is much room: near the cap, each is better put where it is in nobody's way.
void Arena::set_fronts() {
  using enum Front::Keeps;
  const bool direct = !observer_ && !settings_.validates && !is_over_limit() && !is_laid_;
  const Bytes reserved = backing_->reserved() * backing_->granule();
  if (backing_->was_refused()) {
    full_at_ = reserved;
  } else if (reserved > full_at_) {
    full_at_ = ~Bytes{0};
  }
  const Bytes most = std::min(settings_.cap, full_at_);
  left_ = most - std::min(most, reserved);
  has_much_room_ = kMuchRoom * reserved <= most;
  fronts_.set_policy(direct, is_over_limit() ? kNone : has_much_room_ ? kAll : kSmall);
}

}  // namespace arena
