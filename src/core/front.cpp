#include "core/front.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace arena {
namespace {

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

std::size_t hash(std::uint64_t value) { return static_cast<std::size_t>(value * 0x9E3779B97F4A7C15u >> 32); }

// Shares out how much higher one figure may go in every front: what each had before, if there is so much, and to the
// one that asked what is left; else parts of that.
void share(const std::vector<std::unique_ptr<Front>>& fronts, Front& asking, Bytes Sums::* figure, Bytes peak) {
  Bytes total = 0, wanted = 0;
  const auto wish = [&](Front& front) {
    const Bytes now = front.sums().*figure, before = front.most().*figure;
    return before > now ? before - now : 0;
  };
  for (const auto& front : fronts) {
    total += front->sums().*figure;
    wanted += wish(*front);
  }
  Bytes left = peak - total;
  const double part = wanted > left ? static_cast<double>(left) / static_cast<double>(wanted) : 1.0;
  for (const auto& front : fronts) {
    const Bytes wished = wish(*front);
    const Bytes given = std::min(left, part == 1.0 ? wished : static_cast<Bytes>(part * static_cast<double>(wished)));
    front->most().*figure = front->sums().*figure + given;
    left -= given;
  }
  asking.most().*figure += left;
}

}  // namespace

// Who holds it is at work, or was put to sleep in the midst of it.
void SpinLock::wait() {
  for (int i = 0; taken_.load(std::memory_order_relaxed); ++i) {
    if (i > 100) std::this_thread::yield();
  }
}

void Front::serve(StreamKey stream) {
  handle_.store(stream.stream, std::memory_order_relaxed);
  thread_.store(stream.thread, std::memory_order_relaxed);
}

template <typename Fits>
Front::Bin* Front::find(Bytes size, const Fits& fits) {
  const std::size_t home = hash(size / kAlignment);
  for (std::size_t i = 0; i < kProbes; ++i) {
    Bin& bin = bins_[(home + i) % kBins];
    if (fits(bin)) return &bin;
  }
  return nullptr;
}

Block* Front::pop(Bytes rounded) {
  if (pause_ > 0 && rounded == refused_) pause_ = 0;
  if (kept_ == 0) return nullptr;
  Bin* bin = find(rounded, [&](const Bin& b) { return b.size == rounded && b.first != nullptr; });
  if (bin == nullptr) return nullptr;
  Block* block = bin->first;
  bin->first = block->next;
  --kept_;
  in_vain_ -= std::min(in_vain_, kWorth);
  return block;
}

Front::Push Front::push(Block& block) {
  if (pause_ > 0) {
    --pause_;
    refused_ = block.size;
    return Push::kRefused;
  }
  if (kept_ == kMost) return Push::kFull;
  Bin* bin = find(block.size, [&](const Bin& b) { return b.size == block.size; });
  if (bin == nullptr) bin = find(block.size, [](const Bin& b) { return b.first == nullptr; });
  if (bin == nullptr) return Push::kFull;
  bin->size = block.size;
  block.next = bin->first;
  bin->first = &block;
  ++kept_;
  if (++in_vain_ == kInVain) {
    in_vain_ = 0;
    pause_ = kPause;
  }
  return Push::kKept;
}

void Front::start(Block& block, Bytes requested, std::uint64_t serial, Line line) {
  block.requested = requested;
  block.serial = serial;
  block.mark = 0;
  block.handle = handle_.load(std::memory_order_relaxed);
  block.line = line;
  block.born = line != 0 ? now() : 0;
  block.live = true;
  ++allocations_;
}

Block* Front::take(StreamKey stream, Bytes size, Bytes rounded, Line line) {
  if (!lock_.try_lock()) return nullptr;
  const std::lock_guard held(lock_, std::adopt_lock);
  if (!direct_ || !serves(stream) || serials_.next == serials_.end || !has_room(size, rounded)) return nullptr;
  Block* block = pop(rounded);
  if (block == nullptr) return nullptr;
  count(size, rounded);
  ++hits_;
  start(*block, size, serials_.next++, line);
  return block;
}

bool Front::give(Block& block) {
  if (!lock_.try_lock()) return false;
  const std::lock_guard held(lock_, std::adopt_lock);
  if (!direct_ || !block.live || !would_keep(block) || push(block) != Push::kKept) return false;
  block.live = false;
  discount(block.requested, block.size);
  return true;
}

std::size_t Fronts::home(StreamKey stream) {
  return hash(reinterpret_cast<std::uint64_t>(stream.stream) + stream.thread);
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

Front& Fronts::of(StreamIndex index, StreamKey stream) {
  while (all_.size() <= index) {
    all_.push_back(std::make_unique<Front>());
    all_.back()->set_policy(direct_, keeps_);
  }
  Front& front = *all_[index];
  if (front.serves(stream)) return front;
  {
    const std::lock_guard held(front.lock());
    front.serve(stream);
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

Sums Fronts::sums() const {
  Sums total;
  for (const auto& front : all_) {
    total.requested += front->sums().requested;
    total.live += front->sums().live;
  }
  return total;
}

void Fronts::count(Front& front, Bytes requested, Bytes size) {
  front.count(requested, size);
  const Sums total = sums();
  peak_ = {std::max(peak_.requested, total.requested), std::max(peak_.live, total.live)};
  share(all_, front, &Sums::requested, peak_.requested);
  share(all_, front, &Sums::live, peak_.live);
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
  for (const auto& front : all_) {
    Front::Serials& own = front->serials();
    if (own.end == serials_ && own.next < own.end) serials_ = own.next;
    own = {};
  }
  return serials_;
}

}  // namespace arena
