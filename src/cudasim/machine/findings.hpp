// Findings: what a program did that is undefined on hardware, where it may crash, corrupt memory or seem to work. The
// race checker's reports are among them. Owns the list; those who notice something add to it.
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
  std::string text;          // one sentence for people
  Death death;               // of the object, if it was one
  std::string race;          // the race checker's report as JSON; empty for other findings
};

class Findings {
 public:
  void begin_call(std::uint64_t number) { call_number_ = number; }
  void add(Finding finding);

  // The first 1,000 races and the first 1,000 other findings are kept; the counts are of all.
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

// The kernel's number of the calling thread, as Python's threading.get_native_id() gives it.
std::uint64_t native_thread();
std::string hex(std::uint64_t value);

// How an object that the call destroys comes to its end.
Death death_by(const Call& call);

// Adds a finding about a handle that is not live: a destroyed object's, or nobody's. Ends the process if the settings
// say so. The null handle is an ordinary mistake, which drivers check for.
void report_dead(Call& call, std::string_view kind, std::uint64_t handle, bool was_given, const Death& death);

// The live object of a handle. If there is none: null, and a finding; but not for a handle from before a reset of the
// simulated driver, which no hardware has: objects that outlive one notice by the error that they are stale.
template <typename Handle, typename Object>
std::shared_ptr<Object> find_live(Call& call, const Registry<Handle, Object>& registry, Handle handle) {
  std::shared_ptr<Object> object = registry.find(handle);
  if (!object && !registry.of_earlier_machine(handle)) {
    report_dead(call, registry.kind(), reinterpret_cast<std::uint64_t>(handle), registry.was_given(handle),
                registry.death_of(handle));
  }
  return object;
}

}  // namespace cudasim
