// What lies under the blocks: which handle backs which granules, and which granules blocks touch. Where handles come
// from, and what may be done with them, is up to the two kinds of backing: Stitched and Plain.
//
//   reserved = granules of handles that are in use + idle + spare
//   a granule that is touched is backed
//
// A handle may be mapped at several addresses: where it came to lie first, and at aliases. Each of its granules is used
// through one of them, where it is active; at the others it is inactive.
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

// What is tried to find memory for a place, in this order. Each costs more than the one before.
enum class Step { kUseFree, kPoll, kWait, kRelease, kReback };

// Memory for a request from what is free at the end of one handle, new or idle handles, and what is free at the beginning
// of another one, side by side at addresses where nothing is.
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
  std::optional<Stitch> stitch = {};  // where no place will do
  bool splits = false;                // idle handles of which only a part is needed are replaced by smaller ones
  bool may_alias = true;              // not where data is moved, which leaves less stranded
  Marks used = {};                    // streams that may still use memory from upstream
  // Not while a stream is being captured. Asked only where something would be unmapped: there may be many streams.
  std::function<bool()> may_unmap = [] { return true; };
  Bytes device_free = ~Bytes{0};  // known where nothing may be unmapped
};
// How many granules may be reserved in all, now: asked for again whenever others may have come in between.
using Limit = std::function<Granules()>;

class Backing {
 public:
  Backing(const Device& device, Streams& streams, Gaps& gaps, Bytes granule, Granules growth);
  virtual ~Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  // Whether a request can be met with at most `limit` granules reserved, by any means: exactly. If it can, but not at its
  // place, another one that works becomes its place. Beyond the limit nothing is added, but what is mapped can be used.
  virtual bool can_hold(Demand& demand, Granules limit, Moving moving) const = 0;
  // Where memory is scarce: a place that leaves more for later requests than the one with the fewest new granules, if there
  // is one.
  virtual Place best_place(Bytes, const Place& fewest) const { return fewest; }
  bool is_scarce(Bytes size, Granules cap) const {
    return kThousand * (in_use() + unit_.count(unit_.up(size))) > kScarce * cap;
  }
  // Whether a place adds much to what is in use although memory is scarce: something better may be put together, and is
  // what the demand becomes if find_better() finds it.
  virtual bool is_wasteful(Span, Granules) const { return false; }
  virtual bool find_better(Demand&, Granules) const { return false; }
  // Finds memory for a request, and returns where it may lie.
  virtual std::optional<Offset> back(const Demand& demand, const Limit& limit, Step step, Lock& lock) = 0;
  // The same with new memory only, at a place where none was: nothing is unmapped, no stream asked about or waited for.
  virtual std::optional<Offset> back_anew(const Demand& demand, const Limit& limit, Lock& lock) = 0;
  virtual Bytes largest(Granules limit, Moving moving) const = 0;  // request that can be met: exactly
  // Takes memory in advance; false at the limit.
  virtual bool reserve(Granules granules, const Limit& limit, Lock& lock) = 0;
  // Gives back spare and idle handles down to `keep` granules reserved,
  // and, whatever that is, to `most` if what is free allows it.
  virtual void trim(Granules keep, Granules most, Lock& lock) = 0;
  // Takes aliases away that nobody uses any more. False if there are none.
  virtual bool drop_unused_aliases(const std::function<bool()>&) { return false; }
  // Sets untouched granules outside `keep` free by changing what backs live blocks. False if there are none.
  // The device must be idle, and nobody may use it meanwhile.
  virtual bool reback(Span keep) = 0;
  // Untouched granules that reback() would set free.
  virtual Granules compactable() const = 0;
  virtual void make_room(Granules) {}                                              // for a request of so many
  virtual std::uint64_t range_of(std::uint64_t address) const { return address; }  // where that begins, of a handle
  virtual bool holds(std::uint64_t address) const = 0;                             // whether it lies in a segment
  virtual bool is_plain() const { return false; }
  virtual MemoryKind kind() const { return {}; }   // of virtual memory
  virtual bool is_proven() const { return true; }  // the driver has given memory of this kind
  // Forgets everything without giving it back: for when the device may still be using it.
  virtual void abandon() = 0;

  Bytes granule() const { return granule_; }
  Granules count(Bytes size) const { return unit_.count(size); }         // whole granules in so many bytes
  Bytes size() const { return (granules_.size() - walls_) * granule_; }  // of all that blocks and gaps may lie in
  Span span_of(Offset offset, Bytes size) const { return {unit_.count(offset), unit_.count(unit_.up(offset + size))}; }
  bool is_backed(Span span) const;
  bool is_bare(Span span) const;                   // backed nowhere
  bool has_lost(Span span) const;                  // data
  std::uint64_t address_of(Offset offset) const {  // which is backed
    const Handle& handle = handles_[granules_[unit_.count(offset)].handle];
    const Offset inside = offset - handle.begin * granule_;
    if (unit_.count(inside) < handle.count) [[likely]]
      return handle.address + inside;
    const Mapping alias = alias_at(handle, unit_.count(offset));
    return alias.address + (offset - alias.begin * granule_);
  }

  // A block came to lie on the span, which is backed; a block left it, and was last used before the marks.
  void touch(Span span);
  void leave(Span span, const Marks& marks);
  // For a block that leaves a span only for a while: the marks of what lies under it, and the block's return.
  struct SavedMarks {
    std::vector<std::pair<std::uint32_t, Marks>> handles;
    std::vector<Mark> granules;
  };
  SavedMarks save_marks(Span span) const;
  void touch_and_restore(Span span, const SavedMarks& marks);
  // Whether `user` has to wait for the last users of a span, which lies in a gap with these marks. More exact than the
  // marks alone: what was never used in a gap has nobody to wait for.
  bool must_wait(StreamIndex user, Span span, const Marks& marks) const {
    return streams_.must_wait(user, marks) && is_shared(user, span);
  }
  bool is_shared(StreamIndex user, Span span) const;
  // Of the marks of a gap, those that concern a span in it.
  Marks marks_in(Span span, const Marks& marks) const;
  // The lowest place in a gap that is backed and has nobody to wait for. Looks at no more granules than are `left`.
  std::optional<Offset> find_unshared(StreamIndex user, const Gap& gap, Bytes size, int& left) const;
  // What backs the span may not change while it is pinned.
  void pin(Span span);
  void unpin(Span span);

  // Asks the streams how far they have come, and notes which idle handles are no longer pending.
  void poll(EventScope scope = EventScope::kContexts);
  // For somebody who looks: while it lives, what was reached is known. Then that is forgotten, because what is known
  // decides what a request takes, and the same requests should meet the same arena, whoever looks.
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
  // The marks of all idle handles that are not known to have been reached.
  Marks pending_marks();

  // Whether the driver, or whoever gives memory, had none to give since the last forget_refusal().
  bool was_refused() const { return refused_; }
  void forget_refusal() { refused_ = false; }

  Granules reserved() const { return reserved_; }
  Granules coming() const { return coming_; }    // counted as reserved, but not taken yet
  Granules leaving() const { return leaving_; }  // counted as reserved, but given back by now, or about to be
  Granules moving() const { return coming_ + leaving_; }
  Bytes returned() const { return returned_ * granule_; }  // given back so far
  Granules peak() const { return peak_; }                  // the highest value of reserved
  void note_earlier_peak(Bytes size) { peak_ = std::max(peak_, unit_.count(unit_.up(size))); }
  Granules spare() const { return spare_granules_; }
  Granules idle() const { return idle_granules_; }
  Granules pending() const { return pending_granules_; }  // of the idle ones
  Granules touched() const { return touched_granules_; }
  Granules pinned() const { return pinned_granules_; }      // untouched, in handles that are pinned
  Granules inactive() const { return inactive_granules_; }  // what backs them is used at another address

  // The largest free piece that is backed throughout: all that a pool which cannot stitch would have to offer.
  Bytes largest_free() const;
  Place find_mapped(Bytes size) const;  // for a request that is not larger

  std::uint64_t maps() const { return maps_; }
  std::uint64_t unmaps() const { return unmaps_; }
  std::uint64_t rebacked() const { return rebacked_; }

  // Every handle and every alias.
  struct MappingInfo {
    Offset begin;
    Bytes size;
    std::uint64_t address;  // 0: spare
    bool idle, pending;
    std::uint64_t alias_of;  // the address of its handle; 0 if it is none
  };
  template <typename Visit>
  void each(Visit visit) const {
    for (const Handle& h : handles_) {
      if (h.count == 0) continue;
      const Bytes size = h.count * granule_;
      visit(MappingInfo{h.begin * granule_, size, h.mapped ? h.address : 0, h.mapped && h.touched == 0, h.pending, 0});
      for (const Mapping& alias : h.aliases) {
        visit(MappingInfo{alias.begin * granule_, size, alias.address, h.touched == 0, h.pending, h.address});
      }
    }
  }
  std::optional<std::string> problem() const;  // what is inconsistent; for validate()

 protected:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};
  static constexpr Index kWall = kNone - 1;  // of a granule that is in no range of addresses

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
    bool sorted = false;                // among those in idle_
    bool queued = false;                // among those in unsorted_
    bool pending = false;               // idle, and its marks are not known to have been reached
    Marks marks;                        // of blocks that left it
    std::vector<Mapping> aliases = {};  // where it is mapped as well
    Granules end() const { return begin + count; }
    Span span() const { return {begin, begin + count}; }
  };
  struct Granule {
    Index handle = kNone;
    std::uint32_t blocks = 0;
    bool lost = false;      // what blocks had here was lost in a re-backing that failed
    bool inactive = false;  // what backs it is used at another address: neither a block nor a gap lies here
  };
  using BySize = std::set<std::pair<Granules, std::pair<Granules, Index>>>;  // size, place, handle

  // A new handle, counted as spare but not yet among the spare ones; and one that is gone.
  Index add_handle(Granules count);
  void remove_handle(Index index);
  // A handle that is not among the spare ones comes to back a place, or does so no more and counts as spare.
  void attach(Index index, Granules at, std::uint64_t address);
  void detach(Index index);
  // The same for an alias, which backs nothing at first, and at last.
  void attach_alias(Index index, Mapping alias);
  void detach_alias(Index index, std::size_t which);
  // What backs a free granule is to be used at another address of the same handle.
  void switch_active(Granules from, Granules to);
  template <typename Visit>
  static void each_mapping(const Handle& handle, Visit visit) {
    visit(Mapping{handle.begin, handle.address});
    for (const Mapping& alias : handle.aliases) visit(alias);
  }
  Mapping mapping_at(Granules granule) const {  // which is backed
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
  bool is_done(const Handle& handle, Mapping mapping) const;   // nobody uses it any more, as far as is known
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
  // How large a new handle should be where data may be moved, or nothing can be: a part of what is left under the limit.
  Granules handle_size(Granules limit) const;
  Granules in_use() const { return reserved_ - spare_granules_ - idle_granules_; }  // by handles that a block touches
  Granules left_under(Granules limit) const { return limit > reserved_ ? limit - reserved_ : 0; }

  void note_peak();
  // A block left a granule of which `mark` is the last one that it made, and the only one or one of several.
  void note_mark(Granules granule, Mark mark, bool is_only) {
    Mark& last = last_marks_[granule];
    if (last.stream == mark.stream) {
      mark.number = std::max(mark.number, last.number);  // what a cache kept is put down after what was freed later
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

  static constexpr Granules kThousand = 1000, kScarce = 600;  // memory is scarce when 60 % of the cap are in use

  const Device& device_;
  Streams& streams_;
  Gaps& gaps_;
  const Bytes granule_;
  const GranuleSize unit_{granule_};
  const Granules growth_;
  std::vector<Granule> granules_;
  // The last mark of each granule that was ever backed, since it was; kSeveral if there are several not known to be
  // reached.
  static constexpr Mark kSeveral{Streams::kAllStreams, ~std::uint64_t{0}};
  std::vector<Mark> last_marks_;
  std::vector<Handle> handles_;
  std::vector<Index> unused_;
  // Idle handles come and go much more often than somebody looks for one: they are sorted only then. In `unsorted_` may
  // also be some that are not idle any more.
  BySize idle_;
  std::vector<Index> unsorted_;
  Granules reserved_ = 0, peak_ = 0, spare_granules_ = 0, idle_granules_ = 0, pending_granules_ = 0;
  Granules touched_granules_ = 0;
  Granules pinned_granules_ = 0;       // untouched ones of handles with pins
  Granules coming_ = 0, leaving_ = 0;  // while the lock is not held
  Granules returned_ = 0;              // to the driver or upstream
  Granules inactive_granules_ = 0;
  Granules walls_ = 0;       // granules that are in no range of addresses
  Granules backed_end_ = 0;  // no granule from here on was ever backed
  std::uint64_t maps_ = 0, unmaps_ = 0, rebacked_ = 0;
  bool refused_ = false;
  // Incremented whenever handles, or what touches them, change: what was found before may be wrong.
  std::uint64_t version_ = 1;
  struct KnownSize {
    std::uint64_t version = 0;
    Bytes size = 0;
  };
  mutable KnownSize largest_free_;
};

}  // namespace arena
