// Backing by virtual memory: address ranges much larger than the cap, whose granules are backed by handles as needed.
//
// A handle is mapped and unmapped whole (handles.cpp). An idle one can be harvested, which means mapped somewhere else,
// or released. Handles are large while there is much room under the limit, and small near it (placing.cpp). A handle in
// use can be mapped a second time to use its free ends elsewhere (aliases.cpp). If live data may be moved, a large
// handle that is mostly untouched can be replaced under its blocks by small ones (rebacking.cpp).
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
  std::optional<Offset> back_with_new(const Demand& demand, const Limit& limit, Lock& lock) override;
  Bytes largest(Granules limit, Moving moving) const override;
  bool reserve(Granules granules, const Limit& limit, Lock& lock) override;
  void trim(Granules keep, Granules most, Lock& lock) override;
  bool drop_unused_aliases(const std::function<bool()>& may_unmap) override;
  bool reback(Span keep) override;
  Granules compactable() const override;
  void extend_addresses(Granules most) override;
  std::uint64_t range_of(std::uint64_t address) const override;
  bool holds(std::uint64_t address) const override;
  void abandon() override { abandoned_ = true; }
  MemoryKind kind() const override { return kind_; }
  bool is_proven() const override { return is_proven_; }

 private:
  // Reserved addresses, for consecutive granules.
  struct Range {
    Granules begin = 0, count = 0;
    std::uint64_t address = 0;
  };
  void add_range(AddressRange range);
  std::uint64_t address_at(Granules granule) const;

  // Without moving data, the granules of handles in use are fixed; with moving, touched granules and pinned handles
  // are. All other memory can be mapped anywhere, if necessary in smaller handles. So a place works if
  //   fixed + the granules of the place that are not fixed <= limit
  Granules fixed(Moving moving) const;
  bool is_fixed(Granules granule, Moving moving) const;
  Granules fixed_untouched(Moving moving) const;  // can only be used where they are
  bool has_place(Demand& demand, Granules limit, Moving moving) const;
  Bytes find_largest(Granules limit, Moving moving) const;

  // A view of the backing as if aliases that no block touches were already unmapped: back() does that first.
  class WithoutUnusedAliases {
   public:
    explicit WithoutUnusedAliases(const Stitched& backing);
    const Gaps& gaps() const { return changed_gaps_ ? *changed_gaps_ : backing_.gaps_; }
    Gaps::Costs costs(Moving moving) const;  // granules that are not fixed
    Granules cost(Span span, Moving moving) const;
    Bytes largest_mapped() const;
    std::optional<Place> find_mapped(Bytes size) const;

   private:
    bool is_dropped(Granules granule) const;
    Gaps::Costs unmapped() const;
    const Stitched& backing_;
    std::optional<Gaps> changed_gaps_;
    std::vector<Span> dropped_;
  };

  // Handles with free granules at their end (`before`) or beginning (`after`), by how many; for each number, the
  // smallest handle, because an alias takes up addresses for the whole handle.
  struct FreeEnds {
    std::map<Granules, Index> before, after;
  };
  FreeEnds free_ends() const;
  Granules active_granule(const Handle& handle, Granules which) const;  // where a handle's granule is active
  Granules count_of(Index index) const { return index == Stitch::kNoHandle ? 0 : handles_[index].count; }
  enum class Goal { kFit, kSaveMemory };
  std::optional<Stitch> plan(Granules wanted, Granules most, Goal goal) const;
  Granules largest_by_stitching(Granules most) const;
  std::optional<Granules> find_unmapped(Granules count) const;
  Granules longest_unmapped() const;
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

  // Backs every granule of the span. False if there is not enough memory; what was mapped so far stays idle.
  bool map_all(Span span, Granules limit, const std::function<bool()>& may_unmap);
  bool try_to_map(Span span, Granules limit, const std::function<bool()>& may_unmap);
  bool fill(Span span, Granules limit, const std::function<bool()>& may_unmap, std::vector<Index>& fresh);
  // Frees memory that is of no use where it is, by the means of a step. False if there is none.
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
  bool open_handles(const std::vector<Index>& fresh);
  // Gives this device and its peers access; false if out of memory.
  bool open(std::uint64_t address, Bytes size);
  bool open_for_some_peers(std::uint64_t address, Bytes size);
  // Calls the function, and a second time without RDMA if it fails and RDMA may be the reason.
  template <typename Function>
  auto with_or_without_rdma(const Function& function);
  bool give_up_rdma();
  void undo_mapping(const std::vector<Index>& fresh);
  void put_spare(Index index);
  void release_handle(Index index);
  // Releases a spare handle that is too large for where memory is needed, and decrements `most`. False if there is
  // none.
  bool release_spare(std::size_t& most);
  // Releases idle handles that cannot be mapped where they are needed, so that smaller ones can be created: at least
  // `wanted` granules if there are so many. Returns how many.
  Granules release_idle(Granules wanted, Span keep);
  // Only handles that do not overlap the span.
  Granules release_idle_outside(Granules wanted, Span keep);
  template <typename MayGo>
  Granules release_idle_if(Granules wanted, const MayGo& may_go);

  void replace(Index index, Span keep);
  void restore_granule(Granules at, const Marks& marks, const char* data, Span keep);
  // Where a handle is mapped, and which of its granules are inactive there, to restore it.
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
  bool is_proven_ = false;     // access was set once: from then on a refusal is not about the kind of memory
  std::vector<Range> ranges_;  // each large enough for the cap at the time
  BySize spare_;
  struct Largest : KnownSize {
    Granules limit = 0;
  };
  mutable Largest largest_[2];  // without and with moving data
  bool abandoned_ = false;
};

}  // namespace arena
