// What backs the segment: which handle is mapped at which granules, and which granules blocks touch.
//
// A handle is mapped and taken away whole. It is idle while no block touches it: then it can be harvested, which means
// mapped somewhere else, or given back. Handles are large while there is much room under the limit, and smaller near
// it.
//
//   reserved = granules of handles that are in use + idle + spare
//   a granule that is touched is backed
//
// Granules are counted from the beginning of the segment.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/streams.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

using Granules = std::uint64_t;

// Granules [begin, end).
struct Span {
  Granules begin = 0;
  Granules end = 0;
  Granules count() const { return end - begin; }
};

class Backing {
 public:
  Backing(const Device& device, Streams& streams, std::uint64_t address, Granules granules, Granules growth);
  // Unmaps and releases everything; the device must be done with it.
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  // Backs every granule of the span, with at most `limit` granules reserved in all. False if that cannot be done with
  // what is idle and known to be unused; what was mapped by then stays, idle.
  bool back(Span span, Granules limit);
  // Gives idle handles that cannot be mapped where they are needed back to the device, so that smaller ones can be
  // created: at least `wanted` granules if there are so many. Returns how many it gave back.
  Granules release_idle(Granules wanted, Span keep);
  // Puts small handles in the place of the large one with the most untouched granules outside `keep`, through host
  // memory. No pointer changes. False if there is none. The device must be idle, and nobody may use it meanwhile.
  bool reback(Span keep);

  // A block came to lie on the span, which is backed; a block left it, and was last used before the marks.
  void touch(Span span);
  void leave(Span span, const Marks& marks);

  // Makes the idle handles' marks known, as far as they were reached.
  void poll();
  // The marks of all idle handles that are not known to have been reached.
  Marks pending_marks() const;

  // Takes memory in advance, mapped nowhere; false at the limit.
  bool reserve(Granules granules, Granules limit);
  // Gives back spare and idle handles down to `keep` granules reserved,
  // and, whatever that is, to `most` if what is free allows it.
  void trim(Granules keep, Granules most);

  Granules reserved() const { return reserved_; }
  Granules peak() const { return peak_; }  // the highest value of reserved
  Granules spare() const { return spare_granules_; }
  Granules idle() const { return idle_granules_; }
  Granules pending() const { return pending_granules_; }  // of the idle ones
  Granules touched() const { return touched_granules_; }
  // Untouched granules of handles that are in use.
  Granules compactable() const {
    const Granules touched = spare_granules_ + idle_granules_ + touched_granules_;
    return reserved_ > touched ? reserved_ - touched : 0;
  }
  bool is_backed(Span span) const;

  std::uint64_t maps() const { return maps_; }
  std::uint64_t unmaps() const { return unmaps_; }
  std::uint64_t rebacked() const { return rebacked_; }
  // Forgets everything without giving it back: for when the device may still be using it.
  void abandon() { handles_.clear(); }
  std::optional<std::string> problem() const;  // what is inconsistent; for validate()

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};

  struct Handle {
    cu::MemHandle id = 0;
    Granules begin = 0;
    Granules count = 0;  // 0: an unused slot
    Granules touched = 0;
    bool mapped = false;
    bool accessible = false;
    bool pending = false;  // idle, and its marks are not known to have been reached
    Marks marks;           // of blocks that left it
    Granules end() const { return begin + count; }
  };
  struct Granule {
    Index handle = kNone;
    std::uint32_t blocks = 0;
  };
  using BySize = std::set<std::pair<Granules, std::pair<Granules, Index>>>;  // size, place, handle

  std::uint64_t address_of(Granules granule) const { return address_ + granule * device_.granule(); }
  Granules room_at(Granules granule, Granules most) const;
  Granules handle_size(Granules limit) const;
  Index create(Granules count);
  void map(Index index, Granules at);
  void unmap(Index index);
  void allow(const std::vector<Index>& fresh);
  void retract(const std::vector<Index>& fresh);
  void put_spare(Index index);
  Index take_spare_exactly(Index index);
  void remount(Index index, Granules at, const Marks& marks);
  void give_back(Index index);
  Index take_spare(Granules need, Granules room);
  Index harvest(Granules need, Granules room, Span keep);
  void set_idle(Index index);
  void clear_idle(Index index);
  void replace(Index index, Span keep);
  void restore(Granules granule, const char* data);
  Index new_slot();

  const Device& device_;
  Streams& streams_;
  std::uint64_t address_;
  Granules growth_;
  std::vector<Granule> granules_;
  std::vector<Handle> handles_;
  std::vector<Index> unused_;
  BySize idle_, spare_;
  Granules reserved_ = 0, peak_ = 0, spare_granules_ = 0, idle_granules_ = 0, pending_granules_ = 0,
           touched_granules_ = 0;
  std::uint64_t maps_ = 0, unmaps_ = 0, rebacked_ = 0;
};

}  // namespace arena
