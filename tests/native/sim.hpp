// The simulated driver for C++ tests, opened from the build directory, with its cudasim functions.
#pragma once

#include <cudasim/cudasim.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "core/arena/arena.hpp"
#include "driver/context.hpp"
#include "driver/driver.hpp"
#include "native/check.hpp"

namespace arena::test {

class Sim {
 public:
  // Resets the machine.
  explicit Sim(const std::string& memory = "256MiB") : library_(open()) {
    CHECK(call<decltype(cudasimReset)>("cudasimReset") == 0);
    set("memory", memory);
    set("fail", "");
    set("delay", "0");
    driver_ = std::make_shared<const Driver>(open());
  }
  const std::shared_ptr<const Driver>& driver() const { return driver_; }

  void set(const char* setting, const std::string& value) const {
    CHECK(call<decltype(cudasimSet)>("cudasimSet", setting, value.c_str()) == 0);
  }
  void fail(const char* function, unsigned long long nth, unsigned long long times, const char* error) const {
    CHECK(call<decltype(cudasimFail)>("cudasimFail", function, nth, times, error) == 0);
  }
  // Makes a stream call a function, which must outlive the call.
  template <typename Function>
  void launch(cu::Stream stream, const Function& function) const {
    const PrimaryContext context(*driver_, 0);
    const ContextScope scope(*driver_, context.get());
    const auto run = [](void* data) { (*static_cast<const Function*>(data))(); };
    using Launch = cu::Result(cu::Stream, cu::HostFunction, void*);
    CHECK(library_.function<Launch>("cuLaunchHostFunc")(stream, run, const_cast<Function*>(&function)) ==
          cu::Result::kSuccess);
  }
  std::uint64_t calls(const char* function) const { return call<decltype(cudasimCalls)>("cudasimCalls", function); }
  void reset_counts() const { call<decltype(cudasimResetCounts)>("cudasimResetCounts"); }
  template <typename Function>
  Function* function(const char* name) const {
    return library_.function<Function>(name);
  }
  Bytes used() const { return call<decltype(cudasimUsed)>("cudasimUsed", 0); }
  // How many objects of each kind exist.
  std::map<std::string, std::uint64_t> census() const {
    char text[1024];
    call<decltype(cudasimCensus)>("cudasimCensus", text, sizeof text);
    std::istringstream lines(text);
    std::map<std::string, std::uint64_t> counts;
    for (std::pair<std::string, std::uint64_t> line; lines >> line.first >> line.second;) counts.insert(line);
    return counts;
  }
  // Checks the kinds that only arenas create.
  void check_all_returned() const {
    CHECK(used() == 0);
    const auto counts = census();
    for (const char* kind : {"handles", "mappings", "reservations", "allocations", "events"})
      CHECK(counts.at(kind) == 0);
  }

  enum class Memory { kVirtual, kPlain };
  std::unique_ptr<Arena> arena(Bytes cap, Memory memory = Memory::kVirtual, Bytes growth = Bytes{8} << 20) const {
    ArenaSettings settings;
    settings.cap = cap;
    settings.growth = growth;
    settings.virtual_memory = memory == Memory::kVirtual;
    return std::make_unique<Arena>(driver_, 0, settings);
  }

 private:
  static Library open() {
    std::string why;
    auto library = Library::open(ARENA_LIBCUDASIM, why);
    if (!library) std::fprintf(stderr, "%s\n", why.c_str());
    CHECK(library.has_value());
    return std::move(*library);
  }
  template <typename Function, typename... Arguments>
  std::invoke_result_t<Function, Arguments...> call(const char* name, Arguments... arguments) const {
    return library_.function<Function>(name)(arguments...);
  }

  Library library_;
  std::shared_ptr<const Driver> driver_;
};

// A context of device 0 that is not its primary one, with a stream.
class OtherContext {
 public:
  explicit OtherContext(const Sim& sim) : sim_(sim) {
    CHECK(sim.function<cu::fn::cuCtxCreate_v2>("cuCtxCreate_v2")(&context_, 0, 0) == cu::Result::kSuccess);
    CHECK(sim.function<cu::fn::cuStreamCreate>("cuStreamCreate")(&stream_, 0) == cu::Result::kSuccess);
    cu::Context popped = nullptr;
    CHECK(sim.function<cu::fn::cuCtxPopCurrent_v2>("cuCtxPopCurrent_v2")(&popped) == cu::Result::kSuccess);
  }
  ~OtherContext() { sim_.function<cu::fn::cuCtxDestroy_v2>("cuCtxDestroy_v2")(context_); }
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;
  cu::Stream stream() const { return stream_; }

 private:
  const Sim& sim_;
  cu::Context context_ = nullptr;
  cu::Stream stream_ = nullptr;
};

}  // namespace arena::test
