#include "cudasim/machine/store.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace cudasim {

// The lower half of the file is for preferred offsets, the upper half for others, so that preferred offsets are rarely
// taken.
Store::Store(std::uint64_t span) : span_(span), next_gap_(span / 2 / kPage * kPage) {
  descriptor_ = memfd_create("cudasim", MFD_CLOEXEC);
  if (descriptor_ < 0) throw std::bad_alloc();
  if (ftruncate(descriptor_, static_cast<off_t>(span)) != 0) {
    close(descriptor_);
    throw std::bad_alloc();
  }
  open_window();
}

Store::Store(int descriptor, std::uint64_t span) : descriptor_(descriptor), span_(span), next_gap_(0) { open_window(); }

Store::~Store() {
  munmap(window_, span_);
  close(descriptor_);
}

void Store::open_window() {
  void* window = mmap(nullptr, span_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (window == MAP_FAILED) {
    close(descriptor_);
    throw std::bad_alloc();
  }
  madvise(window, span_, MADV_DONTDUMP);
  window_ = static_cast<char*>(window);
}

void Store::place(Placed& owner, std::uint64_t preferred) {
  const bool free =
      preferred != kNowhere && preferred + owner.extent <= span_ && clear_range(preferred, owner, Evict::kUntouched);
  owner.offset = free ? preferred : find_gap(owner.extent);
  owners_.emplace(owner.offset, &owner);
}

void Store::remove(Placed& owner) {
  if (owner.offset == kNowhere) return;
  punch(owner.offset, owner.extent);
  owners_.erase(owner.offset);
  owner.offset = kNowhere;
}

void Store::move(Placed& owner, std::uint64_t preferred) {
  if (preferred + owner.extent > span_ || !clear_range(preferred, owner, Evict::kAll)) return;
  copy_bytes(owner.offset, preferred, owner.extent);
  punch(owner.offset, owner.extent);
  owners_.erase(owner.offset);
  owner.offset = preferred;
  owners_.emplace(preferred, &owner);
}

bool Store::touched(const Placed& owner) const {
  const std::uint64_t end = owner.offset + owner.extent;
  return next_touched(owner.offset, end).first < end;
}

std::pair<std::uint64_t, std::uint64_t> Store::next_touched(std::uint64_t at, std::uint64_t end) const {
  const off_t data = lseek(descriptor_, static_cast<off_t>(at), SEEK_DATA);
  if (data < 0 || static_cast<std::uint64_t>(data) >= end) return {end, end};
  const off_t hole = lseek(descriptor_, data, SEEK_HOLE);
  return {static_cast<std::uint64_t>(data), hole < 0 ? end : std::min(end, static_cast<std::uint64_t>(hole))};
}

// Evicts the owners of a range to make room for `newcomer`: owners without data lose their offset, others are moved to
// a gap (Evict::kAll only). False if an owner cannot be evicted, because it is mapped.
bool Store::clear_range(std::uint64_t offset, const Placed& newcomer, Evict evict) {
  const std::uint64_t size = newcomer.extent;
  auto first = owners_.upper_bound(offset);
  if (first != owners_.begin() && std::prev(first)->first + std::prev(first)->second->extent > offset) --first;
  for (auto it = first; it != owners_.end() && it->first < offset + size; ++it) {
    if (it->second == &newcomer || it->second->mappings > 0) return false;
    if (evict == Evict::kUntouched && touched(*it->second)) return false;
  }
  while (true) {
    auto it = owners_.lower_bound(offset);
    if (it != owners_.begin() && std::prev(it)->first + std::prev(it)->second->extent > offset) --it;
    if (it == owners_.end() || it->first >= offset + size) return true;
    Placed& owner = *it->second;
    if (touched(owner)) {
      const std::uint64_t gap = find_gap(owner.extent);
      if (gap < offset + size && offset < gap + owner.extent) return false;  // the file is nearly full
      copy_bytes(owner.offset, gap, owner.extent);
      punch(owner.offset, owner.extent);
      owners_.erase(it);
      owner.offset = gap;
      owners_.emplace(gap, &owner);
    } else {
      owners_.erase(it);
      owner.offset = kNowhere;
    }
  }
}

// Next fit over the upper half, then over the whole file.
std::uint64_t Store::find_gap(std::uint64_t size) {
  const auto search = [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t at = begin;
    auto it = owners_.upper_bound(at);
    if (it != owners_.begin()) at = std::max(at, std::prev(it)->first + std::prev(it)->second->extent);
    for (; it != owners_.end() && it->first < at + size; ++it) at = it->first + it->second->extent;
    return at + size <= end ? at : kNowhere;
  };
  std::uint64_t gap = search(next_gap_, span_);
  if (gap == kNowhere) gap = search(span_ / 2, span_);
  if (gap == kNowhere) gap = search(0, span_);
  if (gap == kNowhere) throw std::bad_alloc();
  if (gap >= span_ / 2) next_gap_ = gap + size;
  return gap;
}

void Store::copy_bytes(std::uint64_t from, std::uint64_t to, std::uint64_t size) {
  const std::uint64_t end = from + size;
  for (std::uint64_t at = from; at < end;) {
    const auto [begin, stop] = next_touched(at, end);
    std::memcpy(window_ + to + (begin - from), window_ + begin, stop - begin);
    at = stop;
  }
}

void Store::punch(std::uint64_t offset, std::uint64_t size) {
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(size));
}

char* reserve_addresses(std::uint64_t& size, std::uint64_t least) {
  for (; size >= least; size /= 2) {
    void* window = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED) continue;
    return static_cast<char*>(window);
  }
  throw std::bad_alloc();
}

}  // namespace cudasim
