// Known and unknown memory: which bytes of device memory hold what a GPU would have put there, although no kernel runs.
// Keeps the marks by physical memory, so that they follow a handle wherever it is mapped, and are gone with it.
//
// Guarded by the machine's mutex, but for on(). Marks change when work is queued, in the order of the program's calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cudasim/machine/contents.hpp"
#include "cudasim/machine/space.hpp"

namespace cudasim {

// A copy to the host that read unknown bytes.
struct UnknownRead {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t unknown = 0;  // bytes
};

class Values {
 public:
  using Listener = void (*)(unsigned long long address, unsigned long long size, unsigned long long unknown);

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // What was written while it was off is unknown.
  void turn(bool on);
  void forget_all() { ++epoch_; }

  void mark(Space& space, std::uint64_t address, std::uint64_t size, Content content);
  // What a kernel may have written is unknown.
  void forget(Space& space, std::uint64_t address, std::uint64_t size);
  // From now on the host or another process may write the memory, too. Managed memory is known until a kernel gets it.
  void share(Physical& physical);
  void begin_managed(Physical& physical);
  // Calls visit(begin, end, content, tracking) for each run of bytes in [address, end). Memory that is not tracked, which
  // is the host's own, is known.
  template <typename Visit>
  void each_run(Space& space, std::uint64_t address, std::uint64_t end, const Visit& visit);
  // Calls visit(begin, end, tracking) for each part of [address, end).
  template <typename Visit>
  void each_part(Space& space, std::uint64_t address, std::uint64_t end, const Visit& visit);
  // Writes zeros where memory is unknown.
  void settle(Space& space, std::uint64_t address, std::uint64_t size);
  // A kernel may write everywhere around the address: in the allocation that holds it, or in all memory that is mapped
  // next to each other there. Returns that range; it is empty if there is no memory.
  std::pair<std::uint64_t, std::uint64_t> forget_around(Space& space, std::uint64_t address);

  void listen(Listener listener) { listener_.store(listener); }
  void report(const std::vector<UnknownRead>& reads) const;  // without the mutex

 private:
  static Content unknown_in(const Physical& physical) {
    return physical.tracking == Tracking::kShared ? Content::kZero : Content::kUnknown;
  }
  // Null for memory that is not tracked.
  Contents* contents_of(const Mapping* mapping) {
    if (mapping == nullptr || mapping->physical->tracking == Tracking::kNone) return nullptr;
    Physical& physical = *mapping->physical;
    physical.contents.enter(epoch_, unknown_in(physical));
    return &physical.contents;
  }

  void settle_part(Physical& physical, std::uint64_t begin, std::uint64_t end);

  std::atomic<bool> on_{false};
  std::atomic<Listener> listener_{nullptr};
  std::uint64_t epoch_ = 1;  // incremented to make everything unknown
};

// The end of [address, address + size), which may be nonsense from a caller.
inline std::uint64_t clamped_end(std::uint64_t address, std::uint64_t size) {
  return size > UINT64_MAX - address ? UINT64_MAX : address + size;
}

// Of the calling thread: what its next copies to the host of unknown memory deliver. Dropped when the machine was reset
// since (`generation`).
void expect(std::vector<char> bytes, std::uint64_t generation);
void forget_expected();
std::optional<std::vector<char>> take_expected(std::uint64_t size, std::uint64_t generation);

// While one lives on the calling thread (they nest), its launches change no marks.
void begin_marking_by_caller();
void end_marking_by_caller();
bool is_marking_by_caller();

template <typename Visit>
void Values::each_run(Space& space, std::uint64_t address, std::uint64_t end, const Visit& visit) {
  space.each_part(address, end, [&](std::uint64_t begin, std::uint64_t stop, const Mapping* mapping) {
    const Contents* contents = contents_of(mapping);
    if (contents == nullptr) return visit(begin, stop, Content::kKnown, Tracking::kNone);
    const std::uint64_t base = mapping->address;
    for (std::uint64_t at = begin; at < stop;) {
      const auto run = contents->run_at(at - base, stop - base);
      visit(at, base + run.end, run.content, mapping->physical->tracking);
      at = base + run.end;
    }
  });
}

template <typename Visit>
void Values::each_part(Space& space, std::uint64_t address, std::uint64_t end, const Visit& visit) {
  space.each_part(address, end, [&](std::uint64_t begin, std::uint64_t stop, const Mapping* mapping) {
    visit(begin, stop, mapping == nullptr ? Tracking::kNone : mapping->physical->tracking);
  });
}

}  // namespace cudasim
