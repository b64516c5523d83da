#include "cudasim/machine/calls.hpp"

#include <chrono>
#include <stdexcept>
#include <system_error>

#include "cudasim/api/contexts.hpp"
#include "cudasim/api/pools.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

thread_local int per_thread_depth = 0;
thread_local int host_function_depth = 0;

Result check_need(Call& call, Need need) {
  if (host_function_depth > 0 && need != Need::kNothing) return kNotPermitted;
  if (need == Need::kNothing) return kSuccess;
  if (!call.machine.initialised || call.machine.ending) return kNotInitialized;
  call.context = current_context(call.machine);
  if (need == Need::kDriver) return kSuccess;
  if (!call.context) return kInvalidContext;
  if (!call.context->alive) return kContextIsDestroyed;
  return call.context->error.load();
}

Result run_body(Call& call, Body body) {
  try {
    return body(call);
  } catch (const Refusal& refusal) {
    return refusal.code;
  } catch (const std::bad_alloc&) {  // the host has no memory, addresses or mappings left
    return kOutOfMemory;
  } catch (const std::length_error&) {  // a size beyond all memory
    return kOutOfMemory;
  } catch (const std::system_error&) {  // no thread could be started
    return kOperatingSystem;
  }
}

// The part of a call that runs without the machine's mutex.
Result finish(Call& call, Result result) {
  if (call.run_inline) call.run_inline->run_inline();
  if (call.wait.empty()) return result;
  for (const Mark& mark : call.wait) mark.wait();
  const std::lock_guard lock(call.machine.mutex);
  if (call.waited) call.machine.checker.host_waited(*call.waited);
  trim_pools(call.machine);
  const Result failed = call.context ? call.context->error.load() : kSuccess;
  return result == kSuccess ? failed : result;
}

}  // namespace

CallLog::CallLog() {
#define CU_FUNCTION(name, version, symbol, stream, params) functions_[#name];
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
}

bool is_function(std::string_view name) {
#define CU_FUNCTION(known, version, symbol, stream, params) \
  if (name == #known) return true;
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
  return false;
}

CallLog::Function& CallLog::find(std::string_view name) {
  Recent& recent = recent_[reinterpret_cast<std::uintptr_t>(name.data()) / 8 % recent_.size()];
  const bool is_same = recent.name.data() == name.data() && recent.name.size() == name.size();
  if (!is_same && recent.name != name) {
    const auto found = functions_.find(name);
    recent = {found->first, &found->second};
  }
  return *recent.function;
}

Result CallLog::count(std::string_view function) {
  Function& f = find(function);
  ++f.calls;
  ++number_;
  Result planned = kSuccess;
  for (Fault& fault : f.faults) {
    if (fault.skip > 0) {
      --fault.skip;
    } else {  // if two plans match, the first one decides
      --fault.times;
      if (planned == kSuccess) planned = fault.error;
    }
  }
  if (planned != kSuccess) std::erase_if(f.faults, [](const Fault& fault) { return fault.times == 0; });
  return planned;
}

void CallLog::charge(std::string_view function, const PriceTable& prices, std::uint64_t bytes) {
  Function& f = find(function);
  if (f.table != prices.id()) {
    f.table = prices.id();
    f.points = prices.points_of(function);
  }
  clock_ += PriceTable::price_at(f.points, bytes);
}

std::vector<Fault> CallLog::plans() const {
  std::vector<Fault> all;
  for (const auto& [name, function] : functions_) all.insert(all.end(), function.faults.begin(), function.faults.end());
  return all;
}

void CallLog::drop_plans() {
  for (auto& [name, function] : functions_) function.faults.clear();
}

void CallLog::reset_counts() {
  for (auto& [name, function] : functions_) function.calls = 0;
  clock_ = stalled_ = 0;
  stalls_ = 0;
}

void Call::wait_for(const StreamRef& stream) {
  wait.push_back(stream->last());
  order_after(stream->clock);
}

void Call::wait_unlocked(const std::vector<Mark>& marks) {
  const std::uint64_t generation = machine.generation;
  const auto begin = std::chrono::steady_clock::now();
  lock->unlock();
  for (const Mark& mark : marks) mark.wait();
  lock->lock();
  machine.calls.add_stall(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  require(machine.initialised && !machine.ending && machine.generation == generation, kNotInitialized);
}

Result enter(std::string_view name, Need need, Body body) {
  if (forked() && (need != Need::kNothing || name == "cuInit")) return kNotInitialized;
  Machine& m = machine();
  Call call{.machine = m,
            .context = nullptr,
            .name = name,
            .run_inline = nullptr,
            .wait = {},
            .waited = {},
            .unknown_reads = {}};
  Result result;
  {
    std::unique_lock lock(m.mutex);
    call.lock = &lock;
    const Result planned = m.calls.count(name);
    call.number = m.calls.number();
    m.findings.begin_call(call.number);
    if (planned != kSuccess) return planned;
    result = check_need(call, need);
    if (result != kSuccess) return result;
    result = run_body(call, body);
    if (result == kSuccess) m.calls.charge(name, *m.settings.prices, call.priced_bytes);
  }
  result = finish(call, result);
  if (result == kSuccess && !call.unknown_reads.empty()) m.values.report(call.unknown_reads);
  return result;
}

PerThreadScope::PerThreadScope() { ++per_thread_depth; }
PerThreadScope::~PerThreadScope() { --per_thread_depth; }
bool in_host_function() { return host_function_depth > 0; }
bool null_stream_is_per_thread() { return per_thread_depth > 0; }

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t number = next.fetch_add(1);
  return number;
}

std::weak_ptr<const void> life_of_this_thread() {
  thread_local const auto life = std::make_shared<char>();
  return life;
}

InHostFunction::InHostFunction() { ++host_function_depth; }
InHostFunction::~InHostFunction() { --host_function_depth; }

}  // namespace cudasim
