// The physical memory under the blocks: which handle backs which granules, and which granules blocks touch. The two
// kinds of backing, Stitched and Plain, decide where handles come from and what may be done with them.
//
//   reserved = granules of handles in use + idle + spare
//   a touched granule is backed
//
// A handle may be mapped at several addresses: its first one, and aliases. Each of its granules is used through one of
// them, where it is active; at the others it is inactive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/backing/plan.hpp"
#include "core/locks.hpp"
#include "core/space/gaps.hpp"
#include "core/streams/streams.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

// The steps to find memory for a place, in this order. Each costs more than the one before.
enum class Step { kUseFree, kPoll, kWait, kRelease, kReback };

// Memory for a request, mapped side by side at free addresses: the free end of one handle, new or idle handles, and the
// free beginning of another one.
struct Stitch {
  static constexpr std::uint32_t kNoHandle = ~std::uint32_t{0};
  struct End {
    std::uint32_t handle = kNoHandle;
    Granules granules = 0;
  };
  End before, after;
  Granules middle = 0;
};

struct Demand {
  Bytes size = 0;
  std::optional<Place> place = {};    // the best one
  std::optional<Stitch> stitch = {};  // used if no place works
  bool splits = false;                // replace idle handles that are needed only in part by smaller ones
  bool may_alias = true;              // false where data is moved, which leaves less stranded
  Marks used = {};                    // streams that may still use memory from upstream
  // False while a stream is being captured. Called only before something is unmapped: it may have to ask many streams.
  std::function<bool()> may_unmap = [] { return true; };
  Bytes device_free = ~Bytes{0};  // known where nothing may be unmapped
};
// How many granules may be reserved in total. Called again whenever the lock was released.
using Limit = std::function<Granules()>;

class Backing {
 public:
  Backing(const Device& device, Streams& streams, Gaps& gaps, Bytes granule, Granules growth);
  virtual ~Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  // Whether a request can be met by any means with at most `limit` granules reserved. Exact. If the demand's place does
  // not work but another one does, sets the place to that one. Beyond the limit no memory is added, but mapped memory
  // can be used.
  virtual bool can_hold(Demand& demand, Granules limit, Moving moving) const = 0;
  // For scarce memory: a place that leaves more for later requests than the one with the fewest new granules, if any.
  virtual Place best_place(Bytes, const Place& fewest) const { return fewest; }
  bool is_scarce(Bytes size, Granules cap) const {
    return kThousand * (in_use() + unit_.count(unit_.up(size))) > kScarce * cap;
  }
  // Whether a place adds too much to the memory in use while memory is scarce. find_better() then looks for something
  // better, and changes the demand to that.
  virtual bool is_wasteful(Span, Granules) const { return false; }
  virtual bool find_better(Demand&, Granules) const { return false; }
  // Finds memory for a request, and returns its offset.
  virtual std::optional<Offset> back(const Demand& demand, const Limit& limit, Step step, Lock& lock) = 0;
  // The same with new memory only, at an unmapped place: unmaps nothing and waits for no stream.
  virtual std::optional<Offset> back_with_new(const Demand& demand, const Limit& limit, Lock& lock) = 0;
  virtual Bytes largest(Granules limit, Moving moving) const = 0;  // the largest request that can_hold() accepts
  // Takes memory in advance; false at the limit.
  virtual bool reserve(Granules granules, const Limit& limit, Lock& lock) = 0;
  // Releases spare and idle handles down to `keep` reserved granules. If more than `most` are reserved, also goes below
  // `keep` to get there.
  virtual void trim(Granules keep, Granules most, Lock& lock) = 0;
  // Unmaps aliases that are no longer used. False if there are none.
  virtual bool drop_unused_aliases(const std::function<bool()>&) { return false; }
  // Frees untouched granules outside `keep` by changing the memory under live blocks. False if there are none. The
  // device must be idle and stay idle.
  virtual bool reback(Span keep) = 0;
  // Untouched granules that reback() would free.
  virtual Granules compactable() const = 0;
  virtual void extend_addresses(Granules) {}                                       // for a cap of so many granules
  virtual std::uint64_t range_of(std::uint64_t address) const { return address; }  // the start of its address range
  virtual bool holds(std::uint64_t address) const = 0;                             // whether it lies in a segment
  virtual bool is_plain() const { return false; }
  virtual MemoryKind kind() const { return {}; }   // of virtual memory
  virtual bool is_proven() const { return true; }  // the driver has given access to memory of this kind
  // Leaks all memory, because the device may still be using it.
  virtual void abandon() = 0;

  Bytes granule() const { return granule_; }
  Granules count(Bytes size) const { return unit_.count(size); }              // whole granules in so many bytes
  Bytes size() const { return (granules_.size() - separators_) * granule_; }  // of all segments
  Span span_of(Offset offset, Bytes size) const { return {unit_.count(offset), unit_.count(unit_.up(offset + size))}; }
  bool is_backed(Span span) const;
  bool is_unmapped(Span span) const;  // throughout
  bool has_lost(Span span) const;     // data
  // The offset must be backed.
  std::uint64_t address_of(Offset offset) const {
    const Handle& handle = handles_[granules_[unit_.count(offset)].handle];
    const Offset inside = offset - handle.begin * granule_;
    if (unit_.count(inside) < handle.count) [[likely]]
      return handle.address + inside;
    const Mapping alias = alias_at(handle, unit_.count(offset));
    return alias.address + (offset - alias.begin * granule_);
  }

  // A block was placed on the span, which must be backed; a block that is in use up to the marks was removed from it.
  void touch(Span span);
  void untouch(Span span, const Marks& marks);
  // To remove a block from a span temporarily: the marks of the memory under it, and the way back.
  struct SavedMarks {
    std::vector<std::pair<std::uint32_t, Marks>> handles;
    std::vector<Mark> granules;
  };
  SavedMarks save_marks(Span span) const;
  void touch_and_restore(Span span, const SavedMarks& marks);
  // Whether `user` has to wait for the last users of a span in a gap with these marks. More precise than the marks
  // alone: some parts of a gap may never have been used.
  bool must_wait(StreamIndex user, Span span, const Marks& marks) const {
    return streams_.must_wait(user, marks) && is_shared(user, span);
  }
  bool is_shared(StreamIndex user, Span span) const;
  // The marks of a gap that matter for a span in it.
  Marks marks_in(Span span, const Marks& marks) const;
  // The lowest place in a gap that is backed and that `user` need not wait for. Looks at up to `left` granules.
  std::optional<Offset> find_unshared(StreamIndex user, const Gap& gap, Bytes size, int& left) const;
  // The memory under a pinned span must not change.
  void pin(Span span);
  void unpin(Span span);

  // Asks the streams how far they have come, and updates which idle handles are pending.
  void poll(EventScope scope = EventScope::kContexts);
  // Polls for an inspection, and forgets the answers at the end. What is known to be reached decides which memory a
  // request gets, and inspections must not change that.
  class TemporaryPoll {
   public:
    explicit TemporaryPoll(Backing& backing);
    ~TemporaryPoll();
    TemporaryPoll(const TemporaryPoll&) = delete;
    TemporaryPoll& operator=(const TemporaryPoll&) = delete;

   private:
    Backing& backing_;
    std::vector<std::uint32_t> reached_;
  };
  // The marks of all idle handles that are not known to be reached.
  Marks pending_marks();

  // Whether the driver, or the upstream function, ran out of memory since the last forget_refusal().
  bool was_refused() const { return refused_; }
  void forget_refusal() { refused_ = false; }

  Granules reserved() const { return reserved_; }
  Granules incoming() const { return incoming_; }  // counted as reserved, but not obtained yet
  Granules outgoing() const { return outgoing_; }  // counted as reserved, but being released
  Granules in_transit() const { return incoming_ + outgoing_; }
  Bytes returned() const { return returned_ * granule_; }  // released so far
  Granules peak() const { return peak_; }                  // of reserved
  void restart_peak() { peak_ = reserved_ - incoming_; }
  void note_earlier_peak(Bytes size) { peak_ = std::max(peak_, unit_.count(unit_.up(size))); }
  Granules spare() const { return spare_granules_; }
  Granules idle() const { return idle_granules_; }
  Granules pending() const { return pending_granules_; }  // of the idle ones
  Granules touched() const { return touched_granules_; }
  Granules pinned() const { return pinned_granules_; }      // untouched ones in pinned handles
  Granules inactive() const { return inactive_granules_; }  // their memory is used at another address

  // The largest free piece that is backed throughout: the largest request that an allocator without stitching could
  // serve.
  Bytes largest_free() const;
  Place find_mapped(Bytes size) const;  // for a request up to that size

  std::uint64_t maps() const { return maps_; }
  std::uint64_t unmaps() const { return unmaps_; }
  std::uint64_t rebacked() const { return rebacked_; }

  // A handle or an alias.
  struct MappingInfo {
    Offset begin;
    Bytes size;
    std::uint64_t address;  // 0: spare
    bool idle, pending;
    std::uint64_t alias_of;  // the address of its handle; 0 for a handle
  };
  template <typename Visit>
  void each(Visit visit) const {
    for (const Handle& h : handles_) {
      if (h.count == 0) continue;
      const Bytes size = h.count * granule_;
      visit(MappingInfo{.begin = h.begin * granule_,
                        .size = size,
                        .address = h.mapped ? h.address : 0,
                        .idle = h.mapped && h.touched == 0,
                        .pending = h.pending,
                        .alias_of = 0});
      for (const Mapping& alias : h.aliases) {
        visit(MappingInfo{.begin = alias.begin * granule_,
                          .size = size,
                          .address = alias.address,
                          .idle = h.touched == 0,
                          .pending = h.pending,
                          .alias_of = h.address});
      }
    }
  }
  std::optional<std::string> problem() const;  // what is inconsistent; for validate()

 protected:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};
  static constexpr Index kSeparator = kNone - 1;  // the handle of a granule between two address ranges

  // Where a handle is mapped.
  struct Mapping {
    Granules begin = 0;
    std::uint64_t address = 0;
  };
  struct Handle {
    cu::MemHandle id = 0;             // of virtual memory
    std::function<void()> give_back;  // of a plain segment
    std::uint64_t address = 0;        // while it is mapped
    Granules begin = 0;
    Granules count = 0;  // 0: an unused slot
    Granules touched = 0;
    std::uint32_t pins = 0;
    bool mapped = false;
    bool accessible = false;
    bool idle = false;                  // mapped, and no block touches it
    bool sorted = false;                // in idle_
    bool queued = false;                // in unsorted_
    bool pending = false;               // idle, and its marks are not known to be reached
    Marks marks;                        // of blocks freed on it
    std::vector<Mapping> aliases = {};  // its other mappings
    Granules end() const { return begin + count; }
    Span span() const { return {begin, begin + count}; }
  };
  struct Granule {
    Index handle = kNone;
    std::uint32_t blocks = 0;
    bool lost = false;      // the data of blocks here was lost in a failed re-backing
    bool inactive = false;  // its memory is used at another address: there is neither a block nor a gap here
  };
  using BySize = std::set<std::pair<Granules, std::pair<Granules, Index>>>;  // size, place, handle

  // These only keep the books. A new or detached handle counts as spare, but is not in a list of spare handles.
  Index add_handle(Granules count);
  void remove_handle(Index index);
  void attach(Index index, Granules at, std::uint64_t address);
  void detach(Index index);
  void attach_alias(Index index, Mapping alias);
  void detach_alias(Index index, std::size_t which);
  // Uses the memory of a free granule at another address of the same handle.
  void switch_active(Granules from, Granules to);
  template <typename Visit>
  static void each_mapping(const Handle& handle, Visit visit) {
    visit(Mapping{handle.begin, handle.address});
    for (const Mapping& alias : handle.aliases) visit(alias);
  }
  Mapping mapping_at(Granules granule) const {  // the granule must be backed
    const Handle& handle = handles_[granules_[granule].handle];
    if (granule - handle.begin < handle.count) return {handle.begin, handle.address};
    return alias_at(handle, granule);
  }
  static Mapping alias_at(const Handle& handle, Granules granule);
  Granules end_of_mapping(Granules granule) const {
    return mapping_at(granule).begin + handles_[granules_[granule].handle].count;
  }
  void activate_touched(Granules from, Granules to);
  void clear_inactive(Granules granule);
  bool is_empty(const Handle& handle, Mapping mapping) const;  // no block touches it
  bool is_done(const Handle& handle, Mapping mapping) const;   // the device is known to be done with it
  template <typename Visit>
  void each_empty_alias(Visit visit) const {
    for (Index index = 0; index < handles_.size(); ++index) {
      for (const Mapping& alias : handles_[index].aliases) {
        if (is_empty(handles_[index], alias)) visit(index, alias);
      }
    }
  }
  void set_idle(Index index);
  void clear_idle(Index index);
  const BySize& idle_handles();
  // The size of a new handle: a share of what is left under the limit.
  Granules handle_size(Granules limit) const;
  Granules in_use() const { return reserved_ - spare_granules_ - idle_granules_; }  // in handles that a block touches
  Granules left_under(Granules limit) const { return limit > reserved_ ? limit - reserved_ : 0; }

  void note_peak();
  // A block with this mark was removed from a granule. `is_only`: the block has no other marks.
  void note_mark(Granules granule, Mark mark, bool is_only) {
    Mark& last = last_marks_[granule];
    if (last.stream == mark.stream) {
      mark.number = std::max(mark.number, last.number);  // cached blocks arrive here later than they were freed
    } else {
      is_only &= streams_.reached(last);
    }
    last = is_only ? mark : kSeveral;
  }
  bool is_shared(StreamIndex user, Granules granule) const {
    if (granule >= last_marks_.size()) return false;
    const Mark last = last_marks_[granule];
    return last.number == kSeveral.number || streams_.must_wait(user, last);
  }

  static constexpr Granules kThousand = 1000, kScarce = 600;  // memory is scarce when 60% of the cap is in use

  const Device& device_;
  Streams& streams_;
  Gaps& gaps_;
  const Bytes granule_;
  const GranuleSize unit_{granule_};
  const Granules growth_;
  std::vector<Granule> granules_;
  // The last mark of each granule since it was last mapped; kSeveral if several are not known to be reached.
  static constexpr Mark kSeveral{Streams::kAllStreams, ~std::uint64_t{0}};
  std::vector<Mark> last_marks_;
  std::vector<Handle> handles_;
  std::vector<Index> unused_;
  // Handles become idle much more often than one is looked for, so they are sorted only then. `unsorted_` may also have
  // handles that are no longer idle.
  BySize idle_;
  std::vector<Index> unsorted_;
  Granules reserved_ = 0, peak_ = 0, spare_granules_ = 0, idle_granules_ = 0, pending_granules_ = 0;
  Granules touched_granules_ = 0;
  Granules pinned_granules_ = 0;          // untouched ones in pinned handles
  Granules incoming_ = 0, outgoing_ = 0;  // of calls without the lock
  Granules returned_ = 0;                 // to the driver or upstream
  Granules inactive_granules_ = 0;
  Granules separators_ = 0;  // granules between address ranges
  Granules backed_end_ = 0;  // no granule from here on was ever backed
  std::uint64_t maps_ = 0, unmaps_ = 0, rebacked_ = 0;
  bool refused_ = false;
  // Incremented whenever handles or touched granules change, to invalidate cached results.
  std::uint64_t version_ = 1;
  struct KnownSize {
    std::uint64_t version = 0;
    Bytes size = 0;
  };
  mutable KnownSize largest_free_;
};

}  // namespace arena
