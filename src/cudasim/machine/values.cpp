#include "cudasim/machine/values.hpp"

#include <algorithm>
#include <deque>

#include "cudasim/machine/sparse.hpp"

namespace cudasim {
namespace {

struct Expected {
  std::uint64_t generation;
  std::deque<std::vector<char>> queue;
};

// Trivial, so that they can be used while a thread or the process exits; freed when the queue is empty.
thread_local Expected* expected = nullptr;
thread_local int marking_depth = 0;

}  // namespace

void Values::turn(bool on) {
  if (on && !on_.load()) forget_all();
  on_.store(on);
}

void Values::mark(Space& space, std::uint64_t address, std::uint64_t size, Content content) {
  space.each_part(address, clamped_end(address, size),
                  [&](std::uint64_t begin, std::uint64_t end, const Mapping* mapping) {
                    Contents* contents = contents_of(mapping);
                    if (contents == nullptr) return;
                    contents->set(begin - mapping->address, end - mapping->address, content, mapping->size);
                  });
}

void Values::forget(Space& space, std::uint64_t address, std::uint64_t size) {
  space.each_part(address, clamped_end(address, size),
                  [&](std::uint64_t begin, std::uint64_t end, const Mapping* mapping) {
                    Contents* contents = contents_of(mapping);
                    if (contents == nullptr) return;
                    const Content unknown = unknown_in(*mapping->physical);
                    contents->set(begin - mapping->address, end - mapping->address, unknown, mapping->size);
                  });
}

void Values::share(Physical& physical) {
  if (physical.tracking != Tracking::kOwn) return;
  physical.contents.enter(epoch_, Content::kUnknown);
  if (on()) settle_part(physical, 0, physical.extent);
  physical.tracking = Tracking::kShared;
}

void Values::begin_managed(Physical& physical) {
  physical.tracking = Tracking::kShared;
  physical.contents.enter(epoch_, Content::kKnown);
}

void Values::settle_part(Physical& physical, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t at = begin; at < end;) {
    const auto run = physical.contents.run_at(at, end);
    if (run.content == Content::kUnknown) {
      fill_sparsely({.data = physical.data(at), .size = run.end - at, .store = physical.store}, 0);
      physical.contents.set(at, run.end, Content::kZero, physical.extent);
    }
    at = run.end;
  }
}

void Values::settle(Space& space, std::uint64_t address, std::uint64_t size) {
  space.each_part(address, clamped_end(address, size),
                  [&](std::uint64_t begin, std::uint64_t end, const Mapping* mapping) {
                    if (contents_of(mapping) == nullptr) return;
                    settle_part(*mapping->physical, begin - mapping->address, end - mapping->address);
                  });
}

std::pair<std::uint64_t, std::uint64_t> Values::forget_around(Space& space, std::uint64_t address) {
  const Range* range = space.find(address);
  if (range == nullptr) return {0, 0};
  auto [begin, end] = range->kind == RangeKind::kReservation
                          ? space.run_around(address, *range)
                          : std::pair{range->address, range->address + round_up(range->size, kPage)};
  forget(space, begin, end - begin);
  return {begin, end};
}

void Values::report(const std::vector<UnknownRead>& reads) const {
  const Listener listener = listener_.load();
  if (listener == nullptr) return;
  for (const UnknownRead& read : reads) listener(read.address, read.size, read.unknown);
}

void expect(std::vector<char> bytes, std::uint64_t generation) {
  if (expected != nullptr && expected->generation != generation) forget_expected();
  if (expected == nullptr) expected = new Expected{generation, {}};
  expected->queue.push_back(std::move(bytes));
}

void forget_expected() {
  delete expected;
  expected = nullptr;
}

std::optional<std::vector<char>> take_expected(std::uint64_t size, std::uint64_t generation) {
  if (expected == nullptr) return std::nullopt;
  if (expected->generation != generation) {
    forget_expected();
    return std::nullopt;
  }
  auto& queue = expected->queue;
  const auto found =
      std::find_if(queue.begin(), queue.end(), [&](const std::vector<char>& bytes) { return bytes.size() == size; });
  if (found == queue.end()) return std::nullopt;
  std::vector<char> bytes = std::move(*found);
  queue.erase(found);
  if (queue.empty()) forget_expected();
  return bytes;
}

void begin_marking_by_caller() { ++marking_depth; }
void end_marking_by_caller() { marking_depth = std::max(0, marking_depth - 1); }
bool is_marking_by_caller() { return marking_depth > 0; }

}  // namespace cudasim
