// What a call would have cost on a real device, in microseconds: price tables, built in or read from a file. A table never
// changes once it is made. docs/prices.md describes the file, docs/simulated-driver.md the tables that are built in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cudasim {

struct PricePoint {
  std::uint64_t bytes = 0;
  double microseconds = 0;
};

class PriceTable {
 public:
  // Functions and their points, each list in the order of sizes. `name` is what the setting `prices` accepts. There are few
  // of them, and most names differ in their length, so that looking through all is fastest.
  using Rows = std::vector<std::pair<std::string, std::vector<PricePoint>>>;
  using Facts = std::vector<std::pair<std::string, std::string>>;

  PriceTable(std::string name, Rows rows, Facts facts = {});

  const std::string& name() const { return name_; }
  // `bytes` is the size of the memory that the call is about, 0 for calls about none. Between two points the price lies on
  // the straight line. Below the first it is the first's. Beyond the last it grows as it did from the first to the last,
  // and never falls: one that did so by chance would end below zero. Calls without points are free.
  double price(std::string_view function, std::uint64_t bytes) const;
  // {"name": ..., "facts": {...}, "calls": {"cuMemCreate": [[2097152, 193], ...], ...}}
  std::string json() const;

 private:
  const std::vector<PricePoint>* points_of(std::string_view function) const;

  std::string name_;
  Rows rows_;
  Facts facts_;
};

using PriceTableRef = std::shared_ptr<const PriceTable>;

inline constexpr std::string_view kDefaultPrices = "a100";

// A built-in table by its name, or the one in a file by its path. Throws std::invalid_argument that says what is wrong with
// which line. A file is read each time; one that was read before and is gone gives what it had, so that a setting that was
// in force can always be put back.
PriceTableRef find_prices(std::string_view text);

// What price_file.cpp reads. Throws std::invalid_argument, without the name of the file.
struct PriceFile {
  PriceTable::Rows rows;
  PriceTable::Facts facts;
};
PriceFile parse_prices(std::string_view text);

}  // namespace cudasim
