// The free list: the gaps between blocks, and the best place for a request.
//
// The best place touches the fewest granules that no block touches yet; among equals it is the lowest. A gap begins and
// ends inside granules that its neighbours touch, or at granule boundaries:
//
//        granule        granule        granule        granule
//     |..........LLLL|MMMMMMMMMMMMMM|MMMMMMMMMMMMMM|RRR...........|      . block   L M R gap
//
// L and R are its edges, in touched granules; M is its middle, of whole untouched granules. A request of s bytes
// anchored at an edge of e bytes touches ceil((s - e) / granule) new granules, but never more than the middle has.
//
// The gaps form a treap by address. Every node stores the maximum gap, middle and edges of its subtree, so the lowest
// gap that is large enough is found on one path down.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/streams/marks.hpp"
#include "core/types.hpp"

namespace arena {

struct Gap {
  Offset begin = 0;
  Offset end = 0;
  Bytes size() const { return end - begin; }
};

struct Place {
  Offset offset = 0;
  Bytes new_granules = 0;
  std::uint32_t gap = 0;  // the node of its gap, until something changes
};

class Gaps {
 public:
  // `is_reached` says which marks can be dropped: otherwise a growing gap would collect the marks of all streams ever.
  Gaps(Bytes granule, std::function<bool(Mark)> is_reached) : granule_(granule), is_reached_(std::move(is_reached)) {}

  // Frees a range that is in use up to the marks. It must not overlap a gap. Coalesces it with adjacent gaps and joins
  // their marks.
  void add(Gap range, const Marks& marks);
  // Takes a range that lies inside one gap. What is left of the gap keeps its marks; true if nothing is left.
  bool take(Offset begin, Bytes size);
  // The same for a place that was just found.
  bool take(const Place& place, Bytes size) { return take_from(place.gap, place.offset, size); }
  bool holds(Offset begin, Bytes size) const {
    const Index node = floor(begin);
    return node != kNone && begin + size <= nodes_[node].gap.end;
  }
  // The gaps adjacent to a range. undo_add() takes the range out again after add(), and restores them.
  struct MarkedGap {
    Gap gap;
    Marks marks;
  };
  struct Adjacent {
    std::optional<MarkedGap> before, after;
  };
  Adjacent adjacent_to(Offset begin, Offset end) const;
  void undo_add(Offset begin, const Adjacent& adjacent);
  std::optional<Place> find(Bytes wanted) const;

  // Visits up to kMostVisits gaps that hold a request, by address, until the visitor returns true.
  template <typename Visit>
  void each_that_holds(Bytes wanted, Visit visit) const {
    int left = kMostVisits;
    visit_that_hold(root_, wanted, left, visit);
  }

  const Marks& marks_of(const Place& place) const { return marks_[place.gap]; }  // of a place that was just found
  // The marks of the gap that holds an offset.
  const Marks& marks_at(Offset offset) const { return marks_[floor(offset)]; }
  // The largest request that touches at most `new_granules` new granules.
  Bytes largest(Bytes new_granules) const;

  // find() and largest() where only some untouched granules cost anything, as `costs` says; from granule `end` on, all
  // do. These look at every granule of every gap that is large enough.
  using Costs = std::function<bool(Granules)>;
  // The lowest place with the lowest cost, which is its `new_granules`.
  std::optional<Place> find_cheapest(Bytes wanted, Granules end, const Costs& costs) const;
  // The largest request that has a place with a cost of at most `budget`.
  Bytes largest(Granules budget, Granules end, const Costs& costs) const;

  Bytes largest_gap() const { return bytes(nodes_[root_].largest.size); }

  // The largest piece of a gap that lies in touched granules.
  Bytes largest_edge() const { return bytes(nodes_[root_].largest.edge); }

  std::size_t count() const { return count_; }
  template <typename Visit>
  void each(Visit visit) const {
    visit_all(root_, visit);
  }
  // Gaps that have a middle.
  template <typename Visit>
  void each_with_middle(Visit visit) const {
    visit_with_middle(root_, visit);
  }
  // Checks the invariants of the treap, for validate().
  bool consistent() const;

 private:
  using Index = std::uint32_t;
  static constexpr int kMostVisits = 64;
  static constexpr Index kNone = 0;  // a sentinel node without room, so that most code need not check for it

  // The room in a gap, or the maxima of several gaps: four numbers that fit into one register, because they are
  // compared more often than anything else. Bytes are counted in units of the alignment, and saturate.
  struct alignas(16) Summary {
    std::int32_t size = 0;
    std::int32_t middle = 0;  // in granules
    std::int32_t edge = 0;    // the larger of the two; for a gap without a middle, all of it
    std::int32_t edges = 0;   // both together
    void include(const Summary& other);
    bool operator==(const Summary& other) const { return std::memcmp(this, &other, sizeof other) == 0; }
  };
  static std::int32_t units(Bytes size) {
    return static_cast<std::int32_t>(std::min<Bytes>(size / kAlignment, std::numeric_limits<std::int32_t>::max()));
  }
  static Bytes bytes(std::int32_t units) { return static_cast<Bytes>(units) * kAlignment; }
  // One cache line, with only what is needed on the way down the tree.
  struct alignas(64) Node {
    Summary largest;  // maxima of the subtree
    Summary own;
    Gap gap;
    std::uint32_t priority = 0;
    Index child[2] = {kNone, kNone};  // lower and higher addresses
    Index parent = kNone;
  };

  Summary summary_of(const Gap& gap) const;
  Place place_in(const Gap& gap, Bytes size) const;
  template <typename Fits>
  Index lowest(const Fits& fits) const;
  template <typename Enough, typename Fits>
  Index lowest(Index node, const Enough& enough, const Fits& fits) const;

  Bytes upper_bound(const Summary& summary, Bytes new_granules) const;
  void raise_largest(Index node, Bytes new_granules, Bytes& best) const;

  bool take_from(Index gap, Offset begin, Bytes size);
  Index new_node(Gap gap);
  void link_children(Index node);
  void update(Node& node);
  Index merge(Index left, Index right);
  bool consistent(Index node, Offset low, Offset high, std::size_t& seen) const;
  void split(Index node, Offset at, Index& below, Index& above);  // into gaps that begin before `at`, and the others
  Index insert(Gap gap);
  Index floor(Offset offset) const;  // the last gap that begins at or before an offset

  struct Neighbours {
    Index before = kNone, after = kNone;
  };
  Neighbours near(Offset offset) const;
  Neighbours adjacent(Offset begin, Offset end) const;
  void update_from(Index node);
  void drop(Index node);
  template <typename Visit>
  void visit_all(Index node, Visit& visit) const {
    if (node == kNone) return;
    visit_all(nodes_[node].child[0], visit);
    visit(nodes_[node].gap);
    visit_all(nodes_[node].child[1], visit);
  }

  // Visits gaps larger than `bound`, which the visitor may raise.
  template <typename Visit>
  void visit_larger(Index node, const Bytes& bound, Visit& visit) const {
    if (node == kNone || bytes(nodes_[node].largest.size) <= bound) return;
    visit_larger(nodes_[node].child[0], bound, visit);
    if (nodes_[node].gap.size() > bound) visit(nodes_[node].gap);
    visit_larger(nodes_[node].child[1], bound, visit);
  }

  template <typename Visit>
  void visit_with_middle(Index node, Visit& visit) const {
    if (node == kNone || nodes_[node].largest.middle == 0) return;
    visit_with_middle(nodes_[node].child[0], visit);
    if (nodes_[node].own.middle > 0) visit(nodes_[node].gap);
    visit_with_middle(nodes_[node].child[1], visit);
  }

  template <typename Visit>
  bool visit_that_hold(Index node, Bytes wanted, int& left, Visit& visit) const {
    if (node == kNone || nodes_[node].largest.size < units(wanted)) return false;
    if (visit_that_hold(nodes_[node].child[0], wanted, left, visit)) return true;
    if (nodes_[node].own.size >= units(wanted) && (visit(nodes_[node].gap, node) || --left == 0)) return true;
    return visit_that_hold(nodes_[node].child[1], wanted, left, visit);
  }

  GranuleSize granule_;
  std::function<bool(Mark)> is_reached_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Marks> marks_ = std::vector<Marks>(1);  // of each node's gap
  std::vector<Index> unused_;
  Index root_ = kNone;
  std::size_t count_ = 0;
  std::uint32_t seed_ = 2463534242;
};

}  // namespace arena
