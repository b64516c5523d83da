// The address space: which addresses are reserved or allocated, which physical memory backs them, and who may access
// it. Owns the host mappings, which make accessible addresses readable by the host; accesses to all others fault.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "abi/types.hpp"
#include "cudasim/machine/advice.hpp"
#include "cudasim/machine/checker.hpp"
#include "cudasim/machine/contents.hpp"
#include "cudasim/machine/store.hpp"

namespace cudasim {

struct DeviceState;

inline std::uint64_t address_of(const void* ptr) { return reinterpret_cast<std::uint64_t>(ptr); }

// Physical memory, created by cuMemCreate or for a plain allocation. Destroyed when the last handle and the last
// mapping are gone, which frees its bytes on the device.
struct Physical : Placed {
  ~Physical();
  std::uint64_t id = 0;
  std::uint64_t size = 0;            // bytes, as requested
  DeviceState* device = nullptr;     // whose bytes it takes; null for host memory
  Store* store = nullptr;            // null for registered memory of the program
  std::unique_ptr<Store> own_store;  // for memory that can be shared with another process
  char* direct = nullptr;            // address of registered memory
  unsigned handles = 0;              // references that cuMemRelease drops
  cu::MemAllocationProp prop{};
  History history;
  Tracking tracking = Tracking::kNone;
  Contents contents;  // while values are tracked

  char* data(std::uint64_t at) const { return store != nullptr ? store->data(offset + at) : direct + at; }
};
using PhysicalRef = std::shared_ptr<Physical>;

enum class RangeKind { kReservation, kDevice, kManaged, kHost, kRegistered, kPool };

// A reservation, or an allocation with its own addresses.
struct Range {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  // as requested
  RangeKind kind = RangeKind::kReservation;
  cu::Context context = nullptr;
  cu::MemPool pool = nullptr;
  unsigned flags = 0;
  std::uint64_t id = 0;
  bool of_module = false;    // holds variables of a module: not the program's to free
  bool sync_memops = false;  // synchronous copies and fills of it are always waited for
  unsigned ipc_opens = 0;    // of memory of another process: how often it was opened
  int ipc_process = 0;
  std::uint64_t ipc_id = 0;
  AdviceMap advice;    // of managed memory
  bool freed = false;  // by cuMemFreeAsync: the addresses are the pool's, and may not be used
};

inline constexpr std::uint64_t kHostBit = std::uint64_t{1} << 63;  // next to the bits of the devices

enum class MappingKind { kReserved, kPlain };  // in a reservation, or of a plain allocation

struct Mapping {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  PhysicalRef physical;
  std::uint64_t readable = 0;  // one bit per device
  std::uint64_t writable = 0;
  bool plain = false;  // MappingKind::kPlain

  std::uint64_t end() const { return address + size; }
};

class Space {
 public:
  Space();
  ~Space();
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  bool contains(std::uint64_t address) const;  // whether it is in the simulated driver's window

  // Addresses. `alignment` is a power of two; `hint` 0 for none. Throws std::bad_alloc when there are none left.
  Range& add(RangeKind kind, std::uint64_t size, std::uint64_t alignment, std::uint64_t hint);
  Range& add_registered(std::uint64_t address, std::uint64_t size);
  Range* find(std::uint64_t address);        // the range that holds the address
  Range* find_exact(std::uint64_t address);  // the range that begins there
  void erase(Range& range);                  // nothing may be mapped in it

  // Mappings. The range must be free, in one reservation.
  Mapping& map(std::uint64_t address, const PhysicalRef& physical, MappingKind kind);
  bool any_mapped(std::uint64_t address, std::uint64_t size) const;
  Mapping* mapping_at(std::uint64_t address);
  // The mappings that tile [address, address + size) exactly; empty if they do not.
  std::vector<Mapping*> tiles(std::uint64_t address, std::uint64_t size);
  // The memory of a reservation that is mapped without a gap around the address; empty if none is mapped there.
  std::pair<std::uint64_t, std::uint64_t> run_around(std::uint64_t address, const Range& reservation);
  // Calls visit(begin, end, mapping) for each part of [address, end); mapping is null where nothing is mapped.
  template <typename Visit>
  void each_part(std::uint64_t address, std::uint64_t end, const Visit& visit) const;
  void unmap(const std::vector<Mapping*>& run);
  // Makes the run visible to the host or hides it, according to its access bits. Throws std::bad_alloc at the host's
  // limits.
  void show(const std::vector<Mapping*>& run);

  void hide_all();

  std::size_t mapping_count() const { return mappings_.size(); }
  std::size_t reservation_count() const;
  std::size_t allocation_count() const;
  template <typename Visit>
  void each_range(Visit visit) {
    for (auto& [address, range] : ranges_) visit(range);
  }

 private:
  std::uint64_t find_addresses(std::uint64_t size, std::uint64_t alignment, std::uint64_t hint);
  bool is_free(std::uint64_t address, std::uint64_t size) const;
  std::uint64_t preferred_offset(const Store& store, std::uint64_t address) const;
  void choose_offset(Physical& physical, std::uint64_t address);
  bool hide(std::uint64_t address, std::uint64_t size);  // false at the host's limits

  std::uint64_t reserved_size_;
  char* reserved_;
  std::uint64_t window_size_;
  std::uint64_t window_;
  std::uint64_t next_;
  std::uint64_t next_id_ = 1;
  std::size_t scattered_ = 0;  // mappings that the kernel cannot merge with their neighbours
  std::map<std::uint64_t, Range> ranges_;
  std::map<std::uint64_t, Mapping> mappings_;
};

template <typename Visit>
void Space::each_part(std::uint64_t address, std::uint64_t end, const Visit& visit) const {
  auto it = mappings_.upper_bound(address);
  if (it != mappings_.begin() && std::prev(it)->second.end() > address) --it;
  for (std::uint64_t at = address; at < end;) {
    const Mapping* mapping = it != mappings_.end() && it->first <= at ? &it->second : nullptr;
    const std::uint64_t next = mapping != nullptr ? mapping->end() : it != mappings_.end() ? it->first : end;
    const std::uint64_t stop = std::min(end, next);
    visit(at, stop, mapping);
    if (mapping != nullptr) ++it;
    at = stop;
  }
}

}  // namespace cudasim
