// Price tables: what a call would cost on a real device, in microseconds. Tables are built in or read from a file, and
// immutable. docs/prices.md describes the file, docs/simulated-driver.md the built-in tables.
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
  // Functions and their points, sorted by size. There are few functions, and most names differ in length, so a linear
  // search is fastest.
  using Rows = std::vector<std::pair<std::string, std::vector<PricePoint>>>;
  using Facts = std::vector<std::pair<std::string, std::string>>;

  // `name` is the value of the setting `prices`.
  PriceTable(std::string name, Rows rows, Facts facts = {});

  const std::string& name() const { return name_; }
  // `bytes` is the size of the memory that the call works on, 0 if it has none. Interpolates linearly between points.
  // Below the first point, the price is that of the first. Beyond the last, it grows with the slope from the first to
  // the last point, but never falls, because noise in the measurements could make it negative. Calls without points are
  // free.
  double price(std::string_view function, std::uint64_t bytes) const { return price_at(points_of(function), bytes); }
  // The same in two steps. Null for a call that is free; valid as long as the table.
  using Points = std::vector<PricePoint>;
  const Points* points_of(std::string_view function) const;
  static double price_at(const Points* points, std::uint64_t bytes);
  std::uint64_t id() const { return id_; }  // of this table alone, never 0
  // {"name": ..., "facts": {...}, "calls": {"cuMemCreate": [[2097152, 193], ...], ...}}
  std::string json() const;

 private:
  static std::uint64_t next_id();

  const std::uint64_t id_ = next_id();
  std::string name_;
  Rows rows_;
  Facts facts_;
};

using PriceTableRef = std::shared_ptr<const PriceTable>;

inline constexpr std::string_view kDefaultPrices = "a100";

// A built-in table by name, or a file by path. Throws std::invalid_argument that names the line and what is wrong with
// it. Reads the file each time; if it is gone, returns its last contents, so that an earlier setting can always be
// restored.
PriceTableRef find_prices(std::string_view text);

// Implemented in price_file.cpp. Throws std::invalid_argument, without the name of the file.
struct PriceFile {
  PriceTable::Rows rows;
  PriceTable::Facts facts;
};
PriceFile parse_prices(std::string_view text);

}  // namespace cudasim
