// Backing by virtual memory: ranges of addresses, much larger than the cap, whose granules are backed by handles as needed.
//
// A handle is mapped and taken away whole. An idle one can be harvested, which means mapped somewhere else, or given
// back. Handles are large while there is much room under the limit, and smaller near it. A large handle that is mostly
// untouched can be replaced by small ones under the blocks that lie on it (re-backing: rebacking.cpp).
#pragma once

#include "core/backing.hpp"
#include "core/start.hpp"

namespace arena {

class Stitched final : public Backing {
 public:
  Stitched(const Device& device, Streams& streams, Gaps& gaps, Granules growth, const Start& start);
  // Unmaps and releases everything; the device must be done with it.
  ~Stitched() override;

  bool can_hold(Demand& demand, Granules limit, bool may_reback) const override;
  std::optional<Offset> back(const Demand& demand, const Limit& limit, Effort effort, Lock& lock) override;
  std::optional<Offset> back_anew(const Demand& demand, const Limit& limit, Lock& lock) override;
  Bytes largest(Granules limit, bool may_reback) const override;
  bool reserve(Granules granules, const Limit& limit, Lock& lock) override;
  void trim(Granules keep, Granules most, Lock& lock) override;
  bool reback(Span keep) override;
  Granules compactable() const override;
  void make_room(Granules most) override;
  std::uint64_t range_of(std::uint64_t address) const override;
  bool holds(std::uint64_t address) const override;
  void abandon() override { abandoned_ = true; }
  MemoryKind kind() const override { return kind_; }
  bool is_proven() const override { return is_proven_; }

 private:
  // Addresses that the driver gave, under granules that follow one another.
  struct Range {
    Granules begin = 0, count = 0;
    std::uint64_t address = 0;
  };
  void add_range(AddressRange range);
  std::uint64_t address_at(Granules granule) const;

  // What a request needs, in granules. Without moving data, handles that are in use stay where they are; with it, those that
  // are pinned do. The rest can be had anywhere, if need be in smaller handles. So a place is within reach if
  //   fixed + the granules of the place that are not fixed <= limit
  Granules fixed(bool may_reback) const;
  bool is_fixed(Granules granule, bool may_reback) const;
  Granules stuck(bool may_reback) const;  // fixed and untouched: of use to blocks there alone
  Gaps::Costs costs(bool may_reback) const;
  Bytes find_largest(Granules limit, bool may_reback) const;

  Granules room_at(Granules granule, Granules most) const;

  // Backs every granule of the span. False if there is not enough memory for it; what was mapped by then stays, idle.
  bool map_all(Span span, Granules limit, const std::function<bool()>& may_unmap);
  bool try_to_map(Span span, Granules limit, const std::function<bool()>& may_unmap);
  Index take(Granules at, Span span, Granules limit, const std::function<bool()>& may_unmap);
  Index take_spare(Granules need, Granules room);
  Index harvest(Granules need, Granules room, Span keep);
  Index create(Granules count);
  bool map(Index index, Granules at);
  void unmap(Index index);
  bool allow(const std::vector<Index>& fresh);
  // Gives this device and its peers access; false if there is no room for that.
  bool open(std::uint64_t address, Bytes size);
  bool open_for_some(std::uint64_t address, Bytes size);
  // Does something that may be refused because memory is created for RDMA, if need be a second time without.
  template <typename Function>
  auto with_or_without_rdma(const Function& function);
  bool give_up_rdma();
  void retract(const std::vector<Index>& fresh);
  void put_spare(Index index);
  void give_back(Index index);
  // Gives a spare handle back that is too large for where memory is needed, and counts down. False if there is none.
  bool release_spare(std::size_t& most);
  // Gives idle handles that cannot be mapped where they are needed back to the device, so that smaller ones can be
  // created: at least `wanted` granules if there are so many. Returns how many it gave back.
  Granules release_idle(Granules wanted, Span keep);

  void replace(Index index, Span keep);
  void put_back(Granules at, const Marks& marks, const char* data, Span keep);
  bool remount(Index index, Granules at, const Marks& marks);
  void wait_for_copies(Granules last);

  MemoryKind kind_;
  bool is_proven_ = false;     // memory was opened once: from then on a refusal is not about its kind
  std::vector<Range> ranges_;  // each large enough for all that was allowed when it was made
  BySize spare_;
  struct Largest : Found {
    Granules limit = 0;
  };
  mutable Largest largest_[2];  // without moving data, and with
  bool abandoned_ = false;
};

}  // namespace arena
