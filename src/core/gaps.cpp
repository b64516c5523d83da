#include "core/gaps.hpp"

#include <algorithm>
#include <utility>

namespace arena {

void Gaps::Offer::include(const Offer& other) {
  size = std::max(size, other.size);
  middle = std::max(middle, other.middle);
  edge = std::max(edge, other.edge);
  edges = std::max(edges, other.edges);
}

Gaps::Offer Gaps::offer_of(const Gap& gap) const {
  const Offset first = round_up(gap.begin, granule_), last = round_down(gap.end, granule_);
  if (first >= last) return {gap.size(), 0, gap.size(), gap.size()};
  const Bytes left = first - gap.begin, right = gap.end - last;
  return {gap.size(), (last - first) / granule_, std::max(left, right), left + right};
}

// Where in a gap that is large enough a request touches the fewest new granules, the left edge before the right.
Place Gaps::place_in(const Gap& gap, Bytes size) const {
  const Offset first = round_up(gap.begin, granule_), last = round_down(gap.end, granule_);
  if (first >= last) return {gap.begin, 0};
  const Bytes middle = (last - first) / granule_;
  const auto cost = [&](Bytes edge) {
    return size <= edge ? 0 : std::min(middle, (size - edge + granule_ - 1) / granule_);
  };
  const Bytes from_left = cost(first - gap.begin), from_right = cost(gap.end - last);
  if (from_left <= from_right) return {gap.begin, from_left};
  return {gap.end - size, from_right};
}

// The lowest gap that `fits`, in subtrees whose largest offers are `enough`.
template <typename Enough, typename Fits>
Gaps::Index Gaps::lowest(Index node, const Enough& enough, const Fits& fits) const {
  while (node != kNone && enough(nodes_[node].largest)) {
    const Index found = lowest(nodes_[node].left, enough, fits);
    if (found != kNone) return found;
    if (fits(nodes_[node].offer)) return node;
    node = nodes_[node].right;
  }
  return kNone;
}

// A request of k granules and a rest of r bytes touches k - 1 new granules (when it fills a gap so well that both edges
// take part), k (when an edge takes the rest), or k + 1. Tried in this order; the first two steps are one for requests
// below a granule.
std::optional<Place> Gaps::find(Bytes size) const {
  const auto answer = [&](Index node) { return place_in(nodes_[node].gap, size); };
  const auto no_new = [&](const Offer& o) { return o.edge >= size; };
  if (const Index node = lowest(root_, no_new, no_new); node != kNone) return answer(node);
  const Bytes whole = size / granule_, rest = size % granule_;
  if (whole >= 1) {
    const auto may_fill = [&](const Offer& o) { return o.size >= size && o.edges >= granule_ + rest; };
    const auto fills = [&](const Offer& o) { return may_fill(o) && o.middle + 1 == whole; };
    if (const Index node = lowest(root_, may_fill, fills); node != kNone) return answer(node);
    const auto large = [&](const Offer& o) { return o.size >= size; };
    const auto takes_rest = [&](const Offer& o) {
      return o.size >= size && (o.middle == whole || (o.middle > whole && o.edge >= rest));
    };
    if (const Index node = lowest(root_, large, takes_rest); node != kNone) return answer(node);
  }
  const auto has_room = [&](const Offer& o) { return o.middle > whole; };
  const Index node = lowest(root_, has_room, has_room);
  if (node == kNone) return std::nullopt;
  return answer(node);
}

Bytes Gaps::largest(Bytes new_granules) const {
  Bytes best = 0;
  raise(root_, new_granules, best);
  return best;
}

// An upper bound of what gaps with at most this to offer can hold.
Bytes Gaps::most(const Offer& offer, Bytes new_granules) const {
  if (new_granules == 0) return offer.edge;
  return std::min(offer.size, new_granules * granule_ + offer.edges);
}

// Goes only where more can be, and there first where the most can be: hardly more than one path.
void Gaps::raise(Index node, Bytes new_granules, Bytes& best) const {
  if (node == kNone || most(nodes_[node].largest, new_granules) <= best) return;
  const Offer& offer = nodes_[node].offer;
  best = std::max(best, offer.middle <= new_granules ? offer.size : new_granules * granule_ + offer.edge);
  Index first = nodes_[node].left, second = nodes_[node].right;
  const auto bound = [&](Index child) { return child == kNone ? 0 : most(nodes_[child].largest, new_granules); };
  if (bound(first) < bound(second)) std::swap(first, second);
  raise(first, new_granules, best);
  raise(second, new_granules, best);
}

void Gaps::add(Gap range) {
  if (const Index before = floor(range.begin); before != kNone && nodes_[before].gap.end == range.begin) {
    range.begin = nodes_[before].gap.begin;
    range.marks.join(nodes_[before].gap.marks);
    erase(range.begin);
  }
  if (const Index after = floor(range.end); after != kNone && nodes_[after].gap.begin == range.end) {
    const Offset met = range.end;
    range.end = nodes_[after].gap.end;
    range.marks.join(nodes_[after].gap.marks);
    erase(met);
  }
  if (range.marks.count() > 1) range.marks.drop_if(is_reached_);
  insert(range);
}

Marks Gaps::take(Offset begin, Bytes size) {
  const Gap whole = nodes_[floor(begin)].gap;
  erase(whole.begin);
  if (whole.begin < begin) insert({whole.begin, begin, whole.marks});
  if (begin + size < whole.end) insert({begin + size, whole.end, whole.marks});
  return whole.marks;
}

Gaps::Index Gaps::new_node(const Gap& gap) {
  Index node;
  if (unused_.empty()) {
    node = static_cast<Index>(nodes_.size());
    nodes_.emplace_back();
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  seed_ ^= seed_ << 13;  // xorshift: the shape of the tree need not be secret, only even
  seed_ ^= seed_ >> 17;
  seed_ ^= seed_ << 5;
  nodes_[node] = {gap, offer_of(gap), {}, seed_, kNone, kNone};
  update(node);
  return node;
}

void Gaps::update(Index node) {
  Node& n = nodes_[node];
  n.largest = n.offer;
  if (n.left != kNone) n.largest.include(nodes_[n.left].largest);
  if (n.right != kNone) n.largest.include(nodes_[n.right].largest);
}

Gaps::Index Gaps::merge(Index left, Index right) {
  if (left == kNone) return right;
  if (right == kNone) return left;
  if (nodes_[left].priority > nodes_[right].priority) {
    nodes_[left].right = merge(nodes_[left].right, right);
    update(left);
    return left;
  }
  nodes_[right].left = merge(left, nodes_[right].left);
  update(right);
  return right;
}

void Gaps::split(Index node, Offset at, Index& below, Index& above) {
  if (node == kNone) {
    below = above = kNone;
    return;
  }
  if (nodes_[node].gap.begin < at) {
    Index rest;
    split(nodes_[node].right, at, rest, above);
    nodes_[node].right = rest;
    below = node;
  } else {
    Index rest;
    split(nodes_[node].left, at, below, rest);
    nodes_[node].left = rest;
    above = node;
  }
  update(node);
}

void Gaps::insert(const Gap& gap) {
  const Index node = new_node(gap);
  Index below, above;
  split(root_, gap.begin, below, above);
  root_ = merge(merge(below, node), above);
  ++count_;
}

void Gaps::erase(Offset begin) {
  root_ = erase_in(root_, begin);
  --count_;
}

Gaps::Index Gaps::erase_in(Index node, Offset begin) {
  Node& n = nodes_[node];
  if (n.gap.begin == begin) {
    unused_.push_back(node);
    return merge(n.left, n.right);
  }
  Index& child = begin < n.gap.begin ? n.left : n.right;
  child = erase_in(child, begin);
  update(node);
  return node;
}

Gaps::Index Gaps::floor(Offset offset) const {
  Index found = kNone;
  for (Index node = root_; node != kNone;) {
    const Node& n = nodes_[node];
    if (n.gap.begin <= offset) {
      found = node;
      node = n.right;
    } else {
      node = n.left;
    }
  }
  return found;
}

bool Gaps::consistent() const {
  std::size_t seen = 0;
  return consistent(root_, 0, ~Offset{0}, seen) && seen == count_;
}

// Sorted, never side by side, heap-ordered, and each node knows the largest below it.
bool Gaps::consistent(Index node, Offset low, Offset high, std::size_t& seen) const {
  if (node == kNone) return true;
  const Node& n = nodes_[node];
  ++seen;
  Offer largest = offer_of(n.gap);
  if (!(largest == n.offer) || n.gap.begin < low || n.gap.begin >= n.gap.end || n.gap.end > high) return false;
  for (const Index child : {n.left, n.right}) {
    if (child == kNone) continue;
    if (nodes_[child].priority > n.priority) return false;
    largest.include(nodes_[child].largest);
  }
  return largest == n.largest && consistent(n.left, low, n.gap.begin - 1, seen) &&
         consistent(n.right, n.gap.end + 1, high, seen);
}

}  // namespace arena
