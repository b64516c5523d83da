#include "core/space/gaps.hpp"

#include <algorithm>
#include <utility>

namespace arena {

void Gaps::Summary::include(const Summary& other) {
#ifdef __GNUC__  // GCC does not vectorise the code below by itself
  using Four = std::int32_t __attribute__((vector_size(16)));
  Four mine, theirs;
  std::memcpy(&mine, this, sizeof mine);
  std::memcpy(&theirs, &other, sizeof theirs);
  mine = mine > theirs ? mine : theirs;
  std::memcpy(this, &mine, sizeof mine);
#else
  size = std::max(size, other.size);
  middle = std::max(middle, other.middle);
  edge = std::max(edge, other.edge);
  edges = std::max(edges, other.edges);
#endif
}

Gaps::Summary Gaps::summary_of(const Gap& gap) const {
  const Offset first = granule_.up(gap.begin), last = granule_.down(gap.end);
  const std::int32_t size = units(gap.size());
  if (first >= last) return {.size = size, .middle = 0, .edge = size, .edges = size};
  const Bytes left = first - gap.begin, right = gap.end - last;
  const auto middle = static_cast<std::int32_t>(granule_.count(last - first));
  return {.size = size, .middle = middle, .edge = units(std::max(left, right)), .edges = units(left + right)};
}

// The place in a large enough gap where a request touches the fewest new granules. Prefers the left edge.
Place Gaps::place_in(const Gap& gap, Bytes size) const {
  const Offset first = granule_.up(gap.begin), last = granule_.down(gap.end);
  if (first >= last) return {gap.begin, 0};
  const Bytes middle = granule_.count(last - first);
  const auto cost = [&](Bytes edge) {
    return size <= edge ? 0 : std::min(middle, granule_.count(granule_.up(size - edge)));
  };
  const Bytes from_left = cost(first - gap.begin), from_right = cost(gap.end - last);
  if (from_left <= from_right) return {gap.begin, from_left};
  return {gap.end - size, from_right};
}

// The lowest gap that fits. `fits` must be true of a subtree's maxima if and only if it is true of a gap in it.
template <typename Fits>
Gaps::Index Gaps::lowest(const Fits& fits) const {
  const Node* nodes = nodes_.data();
  if (!fits(nodes[root_].largest)) return kNone;
  Index node = root_;
  while (true) {
    if (fits(nodes[nodes[node].child[0]].largest)) {
      node = nodes[node].child[0];
    } else if (fits(nodes[node].own)) {
      return node;
    } else {
      node = nodes[node].child[1];
    }
  }
}

// The lowest gap that fits. Subtrees whose maxima are not `enough` are skipped; an empty one never is enough.
template <typename Enough, typename Fits>
Gaps::Index Gaps::lowest(Index node, const Enough& enough, const Fits& fits) const {
  while (enough(nodes_[node].largest)) {
    const Index found = lowest(nodes_[node].child[0], enough, fits);
    if (found != kNone) return found;
    if (fits(nodes_[node].own)) return node;
    node = nodes_[node].child[1];
  }
  return kNone;
}

// A request of k granules and a rest of r bytes touches k - 1 new granules (if it fills a gap so well that it uses both
// edges), k (if an edge holds the rest), or k + 1. Tried in this order; for requests below a granule, the first two are
// the same.
std::optional<Place> Gaps::find(Bytes wanted) const {
  const auto answer = [&](Index node) {
    Place place = place_in(nodes_[node].gap, wanted);
    place.gap = node;
    return place;
  };
  const std::int32_t size = units(wanted);
  const auto no_new = [&](const Summary& o) { return o.edge >= size; };
  if (const Index node = lowest(no_new); node != kNone) return answer(node);
  const auto whole = static_cast<std::int32_t>(granule_.count(wanted));
  const std::int32_t rest = units(granule_.rest(wanted)), granule = units(granule_.bytes());
  if (whole >= 1) {
    const auto may_fill = [&](const Summary& o) { return o.size >= size && o.edges >= granule + rest; };
    const auto fills = [&](const Summary& o) { return may_fill(o) && o.middle + 1 == whole; };
    if (const Index node = lowest(root_, may_fill, fills); node != kNone) return answer(node);
    const auto large = [&](const Summary& o) { return o.size >= size; };
    const auto takes_rest = [&](const Summary& o) {
      return o.size >= size && (o.middle == whole || (o.middle > whole && o.edge >= rest));
    };
    if (const Index node = lowest(root_, large, takes_rest); node != kNone) return answer(node);
  }
  const auto has_room = [&](const Summary& o) { return o.middle > whole; };
  const Index node = lowest(has_room);
  if (node == kNone) return std::nullopt;
  return answer(node);
}

Bytes Gaps::largest(Bytes new_granules) const {
  Bytes best = 0;
  raise_largest(root_, new_granules, best);
  return best;
}

// An upper bound on the request that fits into gaps with these maxima.
Bytes Gaps::upper_bound(const Summary& summary, Bytes new_granules) const {
  if (new_granules == 0) return bytes(summary.edge);
  return std::min(bytes(summary.size), new_granules * granule_.bytes() + bytes(summary.edges));
}

// Branch and bound: descends into the more promising child first, so it visits little more than one path.
void Gaps::raise_largest(Index node, Bytes new_granules, Bytes& best) const {
  if (upper_bound(nodes_[node].largest, new_granules) <= best) return;
  const Summary& own = nodes_[node].own;
  const bool is_all = static_cast<Bytes>(own.middle) <= new_granules;
  best = std::max(best, is_all ? bytes(own.size) : new_granules * granule_.bytes() + bytes(own.edge));
  Index first = nodes_[node].child[0], second = nodes_[node].child[1];
  const auto bound = [&](Index child) { return upper_bound(nodes_[child].largest, new_granules); };
  if (bound(first) < bound(second)) std::swap(first, second);
  raise_largest(first, new_granules, best);
  raise_largest(second, new_granules, best);
}

// Moving a block down to the start of its first granule, or to the start of the gap if that is higher, makes it touch
// no new granule. So only these places need to be considered, and only one of them from `end` on, where all cost the
// same.
std::optional<Place> Gaps::find_cheapest(Bytes wanted, Granules end, const Costs& costs) const {
  std::optional<Place> best;
  const auto consider = [&](Offset offset, Granules cost) {
    if (!best || cost < best->new_granules) best = {offset, cost};
  };
  const auto cost_of = [&](Granules granule) -> Granules { return granule >= end || costs(granule); };
  const Granules width = granule_.count(granule_.up(wanted));
  const auto visit = [&](const Gap& gap) {
    Granules cost = 0;
    for (Granules g = granule_.count(gap.begin); g < granule_.count(granule_.up(gap.begin + wanted)); ++g) {
      cost += cost_of(g);
    }
    consider(gap.begin, cost);
    cost = 0;
    Granules at = granule_.count(granule_.up(gap.begin)), next = at;  // `cost` is that of [at, next)
    for (; at * granule_.bytes() + wanted <= gap.end; cost -= cost_of(at++)) {
      for (; next < at + width; ++next) cost += cost_of(next);
      consider(at * granule_.bytes(), cost);
      if (at >= end) break;
    }
  };
  const Bytes bound = wanted - 1;
  visit_larger(root_, bound, visit);
  return best;
}

// Slides a window over the granules of each gap, as wide as the budget allows.
Bytes Gaps::largest(Granules budget, Granules end, const Costs& costs) const {
  Bytes best = 0;
  const auto cost_of = [&](Granules granule) -> Granules { return granule >= end || costs(granule); };
  const auto visit = [&](const Gap& gap) {
    Granules begin = granule_.count(gap.begin), cost = 0;
    const Granules last = std::min(granule_.count(granule_.up(gap.end)), std::max(begin, end) + budget + 1);
    for (Granules g = begin; g < last; ++g) {
      cost += cost_of(g);
      while (cost > budget) cost -= cost_of(begin++);
      const Offset from = std::max(gap.begin, begin * granule_.bytes());
      const Offset to = std::min(gap.end, (g + 1) * granule_.bytes());
      if (from < to) best = std::max(best, to - from);
    }
  };
  visit_larger(root_, best, visit);
  return best;
}

// Both neighbours of an offset lie on the path down to it.
Gaps::Neighbours Gaps::near(Offset offset) const {
  Neighbours found;
  for (Index node = root_; node != kNone;) {
    const Node& n = nodes_[node];
    const bool is_before = n.gap.begin <= offset;  // unpredictable, so no branches
    found.before = is_before ? node : found.before;
    found.after = is_before ? found.after : node;
    node = is_before ? n.child[1] : n.child[0];
  }
  return found;
}

Gaps::Neighbours Gaps::adjacent(Offset begin, Offset end) const {
  Neighbours found = near(begin);
  if (found.before != kNone && nodes_[found.before].gap.end != begin) found.before = kNone;
  if (found.after != kNone && nodes_[found.after].gap.begin != end) found.after = kNone;
  return found;
}

// From a changed node up to the root, or until nothing changes any more.
void Gaps::update_from(Index index) {
  while (index != kNone) {
    Node& node = nodes_[index];
    const Summary before = node.largest;
    update(node);
    if (node.largest == before) return;
    index = node.parent;
  }
}

void Gaps::drop(Index node) {
  const Node& n = nodes_[node];
  const Index parent = n.parent, below = merge(n.child[0], n.child[1]);
  nodes_[below].parent = parent;
  if (parent == kNone) {
    root_ = below;
  } else {
    Node& above = nodes_[parent];
    (above.child[0] == node ? above.child[0] : above.child[1]) = below;
    update_from(parent);
  }
  unused_.push_back(node);
  --count_;
}

void Gaps::add(Gap range, const Marks& marks) {
  auto [kept, other] = adjacent(range.begin, range.end);
  if (kept == kNone) std::swap(kept, other);
  if (kept == kNone) {
    marks_[insert(range)] = marks;
    return;
  }
  Marks& joined = marks_[kept];
  joined.join(marks);
  if (other != kNone) {
    range.end = nodes_[other].gap.end;
    joined.join(marks_[other]);
    drop(other);
  }
  if (joined.count() > 1) joined.drop_if(is_reached_);
  Node& node = nodes_[kept];
  node.gap = {std::min(node.gap.begin, range.begin), std::max(node.gap.end, range.end)};
  node.own = summary_of(node.gap);
  update_from(kept);
}

bool Gaps::take(Offset begin, Bytes size) { return take_from(floor(begin), begin, size); }

bool Gaps::take_from(Index gap, Offset begin, Bytes size) {
  Node& node = nodes_[gap];
  const Offset end = begin + size, last = node.gap.end;
  if (node.gap.begin == begin && last == end) {
    drop(gap);
    return true;
  }
  const bool leaves_two = node.gap.begin < begin && end < last;
  if (node.gap.begin == begin) {
    node.gap.begin = end;
  } else {
    node.gap.end = begin;
  }
  node.own = summary_of(node.gap);
  update_from(gap);
  if (leaves_two) {
    const Index rest = insert({end, last});
    marks_[rest] = marks_[gap];
  }
  return false;
}

Gaps::Adjacent Gaps::adjacent_to(Offset begin, Offset end) const {
  const Neighbours found = adjacent(begin, end);
  Adjacent gaps;
  if (found.before != kNone) gaps.before = {nodes_[found.before].gap, marks_[found.before]};
  if (found.after != kNone) gaps.after = {nodes_[found.after].gap, marks_[found.after]};
  return gaps;
}

void Gaps::undo_add(Offset begin, const Adjacent& adjacent) {
  drop(floor(begin));
  for (const auto& gap : {adjacent.before, adjacent.after}) {
    if (gap) marks_[insert(gap->gap)] = gap->marks;
  }
}

Gaps::Index Gaps::new_node(Gap gap) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<Index>(nodes_.size()));
    nodes_.emplace_back();
    marks_.emplace_back();
  }
  const Index node = unused_.back();
  unused_.pop_back();
  seed_ ^= seed_ << 13;  // xorshift is good enough to balance the tree
  seed_ ^= seed_ >> 17;
  seed_ ^= seed_ << 5;
  const Summary own = summary_of(gap);
  nodes_[node] = {.largest = own, .own = own, .gap = gap, .priority = seed_};
  return node;
}

void Gaps::update(Node& node) {
  Summary largest = node.own;
  largest.include(nodes_[node.child[0]].largest);
  largest.include(nodes_[node.child[1]].largest);
  node.largest = largest;
}

// After the children of a node have changed.
void Gaps::link_children(Index index) {
  Node& node = nodes_[index];
  nodes_[node.child[0]].parent = nodes_[node.child[1]].parent = index;
  update(node);
}

Gaps::Index Gaps::merge(Index left, Index right) {
  if (left == kNone) return right;
  if (right == kNone) return left;
  if (nodes_[left].priority > nodes_[right].priority) {
    nodes_[left].child[1] = merge(nodes_[left].child[1], right);
    link_children(left);
    return left;
  }
  nodes_[right].child[0] = merge(left, nodes_[right].child[0]);
  link_children(right);
  return right;
}

void Gaps::split(Index node, Offset at, Index& below, Index& above) {
  if (node == kNone) {
    below = above = kNone;
    return;
  }
  if (nodes_[node].gap.begin < at) {
    Index rest;
    split(nodes_[node].child[1], at, rest, above);
    nodes_[node].child[1] = rest;
    below = node;
  } else {
    Index rest;
    split(nodes_[node].child[0], at, below, rest);
    nodes_[node].child[0] = rest;
    above = node;
  }
  link_children(node);
}

// Descends to where the node's priority puts it, and splits the subtree there. The maxima of the nodes above can only
// grow.
Gaps::Index Gaps::insert(Gap gap) {
  const Index made = new_node(gap);
  Node& node = nodes_[made];
  Index* place = &root_;
  while (nodes_[*place].priority >= node.priority) {
    Node& above = nodes_[*place];
    above.largest.include(node.own);
    node.parent = *place;
    place = node.gap.begin < above.gap.begin ? &above.child[0] : &above.child[1];
  }
  const Index below = *place;
  *place = made;
  split(below, node.gap.begin, node.child[0], node.child[1]);
  link_children(made);
  ++count_;
  return made;
}

Gaps::Index Gaps::floor(Offset offset) const {
  Index found = kNone;
  for (Index node = root_; node != kNone;) {
    const Node& n = nodes_[node];
    if (n.gap.begin <= offset) {
      found = node;
      node = n.child[1];
    } else {
      node = n.child[0];
    }
  }
  return found;
}

bool Gaps::consistent() const {
  std::size_t seen = 0;
  return (root_ == kNone || nodes_[root_].parent == kNone) && consistent(root_, 0, ~Offset{0}, seen) && seen == count_;
}

// Gaps are sorted and never adjacent, nodes are heap-ordered, and each has the maxima of its subtree.
bool Gaps::consistent(Index node, Offset low, Offset high, std::size_t& seen) const {
  if (node == kNone) return true;
  const Node& n = nodes_[node];
  ++seen;
  Summary largest = summary_of(n.gap);
  if (!(largest == n.own) || n.gap.begin < low || n.gap.begin >= n.gap.end || n.gap.end > high) return false;
  for (const Index child : {n.child[0], n.child[1]}) {
    if (child == kNone) continue;
    if (nodes_[child].priority > n.priority || nodes_[child].parent != node) return false;
    largest.include(nodes_[child].largest);
  }
  return largest == n.largest && consistent(n.child[0], low, n.gap.begin - 1, seen) &&
         consistent(n.child[1], n.gap.end + 1, high, seen);
}

}  // namespace arena
