// The table of blocks against std::map, and the marks of streams against another one.
#include "core/blocks/blocks.hpp"

#include <map>
#include <random>
#include <utility>

#include "core/streams/marks.hpp"
#include "native/check.hpp"

namespace arena {
namespace {

TEST(blocks_are_found_by_address_however_many_come_and_go) {
  std::mt19937 chance(1);
  Blocks blocks;
  std::map<std::uint64_t, Block*> model;
  for (int step = 0; step < 40'000; ++step) {
    const bool grows = step / 10'000 % 2 == 0;  // the table doubles on the way up, and shrinks on the way down
    const std::uint64_t address = 0x7f0000000000 + 512 * (chance() % 8192);
    const auto it = model.find(address);
    CHECK(blocks.find(address) == (it == model.end() ? nullptr : it->second));
    if (it == model.end() && (grows || chance() % 4 == 0)) {
      Block& block = blocks.add(address);
      CHECK(block.address == address && block.cacheable && block.others.empty() && block.pins == 0 && !block.live);
      block.serial = address;
      if (chance() % 2 == 0) {  // uncacheable blocks are reset on removal
        block.cacheable = false;
        block.others.push_back(1);
        block.pins = 1;
      }
      model[address] = &block;
    } else if (it != model.end() && (!grows || chance() % 4 == 0)) {
      blocks.remove(*it->second);
      model.erase(it);
    }
    CHECK(blocks.size() == model.size());
  }
  std::size_t seen = 0;
  blocks.each([&](const Block& block) {
    CHECK(model.at(block.address) == &block && block.serial == block.address);
    ++seen;
  });
  CHECK(seen == model.size());
}

TEST(marks_keep_the_last_of_each_stream) {
  std::mt19937 chance(2);
  for (int round = 0; round < 2'000; ++round) {
    Marks marks, other;
    std::map<StreamIndex, std::uint64_t> model;
    for (unsigned i = chance() % 8; i > 0; --i) {
      const Mark mark{static_cast<StreamIndex>(chance() % 4), 1 + chance() % 100};
      (chance() % 2 == 0 ? marks : other).add(mark);
      model[mark.stream] = std::max(model[mark.stream], mark.number);
    }
    marks.join(other);
    if (chance() % 2 == 0) {
      const auto is_even = [](const auto& mark) { return mark.number % 2 == 0; };
      marks.drop_if(is_even);
      std::erase_if(model, [](const auto& mark) { return mark.second % 2 == 0; });
    }
    CHECK(marks.count() == model.size() && marks.empty() == model.empty());
    for (const Mark mark : std::as_const(marks)) CHECK(model.at(mark.stream) == mark.number);
    other = marks;
    const Marks copy(other), moved(std::move(other));
    for (const Marks& same : {copy, moved}) {
      CHECK(same.count() == model.size());
      for (const Mark mark : same) CHECK(model.at(mark.stream) == mark.number);
    }
  }
}

}  // namespace
}  // namespace arena
