// What the arena reports about itself: the account, a snapshot, and why a request failed. types.hpp defines the terms.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "core/types.hpp"

namespace arena {

// Running totals, except device_free, which comes from the driver, and largest, which comes from the gaps.
struct Stats {
  Bytes requested = 0, live = 0, reserved = 0;
  Bytes rounding = 0, pending = 0, captured = 0, releasable = 0, stranded = 0, spare = 0;
  Bytes compactable = 0;  // of stranded
  Bytes cap = 0, headroom = 0, device_total = 0, device_free = 0;
  Bytes largest = 0;  // request that would pass now: one of the next two, as the rules allow moving or not
  Bytes largest_without_moving = 0, largest_with_moving = 0;  // of live data
  Bytes peak_requested = 0, peak_live = 0, peak_reserved = 0;
  std::uint64_t allocations = 0, blocks = 0, hits = 0, splits = 0, failures = 0;
  std::uint64_t maps = 0, unmaps = 0, rebacked = 0, driver_calls = 0, waits = 0;
};

// The account when the most was reserved, and the largest free piece at that moment.
struct Peak {
  Stats stats;
  Bytes largest_free = 0;
};

// Peaks since the beginning; those in Stats can be reset.
struct Highest {
  Bytes live = 0, reserved = 0;
};

// Everything at one moment: blocks, free pieces and spare handles add up to the reserved bytes.
struct Snapshot {
  enum class State { kLive, kPending, kCaptured, kReleasable, kStranded };
  struct Segment {
    std::uint64_t address;
    Bytes size;
  };
  struct Handle {
    std::uint64_t address;  // 0: spare
    Bytes size;
  };
  // A second address of a handle. Its memory is counted once, at the address in use.
  struct Alias {
    std::uint64_t address;
    std::uint64_t handle;  // its address
    Bytes size;
  };
  // A block, or a free piece that is backed by one handle.
  struct Piece {
    std::uint64_t address;
    Bytes size;
    State state;
    // The rest is for blocks only.
    Bytes requested = 0;
    std::uint64_t stream = 0;
    std::uint64_t serial = 0;  // later allocations have higher ones
    std::string scope = {};
    bool pinned = false;
    std::uint32_t line = 0;
    std::int64_t born = 0;  // on the steady clock, in nanoseconds; 0 if unknown
  };
  Stats stats;
  Bytes largest_free = 0;  // in one piece that is backed throughout
  Peak peak;
  Bytes granule = 0;
  bool plain = false;
  Bytes addresses = 0;            // reserved for virtual memory
  std::vector<int> peers;         // devices that have access to it
  std::string remark;             // what is unusual on this device, and why; otherwise empty
  std::uint64_t next_serial = 0;  // later allocations have this serial or a higher one
  std::vector<Segment> segments;
  std::vector<Handle> handles;
  std::vector<Alias> aliases;
  std::vector<Piece> pieces;  // by address
};

// What moving live data would have done for a failed request.
struct ByMoving {
  Bytes largest = 0;   // request that would have passed
  Bytes set_free = 0;  // bytes it would have freed; 0 if the request would still have failed
};

// The scope whose budget a request would have exceeded.
struct BudgetUse {
  std::string scope;  // its name
  Bytes budget = 0, live = 0;
  std::vector<std::uint64_t> serials;  // of the blocks in it
};

// Why a request cannot be met.
enum class Verdict {
  kCapReached,
  kDeviceFull,
  kHeadroomKept,
  kFragmented,
  kTooFewAddresses,
  kPinned,
  kInTransit,
  kCapturing,
  kMovingForbidden,
  kBudgetReached,
};
// The name of each in Python, and its text. The text of a budget is followed by the scope. No other place has the texts.
struct VerdictWords {
  Verdict verdict;
  const char* name;
  const char* text;
};
inline constexpr VerdictWords kVerdicts[] = {
    {Verdict::kCapReached, "CAP_REACHED", "cap reached"},
    {Verdict::kDeviceFull, "DEVICE_FULL", "device full"},
    {Verdict::kHeadroomKept, "HEADROOM_KEPT", "headroom kept"},
    {Verdict::kFragmented, "FRAGMENTED", "fragmented"},
    {Verdict::kTooFewAddresses, "TOO_FEW_ADDRESSES", "too few addresses"},
    {Verdict::kPinned, "PINNED", "pinned memory kept"},
    {Verdict::kInTransit, "IN_TRANSIT", "memory is on its way"},
    {Verdict::kCapturing, "CAPTURING", "a stream is being captured"},
    {Verdict::kMovingForbidden, "MOVING_FORBIDDEN", "re-backing not allowed"},
    {Verdict::kBudgetReached, "BUDGET_REACHED", "budget of scope"},
};

// Why a request failed. All figures are from the same moment.
struct Failure {
  Verdict verdict;
  Bytes requested = 0;
  Bytes largest = 0;  // request that would have passed
  Bytes most = 0;     // request that would pass if nothing else were live; a larger one can never pass
  ByMoving by_moving = {};
  bool could_move = false;  // whether live data could be moved for this request
  std::optional<BudgetUse> budget = {};
  Stats stats = {};
  std::shared_ptr<const Snapshot> snapshot = {};  // null if the caller tries again

  std::string verdict_text() const;
  // The first line of the error, made from the fields. The size is a text because Python can request more than fits into
  // `requested`.
  std::string headline(const std::string& requested_size) const;
  std::string headline() const;
};

// A request that cannot be met, and why.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(Failure failure);
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

}  // namespace arena
