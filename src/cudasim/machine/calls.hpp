// The entry of every API function: counts and prices the call, applies planned failures, checks the state that it
// needs, and waits if the call asked for that, after releasing the machine's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cudasim/machine/checker.hpp"
#include "cudasim/machine/exports.hpp"
#include "cudasim/machine/streams.hpp"
#include "cudasim/settings/prices.hpp"
#include "cudasim/settings/settings.hpp"

namespace cudasim {

struct Machine;
struct ContextState;
struct UnknownRead;
using enum cu::Result;
using cu::Result;

#define CUDASIM_EXPORT extern "C" __attribute__((visibility("default")))

bool is_function(std::string_view name);

// Thrown to end a call with an error code.
struct Refusal {
  Result code;
};
inline void require(bool condition, Result code) {
  if (!condition) throw Refusal{code};
}

// Counts, planned failures and the virtual clock.
class CallLog {
 public:
  struct Function {
    std::uint64_t calls = 0;
    std::vector<Fault> faults;
    std::uint64_t table = 0;  // of prices, by which it was charged last
    const PriceTable::Points* points = nullptr;
  };
  CallLog();
  // Counts a call. Returns the error that is planned for it, or success.
  Result count(std::string_view function);
  std::uint64_t number() const { return number_; }  // of the current call, counted from 1 and never reset
  void charge(std::string_view function, const PriceTable& prices, std::uint64_t bytes);
  void plan(const Fault& fault) { functions_.at(fault.function).faults.push_back(fault); }
  std::vector<Fault> plans() const;  // still to come
  void drop_plans();
  void reset_counts();
  double clock() const { return clock_; }
  void add_stall(double microseconds) {
    ++stalls_;
    stalled_ += microseconds;
  }
  std::uint64_t stalls() const { return stalls_; }
  double stalled() const { return stalled_; }
  const std::unordered_map<std::string_view, Function>& functions() const { return functions_; }

 private:
  // The functions that were called last, by the address of their name, which is a literal: hashing it would take longer than the
  // rest of a short call.
  struct Recent {
    std::string_view name;
    Function* function = nullptr;
  };
  Function& find(std::string_view name);

  std::unordered_map<std::string_view, Function> functions_;
  std::array<Recent, 64> recent_;
  double clock_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t stalls_ = 0;  // calls that waited for the device's work
  double stalled_ = 0;        // microseconds
};

enum class Need {
  kNothing,  // may be called at any time
  kDriver,   // after cuInit
  kContext,  // with a current context that has not failed
};

// The current call. The body runs with the machine's mutex held, and sets here what happens after it.
struct Call {
  Machine& machine;
  std::shared_ptr<ContextState> context;  // the current one, if any
  std::string_view name;
  std::uint64_t number = 0;        // counts all calls
  std::uint64_t priced_bytes = 0;  // size of the memory that the call works on
  StreamRef run_inline;            // a stream whose task this thread runs
  std::vector<Mark> wait;          // marks that the call waits for before it returns
  std::optional<Clock> waited;     // what is ordered before the host after that wait
  std::unique_lock<std::mutex>* lock = nullptr;
  std::vector<UnknownRead> unknown_reads;  // by copies to the host, reported when the call succeeds

  void wait_for(const StreamRef& stream);
  void order_after(const Clock& clock) {  // the host, after that wait
    if (!waited) waited.emplace();
    waited->join(clock);
  }
  // Waits in the middle of a body, without the machine's mutex. Throws Refusal if the machine was reset during the
  // wait; any other state may have changed, too. The race checker ignores this wait.
  void wait_unlocked(const std::vector<Mark>& marks);
};

// What a call does. A reference to a lambda that outlives it: std::function would copy it, usually to the heap.
class Body {
 public:
  template <typename Function>
  Body(const Function& function)  // NOLINT: implicit on purpose
      : function_(&function),
        call_([](const void* f, Call& call) { return (*static_cast<const Function*>(f))(call); }) {}
  Result operator()(Call& call) const { return call_(function_, call); }

 private:
  const void* function_;
  Result (*call_)(const void*, Call&);
};

Result enter(std::string_view name, Need need, Body body);

// While one lives, the null stream of this thread's calls is its per-thread stream.
class PerThreadScope {
 public:
  PerThreadScope();
  ~PerThreadScope();
};
bool null_stream_is_per_thread();
bool in_host_function();

// A number for the calling thread, never reused.
std::uint64_t this_thread();
// Expires when the calling thread ends.
std::weak_ptr<const void> life_of_this_thread();

// While one lives, API calls of this thread are refused: host functions must not make any.
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
};

}  // namespace cudasim
