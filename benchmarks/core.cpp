// What the core costs without Python, on the simulated driver: one question per name, one JSON object a line.
//
//     core LIBCUDASIM [QUESTION ...]
//
// Times are nanoseconds, the best of several rounds. `benchmarks/core.py` builds and runs this, and says what it means.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/arena.hpp"
#include "driver/driver.hpp"

namespace arena {
namespace {

constexpr int kRounds = 7;
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
    for (int i = 0; i < count; ++i) arena.free(arena.allocate(size, stream, false));
    return (now() - begin) / count;
  }

  void hot() const {
    for (const Bytes size : {Bytes{512}, Bytes{64} << 10, 4 * kMiB}) {
      const auto a = arena();
      const double ns = best_of(kRounds, [&] { return pairs(*a, size, nullptr, 200'000); });
      std::printf("{\"question\": \"hot\", \"size\": %llu, \"ns\": %.1f}\n", static_cast<unsigned long long>(size), ns);
    }
  }

  // The same with so many free holes, or live blocks, of other sizes.
  void crowded() const {
    for (const char* what : {"live", "holes"}) {
      for (const int count : {0, 10, 100, 1'000, 10'000, 100'000, 1'000'000}) {
        const auto a = arena();
        std::vector<Block*> blocks;
        const int needed = std::strcmp(what, "holes") == 0 ? 2 * count : count;
        for (int i = 0; i < needed; ++i) blocks.push_back(&a->allocate(1024, nullptr, false));
        if (std::strcmp(what, "holes") == 0) {
          for (std::size_t i = 0; i < blocks.size(); i += 2) a->free(*blocks[i]);
        }
        const double ns = best_of(kRounds, [&] { return pairs(*a, 512, nullptr, 100'000); });
        std::printf("{\"question\": \"crowded\", \"what\": \"%s\", \"count\": %d, \"ns\": %.1f}\n", what, count, ns);
      }
    }
  }

  // Sizes that hardly come twice, with so many of them alive.
  void mixed() const {
    for (const int alive : {16, 256, 4096}) {
      const auto a = arena();
      std::mt19937 chance(1);
      std::uniform_real_distribution<double> exponent(9, 22 - std::max(0.0, std::log2(alive / 1024.0)));
      std::vector<Bytes> sizes(20'000);
      for (Bytes& size : sizes) size = static_cast<Bytes>(std::exp2(exponent(chance)));
      std::vector<Block*> live;
      for (int i = 0; i < alive; ++i) live.push_back(&a->allocate(sizes[static_cast<std::size_t>(i)], nullptr, false));
      const double ns = best_of(kRounds, [&] {
        std::size_t place = 0;
        const double begin = now();
        for (const Bytes size : sizes) {
          a->free(*live[place]);
          live[place] = &a->allocate(size, nullptr, false);
          place = (place + 37) % live.size();
        }
        return (now() - begin) / static_cast<double>(sizes.size());
      });
      std::printf("{\"question\": \"mixed\", \"alive\": %d, \"ns\": %.1f}\n", alive, ns);
    }
  }

 private:
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
  const std::pair<const char*, void (Bench::*)() const> questions[] = {
      {"hot", &Bench::hot}, {"crowded", &Bench::crowded}, {"mixed", &Bench::mixed}};
  for (const auto& [name, ask] : questions) {
    const bool wanted =
        std::any_of(arguments + 2, arguments + count, [&](const char* a) { return std::strcmp(a, name) == 0; });
    if (count == 2 || wanted) (bench.*ask)();
  }
}
