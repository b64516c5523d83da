// The simulated driver's own functions, declared in cudasim.h.
#include <cstring>
#include <stdexcept>

#include "cudasim/api/contexts.hpp"
#include "cudasim/api/events.hpp"
#include "cudasim/cudasim.h"
#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

// Not a std::string: it must outlive the thread's destructors.
thread_local char last_error[512] = "";

void remember(const char* text) { std::snprintf(last_error, sizeof last_error, "%s", text); }

// Runs the body with the machine locked, and turns exceptions into the text of cudasimError.
template <typename Body>
int guarded(Body body) {
  try {
    if (forked()) throw std::invalid_argument("the driver was initialised before this process was forked");
    const std::lock_guard lock(machine().mutex);
    body(machine());
    remember("");
    return 0;
  } catch (const std::bad_alloc&) {
    remember("the host has no memory or addresses left");
  } catch (const std::exception& error) {
    remember(error.what());
  }
  return 1;
}

std::size_t copy_text(const std::string& text, char* out, std::size_t size) {
  if (out != nullptr && size > 0) {
    const std::size_t n = std::min(text.size(), size - 1);
    std::memcpy(out, text.data(), n);
    out[n] = '\0';
  }
  return text.size();
}

void apply(Machine& m, std::string_view name) {
  if (name == "races") m.checker.set_mode(m.settings.races);
  if (name == "values") m.values.turn(m.settings.values);
  if (name != "fail") return;
  m.calls.drop_plans();
  for (const Fault& fault : m.settings.fail) m.calls.plan(fault);
}

// A bad environment cannot be fixed by changing one setting, because its other variables were not read.
void refuse_bad_environment(const Machine& m) {
  if (!m.bad_environment.empty()) throw std::invalid_argument(m.bad_environment);
}

void check_function(const char* name) {
  if (is_function(name)) return;
  throw std::invalid_argument("'" + std::string(name) + "' is not the name of a function of the driver");
}

std::vector<Mark> all_work(Machine& m) {
  std::vector<Mark> marks;
  for (const auto& [handle, context] : m.contexts.all()) {
    for (const StreamRef& stream : streams_of(m, *context)) marks.push_back(stream->last());
  }
  return marks;
}

// Before cuInit, no memory is in use.
std::uint64_t read_device(int number, std::uint64_t DeviceState::* field) {
  std::uint64_t value = 0;
  guarded([&](Machine& m) {
    const std::size_t count = m.initialised ? m.devices.size() : static_cast<std::size_t>(m.settings.devices);
    if (number < 0 || static_cast<std::size_t>(number) >= count) {
      throw std::invalid_argument("device=" + std::to_string(number) + " does not exist; this machine has " +
                                  std::to_string(count) + (count == 1 ? " device" : " devices"));
    }
    if (m.initialised) value = (*m.devices[static_cast<std::size_t>(number)]).*field;
  });
  return value;
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

int cudasimSet(const char* setting, const char* value) {
  return guarded([&](Machine& m) {
    if (setting == nullptr || value == nullptr) {
      throw std::invalid_argument("cudasimSet: the name and the value must not be null");
    }
    refuse_bad_environment(m);
    if (describes_machine(setting) && m.initialised) {
      throw std::invalid_argument(std::string(setting) +
                                  " describes the machine, which is running: set it before cuInit or after a reset");
    }
    set(m.settings, setting, value, setting);
    apply(m, setting);
  });
}

size_t cudasimGet(const char* setting, char* text, size_t size) {
  std::string found;
  guarded([&](Machine& m) {
    if (setting == nullptr) throw std::invalid_argument("cudasimGet: the name must not be null");
    refuse_bad_environment(m);
    Settings now = m.settings;
    now.fail = m.calls.plans();
    found = get(now, setting);
  });
  return copy_text(found, text, size);
}

const char* cudasimError(void) {
  if (last_error[0] == '\0' && !machine().bad_environment.empty()) return machine().bad_environment.c_str();
  return last_error;
}

int cudasimReset(void) {
  std::vector<Mark> work;
  const int failed = guarded([&](Machine& m) {
    refuse_bad_environment(m);
    if (in_host_function()) {
      throw std::invalid_argument("a host function of a stream cannot reset the machine: it would wait for itself");
    }
    if (m.ending) throw std::invalid_argument("another thread is resetting the machine");
    m.ending = true;
    work = all_work(m);
  });
  if (failed != 0) return failed;
  for (const Mark& mark : work) mark.wait();
  work.clear();
  return guarded([](Machine& m) { m.reset(); });
}

int cudasimAddDevice(const char* memory) {
  int number = -1;
  guarded([&](Machine& m) {
    if (memory == nullptr) throw std::invalid_argument("cudasimAddDevice: the size must not be null");
    refuse_bad_environment(m);
    if (m.devices.size() >= kMaxDevices) {
      throw std::invalid_argument("there are already " + std::to_string(kMaxDevices) +
                                  " devices, which is the maximum");
    }
    Settings one;
    set(one, "memory", memory, "memory");
    if (one.memory.size() > 1) throw std::invalid_argument("memory: write one size for the device, not a list");
    if (m.ending) throw std::invalid_argument("another thread is resetting the machine");
    if (!m.initialised) m.start();
    number = m.add_device(one.memory.front()).number;
  });
  return number;
}

int cudasimFail(const char* function, unsigned long long nth, unsigned long long times, const char* error) {
  return guarded([&](Machine& m) {
    if (function == nullptr || error == nullptr) {
      throw std::invalid_argument("cudasimFail: the function and the error must not be null");
    }
    m.calls.plan(parse_fault(function, nth, times, error));
  });
}

unsigned long long cudasimCalls(const char* function) {
  unsigned long long calls = 0;
  guarded([&](Machine& m) {
    if (function != nullptr) check_function(function);
    for (const auto& [name, state] : m.calls.functions()) {
      if (function == nullptr || name == function) calls += state.calls;
    }
  });
  return calls;
}

size_t cudasimCallTable(char* text, size_t size) {
  std::string table;
  guarded([&](Machine& m) {
    for (const auto& [name, state] : m.calls.functions()) {
      if (state.calls > 0) table += std::string(name) + " " + std::to_string(state.calls) + "\n";
    }
  });
  return copy_text(table, text, size);
}

void cudasimResetCounts(void) {
  guarded([](Machine& m) { m.calls.reset_counts(); });
}

double cudasimClock(void) {
  double clock = 0;
  guarded([&](Machine& m) { clock = m.calls.clock(); });
  return clock;
}

double cudasimPrice(const char* function, unsigned long long bytes) {
  double microseconds = 0;
  guarded([&](Machine& m) {
    if (function == nullptr) throw std::invalid_argument("cudasimPrice: the function must not be null");
    check_function(function);
    microseconds = m.settings.prices->price(function, bytes);
  });
  return microseconds;
}

size_t cudasimPrices(char* text, size_t size) {
  std::string table;
  guarded([&](Machine& m) { table = m.settings.prices->json(); });
  return copy_text(table, text, size);
}

double cudasimStalled(void) {
  double microseconds = 0;
  guarded([&](Machine& m) { microseconds = m.calls.stalled(); });
  return microseconds;
}

unsigned long long cudasimStalls(void) {
  unsigned long long stalls = 0;
  guarded([&](Machine& m) { stalls = m.calls.stalls(); });
  return stalls;
}

unsigned long long cudasimUsed(int device) { return read_device(device, &DeviceState::used); }
unsigned long long cudasimPeak(int device) { return read_device(device, &DeviceState::peak); }

size_t cudasimCensus(char* text, size_t size) {
  std::string census;
  guarded([&](Machine& m) {
    const auto line = [&](const char* name, std::size_t count) {
      census += std::string(name) + " " + std::to_string(count) + "\n";
    };
    line("devices", m.devices.size());
    line("handles", m.handles.size());
    line("mappings", m.space ? m.space->mapping_count() : 0);
    line("reservations", m.space ? m.space->reservation_count() : 0);
    line("allocations", m.space ? m.space->allocation_count() : 0);
    line("streams", m.streams.all().size());
    line("events", m.events.all().size());
    line("contexts", m.contexts.all().size());
    line("modules", m.modules.all().size());
    line("libraries", m.libraries.all().size());
  });
  return copy_text(census, text, size);
}

unsigned long long cudasimRaceCount(void) {
  unsigned long long count = 0;
  guarded([&](Machine& m) { count = m.findings.race_count(); });
  return count;
}

size_t cudasimRaces(char* text, size_t size) {
  std::string reports;
  guarded([&](Machine& m) { reports = m.findings.race_lines(); });
  return copy_text(reports, text, size);
}

void cudasimStopHostFunctions(void) { stop_host_functions(); }

void cudasimClearRaces(void) {
  guarded([](Machine& m) { m.findings.clear_races(); });
}

unsigned long long cudasimFindingCount(void) {
  unsigned long long count = 0;
  guarded([&](Machine& m) { count = m.findings.count(); });
  return count;
}

size_t cudasimFindings(char* text, size_t size) {
  std::string lines;
  guarded([&](Machine& m) { lines = m.findings.lines(); });
  return copy_text(lines, text, size);
}

void cudasimClearFindings(void) {
  guarded([](Machine& m) { m.findings.clear(); });
}
