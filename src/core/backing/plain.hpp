// Backing without virtual memory: segments are allocated and released whole, from the device or an upstream function.
// Each is a handle that never moves. A request that fits into no gap needs a new segment, so here, and only here, free
// memory can be fragmented.
#pragma once

#include <functional>

#include "core/backing/backing.hpp"

namespace arena {

struct PlainMemory {
  std::uint64_t address = 0;
  std::function<void()> give_back;
};
// nullopt when there is no memory. This and give_back are called without the arena's lock: they may run anything.
using PlainSource = std::function<std::optional<PlainMemory>(Bytes)>;

class Plain final : public Backing {
 public:
  // Whether this thread is inside a PlainSource or a give_back: it must not wait for that call to end.
  static bool is_in_upstream_call();

  static constexpr Bytes kUnit = Bytes{2} << 20;  // the granule: segment sizes are multiples of it

  Plain(const Device& device, Streams& streams, Gaps& gaps, Granules growth, PlainSource source);
  // Releases everything; the device must be done with it.
  ~Plain() override;

  bool can_hold(Demand& demand, Granules limit, Moving moving) const override;
  std::optional<Offset> back(const Demand& demand, const Limit& limit, Step step, Lock& lock) override;
  std::optional<Offset> back_with_new(const Demand& demand, const Limit& limit, Lock& lock) override;
  Bytes largest(Granules limit, Moving moving) const override;
  bool reserve(Granules granules, const Limit& limit, Lock& lock) override;
  void trim(Granules keep, Granules most, Lock& lock) override;
  bool reback(Span) override { return false; }
  Granules compactable() const override { return 0; }
  bool holds(std::uint64_t address) const override;
  bool is_plain() const override { return true; }
  void abandon() override;

 private:
  // Memory in transit counts as spare, but cannot be used.
  Granules in_use() const { return reserved_ - idle_granules_ - (spare_granules_ - in_transit()); }
  bool overlaps(std::uint64_t address, Bytes size) const;  // with a segment
  Granules granules_for(Bytes size) const { return round_up(size, granule_) / granule_; }
  std::optional<Offset> grow(const Demand& demand, const Limit& limit, Lock& lock);
  std::optional<Offset> add_segment(Granules count, const Marks& used, const Limit& limit, Lock& lock);
  Granules room_for(Granules count);
  // Segments whose release failed before, then idle ones, the largest first.
  std::vector<Index> releasable();
  void release(const std::vector<Index>& going, Lock& lock);

  PlainSource source_;
};

}  // namespace arena
