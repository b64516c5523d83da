// Physical memory: sparse in-memory files, of which handles and allocations are ranges. Owns the file descriptors, and
// knows who owns which range; knows nothing of device addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace cudasim {

inline constexpr unsigned kMaxDevices = 16;
inline constexpr std::uint64_t kMinDeviceMemory = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kMaxDeviceMemory = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

class Placed;

// One sparse file, mapped as a whole (`data`), so that the simulated device can access any byte at any time, whatever
// the program maps or unmaps: a stray operation reads wrong bytes or returns an error, but never crashes.
class Store {
 public:
  explicit Store(std::uint64_t span);         // throws std::bad_alloc when the host refuses
  Store(int descriptor, std::uint64_t span);  // from another process; takes the descriptor over
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  char* data(std::uint64_t offset) const { return window_ + offset; }
  int descriptor() const { return descriptor_; }
  std::uint64_t span() const { return span_; }

  // Gives `owner` a range: at the preferred offset if that is free or can be cleared without moving data, otherwise
  // anywhere.
  void place(Placed& owner, std::uint64_t preferred);
  // Frees the range and discards its contents.
  void remove(Placed& owner);
  // Moves the owner and its data to the preferred offset, if possible. The owner must not be mapped.
  void move(Placed& owner, std::uint64_t preferred);
  bool touched(const Placed& owner) const;
  // The next range in [at, end) that was ever written to; empty if there is none.
  std::pair<std::uint64_t, std::uint64_t> next_touched(std::uint64_t at, std::uint64_t end) const;

 private:
  void open_window();
  enum class Evict { kUntouched, kAll };
  bool clear_range(std::uint64_t offset, const Placed& newcomer, Evict evict);
  std::uint64_t find_gap(std::uint64_t size);
  void copy_bytes(std::uint64_t from, std::uint64_t to, std::uint64_t size);
  void punch(std::uint64_t offset, std::uint64_t size);

  int descriptor_ = -1;
  std::uint64_t span_;
  char* window_ = nullptr;
  std::map<std::uint64_t, Placed*> owners_;  // by offset
  std::uint64_t next_gap_;
};

// The owner of a range of a store. Its offset may change while it is not mapped.
class Placed {
 public:
  std::uint64_t offset = kNowhere;
  std::uint64_t extent = 0;  // bytes, a multiple of the page
  unsigned mappings = 0;
};

// Reserves `size` bytes of inaccessible addresses. Halves `size` until it succeeds (sanitizers leave little room), down
// to `least`; throws std::bad_alloc below that.
char* reserve_addresses(std::uint64_t& size, std::uint64_t least);

}  // namespace cudasim
