#include "cudasim/settings/prices.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include "cudasim/settings/files.hpp"

namespace cudasim {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::size_t kLargestFile = 1 << 20;  // bytes; arena measure writes about 4,000

PriceTable::Rows a100() {
  return {{"cuMemCreate", {{2 * kMiB, 193}, {64 * kMiB, 217.8}}},
          {"cuMemMap", {{0, 1.5}}},
          {"cuMemSetAccess", {{0, 36}}},
          {"cuMemUnmap", {{0, 26}}},
          {"cuMemRelease", {{0, 30}}},
          {"cuMemAddressReserve", {{0, 19}}},
          {"cuMemAlloc", {{0, 100}, {64 * kMiB, 125.6}}},
          {"cuEventRecord", {{0, 1}}},
          {"cuEventQuery", {{0, 0.5}}},
          {"cuLaunchKernel", {{0, 2}}},
          {"cuMemGetInfo", {{0, 10}}}};
}

PriceTable::Rows small() {
  return {{"cuMemCreate", {{2 * kMiB, 7.6}, {64 * kMiB, 32.4}}},
          {"cuMemMap", {{0, 1.1}}},
          {"cuMemSetAccess", {{0, 21}}},
          {"cuMemUnmap", {{0, 11}}},
          {"cuMemRelease", {{0, 5}}},
          {"cuMemAddressReserve", {{0, 9}}},
          {"cuMemAlloc", {{0, 60}, {64 * kMiB, 72.8}}},
          {"cuEventRecord", {{0, 1}}},
          {"cuEventQuery", {{0, 0.5}}},
          {"cuLaunchKernel", {{0, 2}}},
          {"cuMemGetInfo", {{0, 10}}}};
}

// Leaked: the machine is never destroyed, and may need prices while the process exits.
const std::array<PriceTableRef, 3>& built_in() {
  static const auto& tables =
      *new std::array<PriceTableRef, 3>{std::make_shared<const PriceTable>(std::string(kDefaultPrices), a100()),
                                        std::make_shared<const PriceTable>("small", small()),
                                        std::make_shared<const PriceTable>("free", PriceTable::Rows{})};
  return tables;
}

// The last contents of every file read. Like all settings, guarded by the machine's mutex.
std::map<std::string, PriceTableRef, std::less<>>& read_before() {
  static auto& tables = *new std::map<std::string, PriceTableRef, std::less<>>;
  return tables;
}

PriceTableRef read_prices(const std::string& path) {
  const std::string text = read_small_file(path, kLargestFile, "a price file");
  try {
    PriceFile file = parse_prices(text);
    return std::make_shared<const PriceTable>(path, std::move(file.rows), std::move(file.facts));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(shown_path(path) + error.what());
  }
}

[[noreturn]] void refuse_name(std::string_view text, const char* why) {
  throw std::invalid_argument("'" + shown_path(text) +
                              "' is not accepted; write a100, small, free, or the path of a file that " +
                              "arena measure wrote" + why);
}

void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view digits = "0123456789abcdef";
      out += "\\u00";
      out += digits[static_cast<unsigned char>(c) >> 4];
      out += digits[static_cast<unsigned char>(c) & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

void append_json(std::string& out, double number) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  out.append(text.data(), end);
}

}  // namespace

PriceTable::PriceTable(std::string name, Rows rows, Facts facts)
    : name_(std::move(name)), rows_(std::move(rows)), facts_(std::move(facts)) {}

const PriceTable::Points* PriceTable::points_of(std::string_view function) const {
  for (const auto& [name, points] : rows_) {
    if (name == function) return &points;
  }
  if (function == "cuEventRecordWithFlags" || function == "cuCtxRecordEvent") return points_of("cuEventRecord");
  if (function == "cuLaunchKernelEx" || function == "cuLaunchCooperativeKernel") return points_of("cuLaunchKernel");
  return nullptr;
}

std::uint64_t PriceTable::next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

double PriceTable::price_at(const Points* found, std::uint64_t bytes) {
  if (found == nullptr) return 0;
  const std::vector<PricePoint>& points = *found;
  const PricePoint &first = points.front(), &last = points.back();
  if (bytes <= first.bytes || points.size() == 1) return first.microseconds;
  const auto along = [bytes](const PricePoint& from, const PricePoint& a, const PricePoint& b) {
    const double share = static_cast<double>(bytes - from.bytes) / static_cast<double>(b.bytes - a.bytes);
    return from.microseconds + (b.microseconds - a.microseconds) * share;
  };
  if (bytes > last.bytes) return std::max(last.microseconds, along(last, first, last));
  const auto next = std::lower_bound(points.begin(), points.end(), bytes,
                                     [](const PricePoint& point, std::uint64_t size) { return point.bytes < size; });
  return along(*(next - 1), *(next - 1), *next);
}

std::string PriceTable::json() const {
  std::string out = "{\"name\":";
  append_json(out, name_);
  out += ",\"facts\":{";
  for (const auto& [key, value] : facts_) {
    if (out.back() != '{') out += ',';
    append_json(out, key);
    out += ':';
    append_json(out, value);
  }
  out += "},\"calls\":{";
  for (const auto& [function, points] : rows_) {
    if (out.back() != '{') out += ',';
    append_json(out, function);
    out += ":[";
    for (const PricePoint& point : points) {
      if (out.back() != '[') out += ',';
      out += '[' + std::to_string(point.bytes) + ',';
      append_json(out, point.microseconds);
      out += ']';
    }
    out += ']';
  }
  return out + "}}";
}

PriceTableRef find_prices(std::string_view text) {
  for (const PriceTableRef& table : built_in()) {
    if (table->name() == text) return table;
  }
  if (text.empty()) refuse_name(text, "");
  std::error_code error;
  const std::string path = std::filesystem::absolute(std::filesystem::path(text), error).lexically_normal().string();
  if (error) refuse_name(text, "");
  struct stat status{};
  if (stat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG)) {
    const auto known = read_before().find(path);
    if (known == read_before().end()) refuse_name(text, "; there is no file with that name");
    return known->second;
  }
  PriceTableRef table = read_prices(path);
  read_before()[path] = table;
  return table;
}

}  // namespace cudasim
