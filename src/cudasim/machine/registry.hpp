// Live objects of one kind by handle, and what happened to handles that are no longer live.
//
// Handles are numbers that look like pointers but are never dereferenced, so a stale or made-up one is always noticed,
// unless it was reused for a new object: real drivers reuse handles at once, and so does this one if `reuse` is set.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cudasim {

// Which call destroyed an object.
struct Death {
  std::string_view by;       // the function, a static string; empty if no longer known
  std::uint64_t number = 0;  // of the call
  std::uint64_t thread = 0;  // the kernel's thread id
};

template <typename Handle, typename Object>
class Registry {
 public:
  Registry(std::string_view kind, std::uint64_t base)
      : kind_(kind), base_(base), next_(base), reset_at_(base), slots_from_(base) {}

  std::string_view kind() const { return kind_; }

  // A handle for a new object. With `reuse`, that of the last object destroyed, as on hardware.
  Handle reserve_new() { return reinterpret_cast<Handle>(next_ += kStep); }
  Handle reserve(bool reuse) {
    if (!reuse || free_.empty()) return reserve_new();
    const Handle handle = free_.back();
    free_.pop_back();
    dead_.erase(handle);
    return handle;
  }
  void add(Handle handle, std::shared_ptr<Object> object) {
    const std::size_t slot = slot_of(handle);
    if (slot >= slots_.size()) slots_.resize(slot + 1);
    slots_[slot] = &objects_.emplace(handle, std::move(object)).first->second;
  }
  // The object of a handle, or null, without a reference to it: for calls that must be quick.
  Object* peek(Handle handle) const {
    const std::shared_ptr<Object>* found = entry(handle);
    return found != nullptr ? found->get() : nullptr;
  }
  std::shared_ptr<Object> find(Handle handle) const {
    const std::shared_ptr<Object>* found = entry(handle);
    return found != nullptr ? *found : nullptr;
  }
  bool erase(Handle handle, const Death& death) {
    if (objects_.erase(handle) == 0) return false;
    slots_[slot_of(handle)] = nullptr;
    if (dead_.size() >= kKeptDeaths) dead_.clear();
    dead_[handle] = death;
    free_.push_back(handle);
    return true;
  }
  // Drops all objects. Their handles are not reused.
  void clear() {
    objects_.clear();
    slots_.clear();
    slots_from_ = next_;
    dead_.clear();
    free_.clear();
    reset_at_ = next_;
  }
  const std::map<Handle, std::shared_ptr<Object>>& all() const { return objects_; }

  // Whether the handle is or was that of an object.
  bool was_issued(Handle handle) const {
    const auto number = reinterpret_cast<std::uint64_t>(handle);
    return number > base_ && number <= next_ && (number - base_) % kStep == 0;
  }
  bool is_from_before_reset(Handle handle) const {
    return was_issued(handle) && reinterpret_cast<std::uint64_t>(handle) <= reset_at_;
  }
  Death death_of(Handle handle) const {
    const auto it = dead_.find(handle);
    return it == dead_.end() ? Death{} : it->second;
  }

 private:
  // In objects_; null if there is none.
  const std::shared_ptr<Object>* entry(Handle handle) const {
    const auto number = reinterpret_cast<std::uint64_t>(handle);
    if (number <= slots_from_ || number > next_ || (number - base_) % kStep != 0) return nullptr;
    const std::size_t slot = slot_of(handle);
    return slot < slots_.size() ? slots_[slot] : nullptr;
  }
  std::size_t slot_of(Handle handle) const {
    return static_cast<std::size_t>((reinterpret_cast<std::uint64_t>(handle) - slots_from_) / kStep);
  }

  static constexpr std::uint64_t kStep = 16;
  static constexpr std::size_t kKeptDeaths = 100'000;
  std::string_view kind_;
  std::uint64_t base_;
  std::uint64_t next_;
  std::uint64_t reset_at_;  // handles up to here are from before the last reset
  std::map<Handle, std::shared_ptr<Object>> objects_;
  std::vector<const std::shared_ptr<Object>*> slots_;  // in objects_, by number, from slots_from_ on
  std::uint64_t slots_from_;
  std::unordered_map<Handle, Death> dead_;
  std::vector<Handle> free_;
};

}  // namespace cudasim
