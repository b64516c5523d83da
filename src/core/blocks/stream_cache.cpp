#include "core/blocks/stream_cache.hpp"

#include <algorithm>
#include <chrono>

namespace arena {

std::int64_t StreamCache::now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void StreamCache::serve(StreamKey stream, const void* owner) {
  stream_ = stream.stream;
  tag_ = stream.tag;
  owner_ = owner;
}

// Empties a bin and returns its blocks.
Block* StreamCache::drop(Bin& bin) {
  Block* first = bin.first;
  for (const Block* block = first; block != nullptr; block = block->next) count(*block, -1);
  bin.first = nullptr;
  return first;
}

// Raises the score of a known size. An unknown size lowers the score of the least valuable bin, and evicts it once that
// score is 0.
Block* StreamCache::miss(Bytes rounded) {
  if (!would_admit(rounded)) return nullptr;
  const auto cost = [](const Bin& bin) { return 2 * bin.score + (bin.first != nullptr); };
  Bin* bin = &bins_[hash(rounded)];
  Bin* least = bin;
  std::uint32_t lowest = cost(*bin);
  for (const Bin* end = bin + kProbes; bin != end; ++bin) {
    if (bin->size == rounded) {
      bin->score = std::min(bin->score + 1, kHighestScore);
      return nullptr;
    }
    if (const std::uint32_t its = cost(*bin); its < lowest) {
      least = bin;
      lowest = its;
    }
  }
  if (least->score > 0) {
    least->score = least->score - 1;
    return nullptr;
  }
  least->size = rounded;
  return drop(*least);
}

// By the CUstream alone, so that an explicit stream is found before its tag is known. Per-thread streams have all the same.
std::size_t StreamCaches::home(StreamKey stream) {
  const std::uint64_t thread = stream.stream == cu::per_thread_stream() ? stream.tag : 0;
  const std::uint64_t value = reinterpret_cast<std::uint64_t>(stream.stream) + thread;
  return static_cast<std::size_t>(value * 0x9E3779B97F4A7C15u >> 32);
}

StreamCache* StreamCaches::find_explicit(cu::Stream stream) const {
  const std::size_t first = home({stream, 0});
  for (std::size_t i = 0; i < kProbes; ++i) {
    StreamCache* cache = slots_[(first + i) % kSlots].load(std::memory_order_acquire);
    if (cache != nullptr && cache->key().stream == stream) return cache;
  }
  return nullptr;
}

StreamCache* StreamCaches::find(StreamKey stream) const {
  for (std::size_t i = 0; i < kProbes; ++i) {
    StreamCache* cache = slots_[(home(stream) + i) % kSlots].load(std::memory_order_acquire);
    if (cache != nullptr && cache->serves(stream)) return cache;
  }
  return nullptr;
}

// Uses a slot that is empty or whose cache serves no stream any more; otherwise replaces the first.
void StreamCaches::publish(StreamCache& cache, StreamKey stream) {
  std::atomic<StreamCache*>* place = &slots_[home(stream) % kSlots];
  for (std::size_t i = kProbes; i-- > 0;) {
    std::atomic<StreamCache*>& slot = slots_[(home(stream) + i) % kSlots];
    const StreamCache* there = slot.load(std::memory_order_relaxed);
    if (there == nullptr || there == &cache || there->serves({})) place = &slot;
  }
  place->store(&cache, std::memory_order_release);
  if (stream == StreamKey{cu::legacy_stream(), 0}) legacy_.store(&cache, std::memory_order_release);
}

StreamCache& StreamCaches::of(StreamIndex index, StreamKey stream, std::uint64_t mark, const void* owner) {
  if (index >= kMost) return none_;
  while (all_.size() <= index) {
    all_.push_back(std::make_unique<StreamCache>(static_cast<StreamIndex>(all_.size())));
    all_.back()->set_policy(access_, admits_);
  }
  StreamCache& cache = *all_[index];
  if (cache.serves(stream)) return cache;
  {
    const std::lock_guard held(cache.lock());
    cache.serve(stream, owner);
    cache.set_mark(mark);
  }
  publish(cache, stream);
  return cache;
}

void StreamCaches::forget(StreamIndex index) {
  if (index >= all_.size()) return;
  const std::lock_guard held(all_[index]->lock());
  all_[index]->serve({});
}

void StreamCaches::set_policy(StreamCache::Access access, StreamCache::Admits admits) {
  if (access == access_ && admits == admits_) return;
  access_ = access;
  admits_ = admits;
  for (const auto& cache : all_) {
    const std::lock_guard held(cache->lock());
    cache->set_policy(access, admits);
  }
}

std::uint64_t StreamCaches::next_serial(StreamCache& cache, std::uint64_t many) {
  StreamCache::Serials& own = cache.serials();
  if (own.next == own.end) {
    own = {serials_, serials_ + many};
    serials_ += many;
  }
  return own.next++;
}

// Unused numbers are skipped, unless they are the last ones.
std::uint64_t StreamCaches::begin_serials() {
  const auto take_back = [&](StreamCache& cache) {
    StreamCache::Serials& own = cache.serials();
    if (own.end == serials_ && own.next < own.end) serials_ = own.next;
    own = {};
  };
  each(take_back);
  take_back(none_);
  return serials_;
}

}  // namespace arena
