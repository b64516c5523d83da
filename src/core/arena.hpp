// The arena: blocks, under a cap. One lock. It is not held while the device is waited for, except where nobody else may
// come in between: re-backing, and streams that are gone or out of reach.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/backing.hpp"
#include "core/gaps.hpp"
#include "core/streams.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

struct ArenaSettings {
  Bytes cap = 0;
  Bytes reserve = 0;
  Bytes headroom = 0;
  Bytes growth = Bytes{64} << 20;
};

// Running counts, but for `largest`, which looks through the gaps, and with headroom asks the driver. The words are in
// types.hpp.
struct Stats {
  Bytes requested = 0, live = 0, reserved = 0;
  Bytes rounding = 0, pending = 0, releasable = 0, stranded = 0, spare = 0;
  Bytes compactable = 0;  // of stranded
  Bytes cap = 0, headroom = 0, device_total = 0;
  Bytes largest = 0;  // request that would pass now
  Bytes peak_requested = 0, peak_live = 0, peak_reserved = 0;
  std::uint64_t allocations = 0, maps = 0, unmaps = 0, rebacked = 0, driver_calls = 0, waits = 0;
};

// A request that cannot be met, and what it would have taken.
class OutOfMemory : public Error {
 public:
  OutOfMemory(const std::string& text, std::string verdict, Bytes requested, Bytes largest, const Stats& stats)
      : Error(text), verdict_(std::move(verdict)), requested_(requested), largest_(largest), stats_(stats) {}
  const std::string& verdict() const { return verdict_; }
  Bytes requested() const { return requested_; }
  Bytes largest() const { return largest_; }  // request that would have passed
  const Stats& stats() const { return stats_; }

 private:
  std::string verdict_;
  Bytes requested_, largest_;
  Stats stats_;
};

// A block in a user's hands.
struct Block {
  Offset offset = 0;
  Bytes size = 0;  // rounded
  Bytes requested = 0;
  StreamIndex stream = 0;
  std::vector<StreamIndex> others;  // that use it too
};

class Arena {
 public:
  Arena(std::shared_ptr<const Driver> driver, int device, const ArenaSettings& settings);
  // Waits for the device, and gives everything back, blocks included.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The address of a new block. Throws OutOfMemory. Re-backing moves live data: only for a caller who knows that nobody
  // gives the device work meanwhile.
  std::uint64_t allocate(Bytes size, cu::Stream stream, bool may_reback);
  // Throws UsageError for an address that is not a live block's.
  void free(std::uint64_t address);
  // The same for callers in a hurry: they never call the driver and never wait for the lock. Nothing, or false, means
  // that nothing was done; allocate() or free() will do it, or say why not.
  std::optional<std::uint64_t> try_allocate(Bytes size, cu::Stream stream);
  bool try_free(std::uint64_t address);
  // The block is also used by this stream: its memory is not used for anything else before the stream has passed the
  // point where it will be when the block is freed.
  void record_stream(std::uint64_t address, cu::Stream stream);
  // No more allocations. What is live stays until it is freed; all else is given back, now and then.
  void close();

  void trim();
  // Re-backs until every handle that is in use is touched everywhere, and trims. For callers who may re-back.
  void compact();
  void reserve(Bytes size);  // from now on: trim() keeps it
  // Waits for all work of the device, unless a stream is being captured, which that would break. For callers who are
  // about to allocate with `may_reback`, and must not wait then.
  void synchronize() const;
  void set_cap(Bytes cap);
  Stats stats() const;
  void validate() const;  // throws Error that says what is wrong

 private:
  // What is tried to back a place, in this order. Each costs more than the one before.
  enum class Effort { kPlain, kPoll, kWait, kRelease, kReback };

  Span span_of(Offset offset, Bytes size) const;
  Granules limit() const;
  bool back(Span span, Granules limit, Effort effort, std::unique_lock<std::mutex>& lock);
  std::uint64_t hand_out(Offset offset, Bytes rounded, Bytes size, StreamIndex user);
  void take_back(std::uint64_t address);
  void trim_to(Bytes keep);
  const char* why_full(Granules limit) const;
  [[noreturn]] void fail(Bytes size, const char* verdict) const;
  Bytes largest() const;
  Stats figures() const;
  Block& block_at(std::uint64_t address);

  // The addresses of the segment, given back after all that lies in them.
  struct Segment {
    Segment(const Device& device, Bytes size) : device(device), size(size), address(device.reserve_addresses(size)) {}
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    const Device& device;
    const Bytes size;
    const std::uint64_t address;
    bool abandoned = false;
  };

  mutable std::mutex mutex_;
  Device device_;
  ArenaSettings settings_;
  Segment segment_;
  Streams streams_;
  Backing backing_;
  Gaps gaps_;
  std::unordered_map<std::uint64_t, Block> blocks_;
  bool closed_ = false;
  Bytes requested_ = 0, live_ = 0, peak_requested_ = 0, peak_live_ = 0;
  std::uint64_t allocations_ = 0;
};

}  // namespace arena
