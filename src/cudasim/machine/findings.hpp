// Findings: what a program did that is undefined on hardware, where it may crash, corrupt memory or seem to work. They
// include the race checker's reports.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cudasim/machine/registry.hpp"
#include "cudasim/settings/settings.hpp"

namespace cudasim {

struct Call;

struct Finding {
  std::string kind;
  std::string call;          // the function that was called
  std::uint64_t handle = 0;  // that it was called with
  std::string text;          // one sentence
  Death death;               // of the object, if there was one
  std::string race;          // the race checker's report as JSON; empty for other findings
};

class Findings {
 public:
  void begin_call(std::uint64_t number) { call_number_ = number; }
  void add(Finding finding);

  // Keeps the first 1,000 races and the first 1,000 other findings; the counts include all.
  std::uint64_t count() const { return race_count_ + other_count_; }
  std::uint64_t race_count() const { return race_count_; }
  std::string lines() const;  // a JSON object per line
  std::string race_lines() const;
  void clear();
  void clear_races();

 private:
  struct Kept {
    Finding finding;
    std::uint64_t number;  // of the call
    std::uint64_t thread;
  };
  std::uint64_t call_number_ = 0;
  std::uint64_t race_count_ = 0;
  std::uint64_t other_count_ = 0;
  std::uint64_t kept_races_ = 0;
  std::vector<Kept> kept_;
};

// The kernel's thread id, as in Python's threading.get_native_id().
std::uint64_t native_thread();
std::string hex(std::uint64_t value);

// For an object that the call destroys.
Death death_by(const Call& call);

// Adds a finding about a handle that is not live: of a destroyed object, or one that was never issued. Aborts the
// process if the settings say so. The null handle is an ordinary mistake that drivers check for.
void report_dead(Call& call, std::string_view kind, std::uint64_t handle, bool was_issued, const Death& death);

// The live object of a handle. If there is none, returns null and adds a finding; but not for a handle from before a
// reset, which hardware does not have: objects that outlive a reset learn from the error that they are stale.
template <typename Handle, typename Object>
std::shared_ptr<Object> find_live(Call& call, const Registry<Handle, Object>& registry, Handle handle) {
  std::shared_ptr<Object> object = registry.find(handle);
  if (!object && !registry.is_from_before_reset(handle)) {
    report_dead(call, registry.kind(), reinterpret_cast<std::uint64_t>(handle), registry.was_issued(handle),
                registry.death_of(handle));
  }
  return object;
}

}  // namespace cudasim
