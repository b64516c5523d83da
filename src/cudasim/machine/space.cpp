#include "cudasim/machine/space.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

// An arena reserves eight times the memory of its device, which may have 1 TiB: there is room for one and for others.
constexpr std::uint64_t kWindow = std::uint64_t{16} << 40;
constexpr std::uint64_t kWindowAlignment = std::uint64_t{1} << 30;
constexpr std::uint64_t kLeastWindow = std::uint64_t{8} << 30;
// The kernel allows 65,530 mappings per process. From this number on, a handle is moved to where the kernel can merge
// its mapping with its neighbours', at the price of copying its contents.
constexpr std::size_t kManyScattered = 20'000;

char* pointer(std::uint64_t address) { return reinterpret_cast<char*>(address); }

}  // namespace

Physical::~Physical() {
  if (store != nullptr && !own_store) store->remove(*this);
  if (device != nullptr) device->used -= extent;
}

Space::Space() : reserved_size_(kWindow), reserved_(reserve_addresses(reserved_size_, kLeastWindow)) {
  // Aligned to the largest granularity, so that preferred offsets in a store are aligned, too.
  window_ = round_up(address_of(reserved_), kWindowAlignment);
  window_size_ = reserved_size_ - kWindowAlignment;
  next_ = window_;
}

Space::~Space() { munmap(reserved_, reserved_size_); }

void Space::hide_all() { hide(address_of(reserved_), reserved_size_); }

bool Space::contains(std::uint64_t address) const { return address - window_ < window_size_; }

bool Space::is_free(std::uint64_t address, std::uint64_t size) const {
  if (address < window_ || size > window_size_ || address - window_ > window_size_ - size) return false;
  auto it = ranges_.upper_bound(address);
  if (it != ranges_.end() && it->first < address + size) return false;
  if (it == ranges_.begin()) return true;
  --it;
  return it->first + round_up(it->second.size, kPage) <= address;
}

// Next fit, so that addresses are reused late and a stale pointer is noticed.
std::uint64_t Space::find_addresses(std::uint64_t size, std::uint64_t alignment, std::uint64_t hint) {
  if (hint != 0 && hint % alignment == 0 && is_free(hint, size)) return hint;
  for (const std::uint64_t begin : {next_, window_}) {
    std::uint64_t at = round_up(begin, alignment);
    auto it = ranges_.upper_bound(at);
    if (it != ranges_.begin()) {
      const auto before = std::prev(it);
      at = std::max(at, round_up(before->first + round_up(before->second.size, kPage), alignment));
    }
    for (; it != ranges_.end() && it->first < at + size; ++it) {
      at = std::max(at, round_up(it->first + round_up(it->second.size, kPage), alignment));
    }
    if (size <= window_size_ && at - window_ <= window_size_ - size) {
      next_ = at + size;
      return at;
    }
  }
  throw std::bad_alloc();
}

Range& Space::add(RangeKind kind, std::uint64_t size, std::uint64_t alignment, std::uint64_t hint) {
  const std::uint64_t address = find_addresses(round_up(size, kPage), alignment, hint);
  Range range;
  range.address = address;
  range.size = size;
  range.kind = kind;
  range.id = next_id_++;
  return ranges_.emplace(address, range).first->second;
}

Range& Space::add_registered(std::uint64_t address, std::uint64_t size) {
  Range range;
  range.address = address;
  range.size = size;
  range.kind = RangeKind::kRegistered;
  range.id = next_id_++;
  return ranges_.emplace(address, range).first->second;
}

Range* Space::find(std::uint64_t address) {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size ? &it->second : nullptr;
}

Range* Space::find_exact(std::uint64_t address) {
  const auto it = ranges_.find(address);
  return it == ranges_.end() ? nullptr : &it->second;
}

void Space::erase(Range& range) { ranges_.erase(range.address); }

std::size_t Space::reservation_count() const {
  return static_cast<std::size_t>(std::count_if(ranges_.begin(), ranges_.end(), [](const auto& entry) {
    return entry.second.kind == RangeKind::kReservation && !entry.second.freed;
  }));
}

std::size_t Space::allocation_count() const {
  return static_cast<std::size_t>(std::count_if(ranges_.begin(), ranges_.end(), [](const auto& entry) {
    return entry.second.kind != RangeKind::kReservation && !entry.second.freed;
  }));
}

// The offset in the file at which the kernel can merge this mapping with its neighbours.
std::uint64_t Space::preferred_offset(const Store& store, std::uint64_t address) const {
  return (address - window_) % (store.span() / 2);
}

void Space::choose_offset(Physical& physical, std::uint64_t address) {
  if (physical.store == nullptr || physical.own_store) return;
  Store& store = *physical.store;
  const std::uint64_t preferred = preferred_offset(store, address);
  if (physical.offset == preferred || (physical.offset != kNowhere && physical.mappings > 0)) return;
  if (physical.offset != kNowhere) {
    if (store.touched(physical)) {
      if (scattered_ >= kManyScattered) store.move(physical, preferred);
      return;
    }
    store.remove(physical);
  }
  store.place(physical, preferred);
}

Mapping& Space::map(std::uint64_t address, const PhysicalRef& physical, MappingKind kind) {
  choose_offset(*physical, address);
  ++physical->mappings;
  Mapping mapping;
  mapping.address = address;
  mapping.size = physical->store == nullptr ? physical->size : physical->extent;
  mapping.physical = physical;
  mapping.plain = kind == MappingKind::kPlain;
  scattered_ += physical->store != nullptr && physical->offset != preferred_offset(*physical->store, address);
  return mappings_.emplace(address, std::move(mapping)).first->second;
}

bool Space::any_mapped(std::uint64_t address, std::uint64_t size) const {
  auto it = mappings_.lower_bound(address);
  if (it != mappings_.end() && it->first < address + size) return true;
  return it != mappings_.begin() && std::prev(it)->second.end() > address;
}

Mapping* Space::mapping_at(std::uint64_t address) {
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return nullptr;
  --it;
  return address < it->second.end() ? &it->second : nullptr;
}

std::vector<Mapping*> Space::tiles(std::uint64_t address, std::uint64_t size) {
  std::vector<Mapping*> run;
  std::uint64_t at = address;
  for (auto it = mappings_.find(address); it != mappings_.end() && it->first == at && at < address + size; ++it) {
    run.push_back(&it->second);
    at = it->second.end();
  }
  if (at != address + size) run.clear();
  return run;
}

std::pair<std::uint64_t, std::uint64_t> Space::run_around(std::uint64_t address, const Range& reservation) {
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin() || std::prev(it)->second.end() <= address) return {address, address};
  const auto inside = std::prev(it);
  std::uint64_t begin = inside->first, end = inside->second.end();
  for (; it != mappings_.end() && it->first == end && end < reservation.address + reservation.size; ++it) {
    end = it->second.end();
  }
  for (auto before = inside; before != mappings_.begin() && begin > reservation.address;) {
    --before;
    if (before->second.end() != begin) break;
    begin = before->first;
  }
  return {begin, end};
}

void Space::unmap(const std::vector<Mapping*>& run) {
  if (run.empty()) return;
  const std::uint64_t begin = run.front()->address;
  const std::uint64_t end = run.back()->end();
  bool visible = false;
  for (Mapping* mapping : run) visible |= mapping->physical->store != nullptr && mapping->readable != 0;
  if (visible) hide(begin, end - begin);  // if that fails, only stray accesses of the host go unnoticed
  for (Mapping* mapping : run) {
    Physical& physical = *mapping->physical;
    scattered_ -= physical.store != nullptr && physical.offset != preferred_offset(*physical.store, mapping->address);
    --physical.mappings;
    mappings_.erase(mapping->address);
  }
}

bool Space::hide(std::uint64_t address, std::uint64_t size) {
  const void* hidden =
      mmap(pointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return hidden != MAP_FAILED || mprotect(pointer(address), size, PROT_NONE) == 0;  // mprotect needs no new mapping
}

void Space::show(const std::vector<Mapping*>& run) {
  const auto protection = [](const Mapping& m) {
    return m.readable == 0 ? PROT_NONE : m.writable == 0 ? PROT_READ : PROT_READ | PROT_WRITE;
  };
  for (std::size_t i = 0; i < run.size();) {  // one system call for mappings that the kernel can merge
    const Mapping& first = *run[i];
    const int prot = protection(first);
    std::uint64_t size = first.size;
    std::size_t next = i + 1;
    for (; next < run.size(); ++next) {
      const Mapping& m = *run[next];
      const bool merges = protection(m) == prot && m.physical->store == first.physical->store &&
                          m.physical->offset == first.physical->offset + size;
      if (prot != PROT_NONE && !merges) break;
      if (prot == PROT_NONE && protection(m) != PROT_NONE) break;
      size += m.size;
    }
    if (prot == PROT_NONE) {
      if (!hide(first.address, size)) throw std::bad_alloc();
    } else {
      void* shown = mmap(pointer(first.address), size, prot, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                         first.physical->store->descriptor(), static_cast<off_t>(first.physical->offset));
      if (shown == MAP_FAILED) {
        hide(run.front()->address, first.address - run.front()->address);
        throw std::bad_alloc();
      }
    }
    i = next;
  }
}

}  // namespace cudasim
