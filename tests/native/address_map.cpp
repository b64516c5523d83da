// The map in which PyTorch's blocks are found, beside a standard one.
#include "base/address_map.hpp"

#include <map>
#include <random>

#include "native/check.hpp"

namespace arena {
namespace {

TEST(an_address_map_finds_what_a_standard_map_finds) {
  std::mt19937_64 chance(1);
  for (const std::uintptr_t most : {8U, 200U, 5'000U}) {  // few addresses, so that most are taken and added again
    AddressMap<std::uint64_t> map;
    std::map<std::uintptr_t, std::uint64_t> expected;
    for (std::uint64_t i = 0; i < 40'000; ++i) {
      const std::uintptr_t address = (1 + chance() % most) << 9;
      const auto known = expected.find(address);
      const std::uint64_t* found = map.find(address);
      CHECK((found == nullptr) == (known == expected.end()));
      if (known == expected.end()) {
        CHECK(!map.take(address));
        if (i % 3 == 0) map.add(address, i + 1);  // replaced by the next
        map.add(address, i);
        expected.emplace(address, i);
      } else {
        CHECK(*found == known->second);
        CHECK(map.take(address) == known->second);
        expected.erase(known);
      }
    }
    for (const auto& [address, value] : expected) CHECK(map.take(address) == value);
    CHECK(map.find(0) == nullptr && !map.take(0) && !map.take(1 << 9));
  }
}

}  // namespace
}  // namespace arena
