#include "cudasim/machine/contents.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace cudasim {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint64_t);

// The first place in [at, end) whose state differs.
std::uint64_t skip_equal(const std::uint8_t* states, std::uint64_t at, std::uint64_t end, std::uint8_t state) {
  const std::uint64_t wanted = 0x0101010101010101 * state;
  for (; at + kWord <= end; at += kWord) {
    std::uint64_t word = 0;
    std::memcpy(&word, states + at, kWord);
    if (word != wanted) break;
  }
  while (at < end && states[at] == state) ++at;
  return at;
}

std::uint8_t number(Content content) { return static_cast<std::uint8_t>(content); }

}  // namespace

Contents::Run Contents::run_at(std::uint64_t at, std::uint64_t end) const {
  if (!table_) return {end, uniform_};
  const std::uint8_t* blocks = table_->blocks.get();
  std::uint8_t state = blocks[at / kBlock];
  if (state == kMixed) state = table_->bytes.at(at / kBlock).states[at % kBlock];
  const auto content = static_cast<Content>(state);
  while (at < end) {
    const std::uint64_t block = at / kBlock;
    if (blocks[block] == state) {
      at = std::min(end, skip_equal(blocks, block, (end + kBlock - 1) / kBlock, state) * kBlock);
      continue;
    }
    if (blocks[block] != kMixed) break;
    const std::uint64_t stop = std::min(end - block * kBlock, kBlock);
    const std::uint64_t found = skip_equal(table_->bytes.at(block).states, at % kBlock, stop, state);
    at = block * kBlock + found;
    if (found < stop) break;
  }
  return {at, content};
}

void Contents::set(std::uint64_t begin, std::uint64_t end, Content content, std::uint64_t total) {
  if (begin >= end) return;
  if (begin == 0 && end >= total) {
    table_.reset();
    uniform_ = content;
    return;
  }
  if (!table_ && uniform_ == content) return;
  if (!table_) split(total);
  const std::uint8_t state = number(content);
  const std::uint64_t first = begin / kBlock, last = end / kBlock;
  if (first == last) return set_bytes(first, begin % kBlock, end % kBlock, state);
  if (begin % kBlock != 0) set_bytes(first, begin % kBlock, kBlock, state);
  set_blocks((begin + kBlock - 1) / kBlock, last, state);
  if (end % kBlock != 0) set_bytes(last, 0, end % kBlock, state);
}

void Contents::begin(std::uint64_t epoch, Content content) {
  epoch_ = epoch;
  uniform_ = content;
  table_.reset();
}

// calloc, because large memory that is mostly unknown then takes none of the host's.
void Contents::split(std::uint64_t total) {
  const std::uint64_t count = (total + kBlock - 1) / kBlock;
  auto table = std::make_unique<Table>();
  table->blocks.reset(static_cast<std::uint8_t*>(std::calloc(count, 1)));
  if (!table->blocks) throw std::bad_alloc();
  if (uniform_ != Content::kUnknown) std::memset(table->blocks.get(), number(uniform_), count);
  table_ = std::move(table);
}

void Contents::set_bytes(std::uint64_t block, std::uint64_t begin, std::uint64_t end, std::uint8_t state) {
  std::uint8_t& now = table_->blocks[block];
  if (now == state) return;
  Bytes& bytes = table_->bytes[block];
  if (now != kMixed) std::memset(bytes.states, now, kBlock);
  std::memset(bytes.states + begin, state, end - begin);
  now = kMixed;
}

void Contents::set_blocks(std::uint64_t begin, std::uint64_t end, std::uint8_t state) {
  if (begin >= end) return;
  std::uint8_t* const blocks = table_->blocks.get();
  if (!table_->bytes.empty()) {
    for (std::uint64_t at = begin; at < end; ++at) {
      const void* mixed = std::memchr(blocks + at, kMixed, end - at);
      if (mixed == nullptr) break;
      at = static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(mixed) - blocks);
      table_->bytes.erase(at);
    }
  }
  std::memset(blocks + begin, state, end - begin);
}

}  // namespace cudasim
