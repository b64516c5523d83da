// Benchmarks of the core without Python, on the simulated driver. Prints one JSON object per line.
//
//     core LIBCUDASIM [QUESTION ...]
//     core LIBCUDASIM count hot|mixed|recording|slow PAIRS     only so many pairs of calls, to count their instructions
//
// Times are nanoseconds, the best of several rounds. `benchmarks/core.py` builds and runs this, and explains the
// results.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/arena/arena.hpp"
#include "driver/driver.hpp"
#include "trace/recorder.hpp"

namespace arena {
namespace {

constexpr int kRounds = 7;
constexpr int kManyRounds = 100;  // short ones, because other processes may slow down some of them
constexpr Bytes kMiB = Bytes{1} << 20;

double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double best_of(int rounds, const std::function<double()>& measure) {
  double best = measure();
  for (int i = 1; i < rounds; ++i) best = std::min(best, measure());
  return best;
}

class Bench {
 public:
  explicit Bench(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}

  std::unique_ptr<Arena> arena() const {
    ArenaSettings settings;
    settings.cap = Device(driver_, 0).total();
    return std::make_unique<Arena>(driver_, 0, settings);
  }

  static double pairs(Arena& arena, Bytes size, cu::Stream stream, int count) {
    const double begin = now();
    for (int i = 0; i < count; ++i) arena.free(arena.allocate(size, stream));
    return (now() - begin) / count;
  }

  void hot() const {
    for (const Bytes size : {Bytes{512}, Bytes{64} << 10, 4 * kMiB}) {
      const auto a = arena();
      const double ns = best_of(kManyRounds, [&] { return pairs(*a, size, nullptr, 100'000); });
      std::printf("{\"question\": \"hot\", \"size\": %llu, \"ns\": %.1f}\n", static_cast<unsigned long long>(size), ns);
    }
  }

  // The same with many gaps, or live blocks, of other sizes.
  void crowded() const {
    for (const char* what : {"live", "holes"}) {
      for (const int count : {0, 10, 100, 1'000, 10'000, 100'000, 1'000'000}) {
        const auto a = arena();
        std::vector<Block*> blocks;
        const int needed = std::strcmp(what, "holes") == 0 ? 2 * count : count;
        for (int i = 0; i < needed; ++i) blocks.push_back(&a->allocate(1024, nullptr));
        if (std::strcmp(what, "holes") == 0) {
          for (std::size_t i = 0; i < blocks.size(); i += 2) a->free(*blocks[i]);
        }
        const double ns = best_of(kRounds, [&] { return pairs(*a, 512, nullptr, 100'000); });
        std::printf("{\"question\": \"crowded\", \"what\": \"%s\", \"count\": %d, \"ns\": %.1f}\n", what, count, ns);
      }
    }
  }

  // Sizes that rarely recur, with `alive` live blocks.
  class Mixed {
   public:
    Mixed(Arena& arena, int alive) : arena_(arena), sizes_(20'000) {
      std::mt19937 chance(1);
      std::uniform_real_distribution<double> exponent(9, 22 - std::max(0.0, std::log2(alive / 1024.0)));
      for (Bytes& size : sizes_) size = static_cast<Bytes>(std::exp2(exponent(chance)));
      for (int i = 0; i < alive; ++i) live_.push_back(&arena_.allocate(sizes_[static_cast<std::size_t>(i)], nullptr));
    }
    double pairs(std::size_t count) {
      std::size_t place = 0;
      const double begin = now();
      for (std::size_t i = 0; i < count; ++i) {
        arena_.free(*live_[place]);
        live_[place] = &arena_.allocate(sizes_[i % sizes_.size()], nullptr);
        place = (place + 37) % live_.size();
      }
      return (now() - begin) / static_cast<double>(count);
    }

   private:
    Arena& arena_;
    std::vector<Bytes> sizes_;
    std::vector<Block*> live_;
  };

  void mixed() const {
    for (const int alive : {16, 256, 4096}) {
      const auto a = arena();
      Mixed mixed(*a, alive);
      const double ns = best_of(kRounds, [&] { return mixed.pairs(20'000); });
      std::printf("{\"question\": \"mixed\", \"alive\": %d, \"ns\": %.1f}\n", alive, ns);
    }
  }

  // Several streams in turn.
  void streams() const {
    for (const int count : {1, 2, 4, 8, 16, 32, 64}) {
      const auto a = arena();
      std::vector<cu::Stream> all;
      for (int i = 0; i < count; ++i) all.push_back(a->device().new_stream());
      const double ns = best_of(kRounds, [&] {
        const double begin = now();
        for (std::size_t i = 0; i < 100'000; ++i) a->free(a->allocate(512, all[i % all.size()]));
        return (now() - begin) / 100'000;
      });
      std::printf("{\"question\": \"streams\", \"count\": %d, \"ns\": %.1f}\n", count, ns);
      for (const cu::Stream stream : all) a->device().delete_stream(stream);
    }
  }

  // Pairs per second of several threads at once, each on a stream of its own.
  void threads() const {
    constexpr int kPairs = 2'000'000;
    for (const int count : {1, 2}) {
      const auto a = arena();
      std::vector<cu::Stream> all;
      for (int i = 0; i < count; ++i) all.push_back(a->device().new_stream());
      double best = 0;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<std::thread> threads;
        const double begin = now();
        for (const cu::Stream stream : all) threads.emplace_back([&, stream] { pairs(*a, 512, stream, kPairs); });
        for (std::thread& thread : threads) thread.join();
        best = std::max(best, count * kPairs / (now() - begin) * 1e9);
      }
      std::printf("{\"question\": \"threads\", \"count\": %d, \"pairs_per_second\": %.0f}\n", count, best);
      for (const cu::Stream stream : all) a->device().delete_stream(stream);
    }
  }

  // 1 GiB, granule by granule, by the arena and by the same driver calls alone.
  void slow() const {
    constexpr Bytes kGranule = 2 * kMiB;
    constexpr std::size_t kCount = 512;
    Times arenas, drivers;
    for (int round = 0; round < kManyRounds / 4; ++round) {
      arenas.include(take_and_trim(kGranule, kCount));
      drivers.include(call_driver(kGranule, kCount));
    }
    std::printf("{\"question\": \"slow\", \"what\": \"take\", \"arena_us\": %.0f, \"driver_us\": %.0f}\n",
                arenas.take / 1e3, drivers.take / 1e3);
    std::printf("{\"question\": \"slow\", \"what\": \"trim\", \"arena_us\": %.0f, \"driver_us\": %.0f}\n",
                arenas.trim / 1e3, drivers.trim / 1e3);
  }

  // The cost of recording one event, which is half a pair.
  void recording() const {
    const auto a = arena();
    constexpr int kPairs = 20'000;  // the recorder's buffers hold as many while no thread takes them
    const double off = best_of(kRounds, [&] { return pairs(*a, 512, nullptr, kPairs); });
    const double on = best_of(kRounds, [&] {
      a->observe(std::make_shared<Recorder>());
      const double ns = pairs(*a, 512, nullptr, kPairs);
      a->observe(nullptr);
      return ns;
    });
    std::printf("{\"question\": \"recording\", \"off_ns\": %.1f, \"on_ns\": %.1f}\n", off / 2, on / 2);
  }

  void count(const std::string& question, int pairs_wanted) const {
    const auto a = arena();
    if (question == "recording") a->observe(std::make_shared<Recorder>());
    if (question == "hot" || question == "recording") {
      pairs(*a, 512, nullptr, pairs_wanted);
    } else if (question == "slow") {
      take_and_trim(2 * kMiB, static_cast<std::size_t>(pairs_wanted));
    } else {
      Mixed(*a, 256).pairs(static_cast<std::size_t>(pairs_wanted));
    }
  }

 private:
  struct Times {
    double take = 1e18, trim = 1e18;
    void include(const Times& other) {
      take = std::min(take, other.take);
      trim = std::min(trim, other.trim);
    }
  };

  Times take_and_trim(Bytes granule, std::size_t count) const {
    ArenaSettings settings;
    settings.cap = Device(driver_, 0).total();
    settings.growth = granule;
    Arena a(driver_, 0, settings);
    std::vector<Block*> blocks;
    const double begin = now();
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(&a.allocate(granule, nullptr));
    const double taken = now();
    for (Block* block : blocks) a.free(*block);
    a.synchronize();
    const double freed = now();
    a.trim();
    return {taken - begin, now() - freed};
  }

  // Every new granule takes two calls to relax captures, one to check for a capture, and three for the memory.
  Times call_driver(Bytes granule, std::size_t count) const {
    const Device device(driver_, 0);
    const std::uint64_t address = device.reserve_addresses(count * granule);
    std::vector<cu::MemHandle> handles;
    const double begin = now();
    for (std::size_t i = 0; i < count; ++i) {
      const RelaxedCapture relaxed(device);
      static_cast<void>(device.is_capturing(cu::legacy_stream()));
      handles.push_back(device.create(granule, device.has_rdma()).value());
      device.map(address + i * granule, granule, handles.back());
      device.set_access(address + i * granule, granule, device.peers());
    }
    const double taken = now();
    for (std::size_t i = 0; i < count; ++i) {
      device.unmap(address + i * granule, granule);
      device.release(handles[i]);
    }
    const double trimmed = now();
    device.free_addresses(address, count * granule);
    return {taken - begin, trimmed - taken};
  }

  std::shared_ptr<const Driver> driver_;
};

}  // namespace
}  // namespace arena

int main(int count, char** arguments) {
  using namespace arena;
  if (count < 2) return std::fprintf(stderr, "core LIBCUDASIM [QUESTION ...]\n"), 2;
  std::string why;
  auto library = Library::open(arguments[1], why);
  if (!library) return std::fprintf(stderr, "%s\n", why.c_str()), 1;
  const Bench bench(std::make_shared<const Driver>(std::move(*library)));
  if (count == 5 && std::strcmp(arguments[2], "count") == 0) {
    bench.count(arguments[3], std::atoi(arguments[4]));
    return 0;
  }
  const std::pair<const char*, void (Bench::*)() const> questions[] = {{"hot", &Bench::hot},
                                                                       {"crowded", &Bench::crowded},
                                                                       {"mixed", &Bench::mixed},
                                                                       {"streams", &Bench::streams},
                                                                       {"threads", &Bench::threads},
                                                                       {"slow", &Bench::slow},
                                                                       {"recording", &Bench::recording}};
  for (const auto& [name, ask] : questions) {
    const bool wanted =
        std::any_of(arguments + 2, arguments + count, [&](const char* a) { return std::strcmp(a, name) == 0; });
    if (count == 2 || wanted) (bench.*ask)();
  }
}
