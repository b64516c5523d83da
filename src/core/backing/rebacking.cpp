// Re-backing: replaces a large handle under live blocks by small ones, which frees its untouched granules. No pointer
// changes.
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "core/backing/stitched.hpp"

namespace arena {

// Replaces the handle that has the most untouched granules outside `keep`, if it is not pinned.
bool Stitched::reback(Span keep) {
  Index best = kNone;
  Granules most = 0;
  for (Index index = 0; index < handles_.size(); ++index) {
    const Handle& handle = handles_[index];
    if (!handle.mapped || handle.count == 1 || handle.pins > 0 || handle.pending) continue;
    Granules untouched = 0;
    each_mapping(handle, [&](Mapping mapping) {
      for (Granules g = mapping.begin; g < mapping.begin + handle.count; ++g) {
        untouched += granules_[g].blocks == 0 && !granules_[g].inactive && !keep.overlaps({g, g + 1});
      }
    });
    if (untouched > most) {
      most = untouched;
      best = index;
    }
  }
  if (best == kNone) return false;
  replace(best, keep);
  ++rebacked_;
  return true;
}

// Touched granules are copied to the host and back, so the limit holds at every moment. Until the old handle is
// released, a driver failure undoes everything. After that, the data is in host memory only for a moment. It is lost if
// another process takes the device's memory at that moment and nothing in the arena is idle.
void Stitched::replace(Index index, Span keep) {
  const Marks marks = handles_[index].marks;
  const std::vector<Layout> layout = layout_of(handles_[index]);
  std::vector<Granules> kept;
  for (const auto& [mapping, inactive] : layout) {
    for (Granules g = mapping.begin; g < mapping.begin + inactive.size(); ++g) {
      if (granules_[g].blocks > 0 || keep.overlaps({g, g + 1})) kept.push_back(g);
    }
  }
  const auto staged = std::make_unique_for_overwrite<char[]>(kept.size() * granule_);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (granules_[kept[i]].blocks > 0) device_.copy_to_host(&staged[i * granule_], address_at(kept[i]), granule_);
  }
  unmap(index);
  try {
    release_handle(index);
  } catch (const Error&) {
    spare_.erase({handles_[index].count, {0, index}});
    ignore_errors([&] { remount(index, layout, marks); });
    for (const Granules g : kept) granules_[g].lost = granules_[g].blocks > 0 && !is_backed({g, g + 1});
    throw;
  }
  std::exception_ptr lost;  // rethrown at the end, so that one lost granule does not take others with it
  std::optional<Granules> copied;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto restore = [&] { restore_granule(kept[i], marks, &staged[i * granule_], keep); };
    try {
      try {
        restore();
      } catch (const Error&) {
        restore();  // tries twice: this is the only copy of the data
      }
      if (granules_[kept[i]].blocks > 0) copied = kept[i];
    } catch (const Error&) {
      granules_[kept[i]].lost = granules_[kept[i]].blocks > 0;
      if (!lost) lost = std::current_exception();
    }
  }
  try {
    if (copied) wait_for_copies(*copied);
  } catch (const Error&) {
    if (!lost) throw;
  }
  if (lost) std::rethrow_exception(lost);
}

// The copies may still be running, and memory handed out on another stream next must be complete. If the wait fails
// because of another error, it may not have waited; a read after the copies returns only when they are done.
void Stitched::wait_for_copies(Granules last) {
  char byte = 0;
  const auto read_after = [&] { device_.copy_to_host(&byte, address_at(last), 1); };
  try {
    if (device_.synchronize()) return;
  } catch (const Error&) {
    ignore_errors(read_after);
    throw;
  }
  read_after();  // a capture that just began does not allow waiting for the device
}

// Backs a granule with a handle of its own, unless a first attempt already has, and copies its data there.
void Stitched::restore_granule(Granules at, const Marks& marks, const char* data, Span keep) {
  if (granules_[at].handle == kNone) {
    Index small = take_spare(1, 1);
    if (small == kNone) small = create(1);
    if (small == kNone && (small = harvest(1, 1, keep)) != kNone) unmap(small);
    if (small == kNone) throw Error("the device has no memory left for data that it just held; data was lost");
    if (!map(small, at)) throw Error("the device cannot map memory for data that it just held; data was lost");
    handles_[small].marks = marks;
  }
  const Handle& handle = handles_[granules_[at].handle];
  if (!handle.accessible && !open_handles({granules_[at].handle})) {
    throw Error("the device denies access to memory for data that it just held; data was lost");
  }
  if (handle.touched > 0) device_.copy_from_host(address_at(at), data, granule_);
}

std::vector<Stitched::Layout> Stitched::layout_of(const Handle& handle) const {
  std::vector<Layout> all;
  each_mapping(handle, [&](Mapping mapping) {
    Layout& layout = all.emplace_back(Layout{mapping, {}});
    for (Granules i = 0; i < handle.count; ++i) layout.inactive.push_back(granules_[mapping.begin + i].inactive);
  });
  return all;
}

// Maps a handle as it was before, with its marks. There may be live blocks on it.
bool Stitched::remount(Index index, const std::vector<Layout>& layout, const Marks& marks) {
  if (!map(index, layout.front().mapping.begin)) return false;
  handles_[index].marks = marks;
  if (!open_handles({index})) return false;
  for (std::size_t i = 1; i < layout.size(); ++i) remount_alias(index, layout[i]);
  return true;
}

void Stitched::remount_alias(Index index, const Layout& alias) {
  const auto& [mapping, inactive] = alias;
  if (!device_.map(mapping.address, inactive.size() * granule_, handles_[index].id)) return;
  attach_alias(index, mapping);
  for (Granules i = 0; i < inactive.size(); ++i) {
    const Granules here = mapping.begin + i, home = handles_[index].begin + i;
    if (granules_[here].blocks > 0) {
      activate_touched(home, here);
    } else if (!inactive[i]) {
      switch_active(home, here);
    }
  }
  if (open(mapping.address, inactive.size() * granule_)) return;
  device_.unmap(mapping.address, inactive.size() * granule_);
  detach_alias(index, handles_[index].aliases.size() - 1);
}

}  // namespace arena
