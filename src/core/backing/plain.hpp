// Backing without virtual memory: segments that are allocated whole, from the device or from an upstream function, and
// given back whole. Each is a handle that stays where it is. A request that no gap of a segment can hold needs a new
// segment, so here, and only here, free memory in pieces can be useless: fragmentation.
#pragma once

#include <functional>

#include "core/backing/backing.hpp"

namespace arena {

struct PlainMemory {
  std::uint64_t address = 0;
  std::function<void()> give_back;
};
// Nothing when there is no memory. Called without the arena's lock, as is give_back: both may run anything.
using PlainSource = std::function<std::optional<PlainMemory>(Bytes)>;

class Plain final : public Backing {
 public:
  // Whether this thread is in a function that gives or takes memory: it must not wait for its own end.
  static bool is_calling();

  static constexpr Bytes kUnit = Bytes{2} << 20;  // in which segments are taken

  Plain(const Device& device, Streams& streams, Gaps& gaps, Granules growth, PlainSource source);
  // Gives everything back; the device must be done with it.
  ~Plain() override;

  bool can_hold(Demand& demand, Granules limit, Moving moving) const override;
  std::optional<Offset> back(const Demand& demand, const Limit& limit, Step step, Lock& lock) override;
  std::optional<Offset> back_anew(const Demand& demand, const Limit& limit, Lock& lock) override;
  Bytes largest(Granules limit, Moving moving) const override;
  bool reserve(Granules granules, const Limit& limit, Lock& lock) override;
  void trim(Granules keep, Granules most, Lock& lock) override;
  bool reback(Span) override { return false; }
  Granules compactable() const override { return 0; }
  bool holds(std::uint64_t address) const override;
  bool is_plain() const override { return true; }
  void abandon() override;

 private:
  // What is on its way is not at hand.
  Granules in_use() const { return reserved_ - idle_granules_ - (spare_granules_ - moving()); }
  bool overlaps(std::uint64_t address, Bytes size) const;  // a segment
  Granules granules_for(Bytes size) const { return round_up(size, granule_) / granule_; }
  std::optional<Offset> grow(const Demand& demand, const Limit& limit, Lock& lock);
  std::optional<Offset> add_segment(Granules count, const Marks& used, const Limit& limit, Lock& lock);
  Granules room_for(Granules count);
  // Idle segments, and those that could not be given back before, the largest first.
  std::vector<Index> releasable();
  void release(const std::vector<Index>& going, Lock& lock);

  PlainSource source_;
};

}  // namespace arena
