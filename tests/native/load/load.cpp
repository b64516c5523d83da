// Threads that keep an arena full, without Python: no request that fits may fail, and nothing may leak or drift.
//
//     arena_load LIBCUDASIM SECONDS [THREADS [MISSING]]
//     arena_load forks COUNT                             (forks.hpp)
//
// The arena gets MISSING granules less than the threads assume, so that requests must fail: a test of this test.
//
// Addresses alone show what fits. Each granule counts the blocks that touch it, and a request first adds the most
// granules that it could touch to `intended`. While `touched + intended` is within the cap, the arena guarantees that
// the request passes: handles are single granules here, so nothing has to be moved. A block counts from before its
// allocation until after its free, so the sum is never too low.
//
// Prints one JSON object; tests/reliability/test_load.py says what is expected of it.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/arena/arena.hpp"
#include "driver/driver.hpp"
#include "load/forks.hpp"

namespace arena {
namespace {

constexpr Bytes kCap = Bytes{256} << 20;
constexpr double kSmallest = 9, kLargest = 18;  // sizes, as powers of two: 512 bytes to 256 KiB
constexpr std::size_t kSlots = 256;             // where threads leave blocks for others to free

// Memory of the process, without simulated device memory, which is shared memory.
long own_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::strtol(line.c_str() + 8, nullptr, 10);
  }
  return 0;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

ArenaSettings settings_for(Bytes granule, Granules missing) {
  ArenaSettings settings;
  settings.cap = kCap - missing * granule;
  settings.growth = granule;
  return settings;
}

class Load {
 public:
  Load(std::shared_ptr<const Driver> driver, int threads, Granules missing)
      : device_(driver, 0),
        granule_(device_.granule()),
        arena_(driver, 0, settings_for(granule_, missing)),
        counts_(8 * device_.total() / granule_) {
    Block& first = arena_.allocate(1, nullptr);
    base_ = first.address;
    arena_.free(first);
    for (int i = 0; i < threads; ++i) streams_.push_back(device_.new_stream());
  }

  int run(double length) {
    const double begin = seconds();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      threads.emplace_back([this, i, begin, length] { work(i, begin + length); });
    }
    std::this_thread::sleep_until(std::chrono::steady_clock::now() + std::chrono::duration<double>(length / 3));
    const long warm = own_kib();
    for (std::thread& thread : threads) thread.join();
    const long at_end = own_kib();
    const bool adds_up = account_adds_up();
    free_all();
    const Stats s = arena_.stats();
    std::printf(
        "{\"operations\": %llu, \"wrong\": %llu, \"overwritten\": %llu, \"full\": %.4f, \"refused\": %llu, "
        "\"warm_kib\": %ld, \"end_kib\": %ld, \"adds_up\": %s, \"peak_reserved\": %llu, \"cap\": %llu, "
        "\"left_live\": %llu, \"left_reserved\": %llu}\n",
        count(operations_), count(wrong_), count(overwritten_), full(), count(refused_), warm, at_end,
        adds_up ? "true" : "false", static_cast<unsigned long long>(s.peak_reserved),
        static_cast<unsigned long long>(s.cap), static_cast<unsigned long long>(s.live),
        static_cast<unsigned long long>(s.reserved));
    return wrong_ == 0 && overwritten_ == 0 && adds_up ? 0 : 1;
  }

 private:
  using Count = std::atomic<std::uint64_t>;
  static unsigned long long count(const Count& c) { return c.load(); }

  void work(std::size_t number, double end) {
    std::mt19937_64 chance(number + 1);
    std::uniform_real_distribution<double> exponent(kSmallest, kLargest);
    std::vector<Block*> mine;
    for (std::uint64_t i = 0; (i % 64 != 0) || seconds() < end; ++i) {
      const auto size = static_cast<Bytes>(std::exp2(exponent(chance)));
      if (chance() % 8 != 0 && admit(size)) {
        if (Block* block = take(size, streams_[number])) mine.push_back(block);
      } else if (!mine.empty()) {
        std::swap(mine[chance() % mine.size()], mine.back());
        Block* block = mine.back();
        mine.pop_back();
        if (chance() % 4 == 0) block = slots_[chance() % kSlots].exchange(block);  // another thread may free it
        if (block != nullptr) give(*block);
      }
      if (i % 512 == 0) look(i / 512, mine, streams_[chance() % streams_.size()]);
    }
    const std::lock_guard held(left_mutex_);
    left_.insert(left_.end(), mine.begin(), mine.end());
  }

  void look(std::uint64_t turn, const std::vector<Block*>& mine, cu::Stream other) {
    full_ += static_cast<std::uint64_t>(touched_);
    ++samples_;
    if (turn % 4 == 1 && !mine.empty()) arena_.record_stream(mine.back()->address, other);
    if (turn % 8 == 2) arena_.stats();
    if (turn % 64 == 3) arena_.trim();
    if (turn % 256 == 4) arena_.snapshot();
  }

  // The most granules that a block can touch at any address.
  std::int64_t most(Bytes size) const {
    return static_cast<std::int64_t>((round_up(std::max<Bytes>(size, 1), kAlignment) - kAlignment) / granule_ + 2);
  }

  bool admit(Bytes size) {
    const std::int64_t intended = intended_ += most(size);
    if (intended + touched_ <= static_cast<std::int64_t>(kCap / granule_)) return true;
    intended_ -= most(size);
    ++refused_;
    return false;
  }

  Block* take(Bytes size, cu::Stream stream) {
    ++operations_;
    try {
      Block& block = arena_.allocate(size, stream);
      each_granule(block, [&](auto& count) { touched_ += count++ == 0 ? 1 : 0; });
      intended_ -= most(size);
      mark(block.address, block.size, block.serial);
      return &block;
    } catch (const Error& error) {
      intended_ -= most(size);
      if (wrong_++ < 3) std::fprintf(stderr, "%s\n", error.what());
      return nullptr;
    }
  }

  void give(Block& block) {
    ++operations_;
    const std::uint64_t address = block.address;
    const Bytes size = block.size;
    if (!is_marked(address, size, block.serial)) ++overwritten_;
    arena_.free(block);  // its fields are not valid any more
    each_granule(address, size, [&](auto& count) { touched_ -= count-- == 1 ? 1 : 0; });
  }

  // Writes the serial at both ends of a block. The host can access simulated memory.
  static std::uint64_t* end_of(std::uint64_t address, Bytes size) {
    return reinterpret_cast<std::uint64_t*>(address + size) - 1;
  }
  static void mark(std::uint64_t address, Bytes size, std::uint64_t serial) {
    *reinterpret_cast<std::uint64_t*>(address) = *end_of(address, size) = serial;
  }
  static bool is_marked(std::uint64_t address, Bytes size, std::uint64_t serial) {
    return *reinterpret_cast<std::uint64_t*>(address) == serial && *end_of(address, size) == serial;
  }

  template <typename Visit>
  void each_granule(std::uint64_t address, Bytes size, Visit visit) {
    for (Bytes g = (address - base_) / granule_; g * granule_ < address - base_ + size; ++g) visit(counts_[g]);
  }
  template <typename Visit>
  void each_granule(const Block& block, Visit visit) {
    each_granule(block.address, block.size, visit);
  }

  double full() const {
    const double granules = static_cast<double>(full_) / static_cast<double>(std::max<std::uint64_t>(samples_, 1));
    return granules * static_cast<double>(granule_) / static_cast<double>(kCap);
  }

  // The arena's figures match what the threads hold, to the byte.
  bool account_adds_up() {
    for (auto& slot : slots_) {
      if (Block* block = slot.exchange(nullptr)) left_.push_back(block);
    }
    Bytes requested = 0, live = 0;
    for (const Block* block : left_) requested += block->requested, live += block->size;
    arena_.validate();
    const Stats s = arena_.stats();
    return s.requested == requested && s.live == live && s.blocks == left_.size() &&
           s.reserved == s.live + s.pending + s.captured + s.releasable + s.stranded + s.spare &&
           s.peak_reserved <= s.cap && s.compactable == 0 && intended_ == 0;
  }

  void free_all() {
    for (Block* block : left_) give(*block);
    arena_.synchronize();
    arena_.trim();
    arena_.validate();
    for (const cu::Stream stream : streams_) device_.delete_stream(stream);
  }

  Device device_;
  const Bytes granule_;
  Arena arena_;
  std::uint64_t base_ = 0;
  std::vector<cu::Stream> streams_;
  std::vector<std::atomic<std::uint32_t>> counts_;  // blocks that touch a granule
  std::atomic<std::int64_t> touched_{0}, intended_{0};
  std::atomic<Block*> slots_[kSlots] = {};
  std::mutex left_mutex_;
  std::vector<Block*> left_;
  Count operations_{0}, wrong_{0}, overwritten_{0}, refused_{0}, full_{0}, samples_{0};
};

}  // namespace
}  // namespace arena

int main(int count, char** arguments) {
  using namespace arena;
  if (count < 3) return std::fprintf(stderr, "arena_load LIBCUDASIM SECONDS [THREADS [MISSING]]\n"), 2;
  if (arguments[1] == std::string("forks")) return count_hung_children(std::atoi(arguments[2]));
  std::string why;
  auto library = Library::open(arguments[1], why);
  if (!library) return std::fprintf(stderr, "%s\n", why.c_str()), 1;
  try {
    Load load(std::make_shared<const Driver>(std::move(*library)), count > 3 ? std::atoi(arguments[3]) : 8,
              count > 4 ? std::strtoull(arguments[4], nullptr, 10) : 0);
    return load.run(std::atof(arguments[2]));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
