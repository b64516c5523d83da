// Which bytes of one piece of memory hold values that are known. Memory that is all alike costs nothing; other memory
// has one state per block of 512 bytes, and one per byte in blocks whose bytes differ. Knows no addresses.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <unordered_map>

namespace cudasim {

// The numbers are those of cudasim.h. Unknown bytes are leftovers, which nobody may see; those of kZero are unknown,
// too, but hold what is to be read in their place.
enum class Content : std::uint8_t { kUnknown = 0, kKnown = 1, kZero = 2 };

// Whether the content of a piece of memory is tracked, and whether it is this process's device alone that changes it. The
// host or another process writes shared memory unseen, so its unknown bytes are never replaced: they are kZero.
enum class Tracking : std::uint8_t { kNone, kOwn, kShared };

class Contents {
 public:
  struct Run {
    std::uint64_t end;
    Content content;
  };
  // The content of the byte `at`, and the end of the bytes that are like it, at most `end`.
  Run run_at(std::uint64_t at, std::uint64_t end) const;
  // `total` is the size of the whole memory, the same in every call.
  void set(std::uint64_t begin, std::uint64_t end, Content content, std::uint64_t total);
  // Makes all bytes alike, unless that was done for this epoch already.
  void enter(std::uint64_t epoch, Content content) {
    if (epoch_ != epoch) begin(epoch, content);
  }

 private:
  static constexpr std::uint64_t kBlock = 512;
  static constexpr std::uint8_t kMixed = 3;  // of a block: see `bytes`
  struct Bytes {
    std::uint8_t states[kBlock];
  };
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  struct Table {
    std::unique_ptr<std::uint8_t[], Free> blocks;      // a Content each, or kMixed
    std::unordered_map<std::uint64_t, Bytes> bytes{};  // of the blocks that are mixed, by number
  };

  void begin(std::uint64_t epoch, Content content);
  void split(std::uint64_t total);
  void set_bytes(std::uint64_t block, std::uint64_t begin, std::uint64_t end, std::uint8_t state);
  void set_blocks(std::uint64_t begin, std::uint64_t end, std::uint8_t state);

  std::uint64_t epoch_ = 0;
  Content uniform_ = Content::kUnknown;  // of all bytes, if there is no table
  std::unique_ptr<Table> table_;
};

}  // namespace cudasim
