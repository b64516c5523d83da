#include "core/front.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace arena {
namespace {

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

}  // namespace

// Who holds it is at work, or was put to sleep in the midst of it.
void SpinLock::wait() {
  for (int i = 0; taken_.load(std::memory_order_relaxed); ++i) {
    if (i > 100) std::this_thread::yield();
  }
}

void Front::serve(StreamKey stream, const void* owner) {
  handle_ = stream.stream;
  tag_ = stream.tag;
  owner_ = owner;
}

Block* Front::pop(Bytes rounded) {
  Bin* bin = find(rounded);
  if (bin == nullptr || bin->first == nullptr) return nullptr;
  Block* block = bin->first;
  bin->first = block->next;
  bin->worth = std::min(bin->worth + 1, kMostWorth);
  count(*block, -1);
  return block;
}

// All that a bin keeps: it keeps nothing from now on.
Block* Front::drop(Bin& bin) {
  Block* first = bin.first;
  for (const Block* block = first; block != nullptr; block = block->next) count(*block, -1);
  bin.first = nullptr;
  return first;
}

// A size that is known is worth more from now on. One that is not takes the place of the one that is worth least, once
// that is worth nothing.
Block* Front::miss(Bytes rounded) {
  if (!would_keep(rounded)) return nullptr;
  const auto cost = [](const Bin& bin) { return 2 * bin.worth + (bin.first != nullptr); };
  Bin* bin = &bins_[hash(rounded)];
  Bin* least = bin;
  std::uint32_t lowest = cost(*bin);
  for (const Bin* end = bin + kProbes; bin != end; ++bin) {
    if (bin->size == rounded) {
      bin->worth = std::min(bin->worth + 1, kMostWorth);
      return nullptr;
    }
    if (const std::uint32_t its = cost(*bin); its < lowest) {
      least = bin;
      lowest = its;
    }
  }
  if (least->worth > 0) {
    least->worth = least->worth - 1;
    return nullptr;
  }
  least->size = rounded;
  return drop(*least);
}

Front::Push Front::push(Block& block) {
  Bin* bin = find(block.size);
  if (bin == nullptr || bin->worth == 0) return Push::kRefused;
  if (kept_ == kMost) return Push::kFull;
  block.mark = mark_.load(std::memory_order_acquire);
  block.next = bin->first;
  bin->first = &block;
  count(block, 1);
  return Push::kKept;
}

void Front::start(Block& block, Bytes requested, std::uint64_t serial, Line line) {
  block.requested = requested;
  block.serial = serial;
  block.line = line;
  block.born = line != 0 ? now() : 0;
  block.live = true;
  ++allocations_;
}

Block* Front::take(StreamKey stream, Bytes size, Bytes rounded, Line line, Tally& tally) {
  if (!direct_ || !lock_.try_lock()) return nullptr;
  const std::lock_guard held(lock_, std::adopt_lock);
  if (!direct_ || !serves(stream) || serials_.next == serials_.end || !tally.has_room(size, rounded)) return nullptr;
  Block* block = pop(rounded);
  if (block == nullptr) return nullptr;
  tally.add(size, rounded);
  ++hits_;
  start(*block, size, serials_.next++, line);
  return block;
}

bool Front::give(Block& block, Tally& tally) {
  if (!direct_ || !seems_to_want(block.size) || !lock_.try_lock()) return false;
  const std::lock_guard held(lock_, std::adopt_lock);
  if (!direct_ || !block.live || !would_keep(block) || push(block) != Push::kKept) return false;
  block.live = false;
  tally.remove(block.requested, block.size);
  return true;
}

std::size_t Fronts::home(StreamKey stream) {
  const std::uint64_t value = reinterpret_cast<std::uint64_t>(stream.stream) + stream.tag;
  return static_cast<std::size_t>(value * 0x9E3779B97F4A7C15u >> 32);
}

Front* Fronts::find(StreamKey stream) const {
  for (std::size_t i = 0; i < kProbes; ++i) {
    Front* front = slots_[(home(stream) + i) % kSlots].load(std::memory_order_acquire);
    if (front != nullptr && front->serves(stream)) return front;
  }
  return nullptr;
}

// In a slot that is free, or whose front serves somebody else from another slot by now, or, at the worst, in the first.
void Fronts::publish(Front& front, StreamKey stream) {
  std::atomic<Front*>* place = &slots_[home(stream) % kSlots];
  for (std::size_t i = kProbes; i-- > 0;) {
    std::atomic<Front*>& slot = slots_[(home(stream) + i) % kSlots];
    const Front* there = slot.load(std::memory_order_relaxed);
    if (there == nullptr || there == &front || there->serves({})) place = &slot;
  }
  place->store(&front, std::memory_order_release);
}

Front& Fronts::of(StreamIndex index, StreamKey stream, std::uint64_t mark, const void* owner) {
  if (index >= kMost) return none_;
  while (all_.size() <= index) {
    all_.push_back(std::make_unique<Front>(static_cast<StreamIndex>(all_.size())));
    all_.back()->set_policy(direct_, keeps_);
  }
  Front& front = *all_[index];
  if (front.serves(stream)) return front;
  {
    const std::lock_guard held(front.lock());
    front.serve(stream, owner);
    front.set_mark(mark);
  }
  publish(front, stream);
  return front;
}

void Fronts::forget(StreamIndex index) {
  if (index >= all_.size()) return;
  const std::lock_guard held(all_[index]->lock());
  all_[index]->serve({});
}

void Fronts::set_policy(bool direct, Front::Keeps keeps) {
  if (direct == direct_ && keeps == keeps_) return;
  direct_ = direct;
  keeps_ = keeps;
  for (const auto& front : all_) {
    const std::lock_guard held(front->lock());
    front->set_policy(direct, keeps);
  }
}

std::uint64_t Fronts::next_serial(Front& front, std::uint64_t many) {
  Front::Serials& own = front.serials();
  if (own.next == own.end) {
    own = {serials_, serials_ + many};
    serials_ += many;
  }
  return own.next++;
}

// Numbers that were not used are lost, unless they are the last.
std::uint64_t Fronts::begin_serials() {
  const auto take_back = [&](Front& front) {
    Front::Serials& own = front.serials();
    if (own.end == serials_ && own.next < own.end) serials_ = own.next;
    own = {};
  };
  each(take_back);
  take_back(none_);
  return serials_;
}

}  // namespace arena
