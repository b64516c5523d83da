// Backing by virtual memory: ranges of addresses, much larger than the cap, whose granules are backed by handles as needed.
//
// A handle is mapped and taken away whole. An idle one can be harvested, which means mapped somewhere else, or given
// back. Handles are large while there is much room under the limit, and smaller near it. One that is in use can be
// mapped a second time, so that what is free at its ends is of use elsewhere (aliases.cpp). A large handle that is mostly
// untouched can be replaced by small ones under the blocks that lie on it, if live data may be moved (rebacking.cpp).
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <vector>

#include "core/backing/backing.hpp"
#include "core/backing/plan.hpp"

namespace arena {

class Stitched final : public Backing {
 public:
  Stitched(const Device& device, Streams& streams, Gaps& gaps, Granules growth, const BackingPlan& plan,
           const std::atomic<bool>& moves);
  // Unmaps and releases everything; the device must be done with it.
  ~Stitched() override;

  bool can_hold(Demand& demand, Granules limit, Moving moving) const override;
  Place best_place(Bytes size, const Place& fewest) const override;
  bool is_wasteful(Span span, Granules cap) const override;
  bool find_better(Demand& demand, Granules cap) const override;
  std::optional<Offset> back(const Demand& demand, const Limit& limit, Step step, Lock& lock) override;
  std::optional<Offset> back_anew(const Demand& demand, const Limit& limit, Lock& lock) override;
  Bytes largest(Granules limit, Moving moving) const override;
  bool reserve(Granules granules, const Limit& limit, Lock& lock) override;
  void trim(Granules keep, Granules most, Lock& lock) override;
  bool drop_unused_aliases(const std::function<bool()>& may_unmap) override;
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
  Granules fixed(Moving moving) const;
  bool is_fixed(Granules granule, Moving moving) const;
  Granules stuck(Moving moving) const;  // fixed and untouched: of use to blocks there alone
  bool has_place(Demand& demand, Granules limit, Moving moving) const;
  Bytes find_largest(Granules limit, Moving moving) const;

  // How everything will be when aliases that no block touches are gone: that comes before all else that is tried.
  class WithoutUnusedAliases {
   public:
    explicit WithoutUnusedAliases(const Stitched& backing);
    const Gaps& gaps() const { return changed_ ? *changed_ : backing_.gaps_; }
    Gaps::Costs costs(Moving moving) const;  // all granules that are not fixed
    Granules cost(Span span, Moving moving) const;
    Bytes largest_mapped() const;
    std::optional<Place> find_mapped(Bytes size) const;

   private:
    bool is_dropped(Granules granule) const;
    Gaps::Costs bare() const;
    const Stitched& backing_;
    std::optional<Gaps> changed_;
    std::vector<Span> dropped_;
  };

  // Lending.
  struct FreeEnds {  // by how much they have free: those that take up the fewest addresses
    std::map<Granules, Index> before, after;
  };
  FreeEnds free_ends() const;
  Granules active_granule(const Handle& handle, Granules which) const;  // the granule at which one of a handle is used
  Granules count_of(Index index) const { return index == Stitch::kNoHandle ? 0 : handles_[index].count; }
  enum class Aim { kToPass, kToSave };
  std::optional<Stitch> plan(Granules wanted, Granules most, Aim aim) const;
  Granules most_by_stitching(Granules most) const;
  std::optional<Granules> find_bare(Granules count) const;
  Granules longest_bare() const;
  std::optional<Offset> stitch(const Demand& demand, Granules limit, Step step);
  bool add_alias(Index index, Granules at);
  void drop_alias(Index index, Granules at);
  void map_again(Index index, Mapping alias);

  Granules untouched_in(Span span) const;
  Granules added_by(Span span) const;
  Granules needed_by(Span span) const;
  bool is_tight(Granules more, Granules limit) const;
  bool split_idle(Span span, const std::function<bool()>& may_unmap);
  template <typename Visit>
  void each_run_in_use(const Gap& gap, Granules& left, Visit visit) const;
  Granules new_handle_size(Granules limit) const;
  Granules room_at(Granules granule, Granules most) const;

  // Backs every granule of the span. False if there is not enough memory for it; what was mapped by then stays, idle.
  bool map_all(Span span, Granules limit, const std::function<bool()>& may_unmap);
  bool try_to_map(Span span, Granules limit, const std::function<bool()>& may_unmap);
  bool fill(Span span, Granules limit, const std::function<bool()>& may_unmap, std::vector<Index>& fresh);
  // Frees memory that is of no use where it is, as far as an step goes. False if there is none.
  bool free_some(Span keep, Step step, std::size_t& spares, const std::function<bool()>& may_unmap);
  bool may_save_handles(const Demand& demand) const;
  bool overlaps(const Handle& handle, Span span) const;
  Index take(Granules at, Span span, Granules limit, const std::function<bool()>& may_unmap);
  Index take_exactly(Granules need, Span span, Granules limit, const std::function<bool()>& may_unmap);
  Index reuse(Granules need, Granules room, Span keep, const std::function<bool()>& may_unmap);
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
  // Only handles that do not lie on the span: what was mapped there before stays.
  Granules release_idle_outside(Granules wanted, Span keep);
  template <typename MayGo>
  Granules release_idle_if(Granules wanted, const MayGo& may_go);

  void replace(Index index, Span keep);
  void put_back(Granules at, const Marks& marks, const char* data, Span keep);
  // Where a handle is mapped, and which of its granules are inactive there: to put it back as it was.
  struct Layout {
    Mapping mapping;
    std::vector<bool> inactive;
  };
  std::vector<Layout> layout_of(const Handle& handle) const;
  bool remount(Index index, const std::vector<Layout>& layout, const Marks& marks);
  void remount_alias(Index index, const Layout& alias);
  void wait_for_copies(Granules last);

  MemoryKind kind_;
  const std::atomic<bool>& moves_;
  bool can_alias_ = true;      // the driver has not refused to map a handle twice
  bool is_proven_ = false;     // memory was opened once: from then on a refusal is not about its kind
  std::vector<Range> ranges_;  // each large enough for all that was allowed when it was made
  BySize spare_;
  struct Largest : KnownSize {
    Granules limit = 0;
  };
  mutable Largest largest_[2];  // without moving data, and with
  bool abandoned_ = false;
};

}  // namespace arena
