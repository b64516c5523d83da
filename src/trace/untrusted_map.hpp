// Maps whose keys are numbers from a file. Standard containers hash a number to itself, so a file could choose numbers that
// all fall into one bucket, and each lookup would walk through all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace arena {

inline const std::uint64_t kHashSecret = [] {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}();

// Mixes a number with one that the file cannot know, as in splitmix64.
struct UntrustedHash {
  std::size_t operator()(std::uint64_t key) const noexcept {
    std::uint64_t mixed = key + kHashSecret;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::size_t>(mixed ^ (mixed >> 31));
  }
};

template <class Value>
using UntrustedMap = std::unordered_map<std::uint64_t, Value, UntrustedHash>;
using UntrustedSet = std::unordered_set<std::uint64_t, UntrustedHash>;

// For many keys that mostly count up, as the blocks of a trace do: those are neighbours in a table without mixing, which
// takes a tenth of the time. Keys are mixed once a bucket is too full.
template <class Value>
class CountingMap {
 public:
  bool contains(std::uint64_t key) const { return map_.contains(key); }
  // Null if there is none.
  const Value* find(std::uint64_t key) const {
    const auto it = map_.find(key);
    return it == map_.end() ? nullptr : &it->second;
  }
  void set(std::uint64_t key, Value value) {
    map_.insert_or_assign(key, std::move(value));
    if (!map_.hash_function().is_mixed && is_too_full(key)) mix();
  }
  void erase(std::uint64_t key) { map_.erase(key); }

 private:
  struct Hash {
    bool is_mixed = false;
    std::size_t operator()(std::uint64_t key) const noexcept {
      return is_mixed ? UntrustedHash{}(key) : static_cast<std::size_t>(key);
    }
  };
  static constexpr std::size_t kMostInBucket = 32;

  // Looks at the key's bucket and, if the table has grown, at all: they are other ones then.
  bool is_too_full(std::uint64_t key) {
    if (std::exchange(buckets_, map_.bucket_count()) == buckets_) return is_full(map_.bucket(key));
    for (std::size_t bucket = 0; bucket < buckets_; ++bucket) {
      if (is_full(bucket)) return true;
    }
    return false;
  }
  bool is_full(std::size_t bucket) const {
    std::size_t count = 0;
    for (auto it = map_.begin(bucket); it != map_.end(bucket); ++it) {
      if (++count > kMostInBucket) return true;
    }
    return false;
  }
  void mix() {
    std::unordered_map<std::uint64_t, Value, Hash> mixed(map_.bucket_count(), Hash{.is_mixed = true});
    mixed.merge(map_);
    map_ = std::move(mixed);
  }

  std::unordered_map<std::uint64_t, Value, Hash> map_;
  std::size_t buckets_ = 0;
};

}  // namespace arena
