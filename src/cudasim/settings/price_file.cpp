// Parses a price file (docs/prices.md). Strict, because misread prices would go unnoticed: anything unknown is an error
// that names the line.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "cudasim/machine/calls.hpp"
#include "cudasim/settings/prices.hpp"

namespace cudasim {
namespace {

constexpr std::string_view kTitle = "arena-prices";
constexpr std::string_view kVersion = "1";
constexpr double kHighest = 1e9;                            // microseconds
constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;  // bytes
constexpr std::size_t kFewColumns = 3, kAllColumns = 11;    // of a row: written by hand, and by arena measure
constexpr std::size_t kShown = 60;                          // characters of a value in an error

// Functions whose price may depend on a size.
constexpr std::array<std::string_view, 9> kSized{"cuMemAddressFree", "cuMemAddressReserve", "cuMemAlloc",
                                                 "cuMemCreate",      "cuMemFree",           "cuMemMap",
                                                 "cuMemRelease",     "cuMemSetAccess",      "cuMemUnmap"};

std::string in_quotes(std::string_view value) {
  return "'" + std::string(value.substr(0, kShown)) + (value.size() > kShown ? "...'" : "'");
}

bool is_blank(char c) { return c == ' ' || c == '\t'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (line = trim(line); !line.empty(); line = trim(line)) {
    const auto end = std::find_if(line.begin(), line.end(), is_blank);
    words.push_back(line.substr(0, static_cast<std::size_t>(end - line.begin())));
    line.remove_prefix(words.back().size());
  }
  return words;
}

class Reader {
 public:
  PriceFile read(std::string_view text) {
    for (number_ = 1; !text.empty(); ++number_) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (number_ == 1) {
        read_title(line);
      } else {
        read_line(line);
      }
    }
    if (number_ == 1) read_title("");
    if (file_.rows.empty()) {
      throw std::invalid_argument(" has no prices; write a line for each call and size: cuMemCreate 2MiB 193");
    }
    return std::move(file_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& right) const {
    throw std::invalid_argument(", line " + std::to_string(number_) + ": " + what + "; write " + right);
  }

  void read_title(std::string_view line) {
    const auto words = words_of(line);
    if (words.size() != 2 || words[0] != kTitle) {
      throw std::invalid_argument(
          " is not a price file: its first line is not 'arena-prices 1'; arena measure writes one");
    }
    if (words[1] != kVersion) {
      throw std::invalid_argument(" is a price file of version " + in_quotes(words[1]) +
                                  ", but this arena reads version 1; update arena, or measure again with this one");
    }
  }

  void read_line(std::string_view line) {
    const bool bad = std::any_of(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
    });
    if (bad) refuse("it has a control character", "text");
    line = trim(line);
    if (line.empty() || line.front() == '#') return;
    const auto words = words_of(line);
    if (words.front().ends_with(':')) return read_fact(line);
    if (words.front().starts_with("cu")) return read_row(words);
    refuse(in_quotes(line) + " is neither a fact nor a price", "'device: NAME', or 'cuMemCreate 2MiB 193'");
  }

  void read_fact(std::string_view line) {
    const std::size_t colon = line.find(':');
    const std::string key(line.substr(0, colon));
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
    if (key.empty() || !std::all_of(key.begin(), key.end(), is_letter)) {
      refuse("the fact " + in_quotes(key) + " is not accepted", "its name in lower-case letters: 'device: NAME'");
    }
    for (const auto& [known, value] : file_.facts) {
      if (known == key) refuse("the fact " + in_quotes(key) + " appears twice", "it once");
    }
    file_.facts.emplace_back(key, std::string(trim(line.substr(colon + 1))));
  }

  void read_row(const std::vector<std::string_view>& words) {
    const std::string_view call = words[0];
    if (!is_function(call)) {
      refuse(in_quotes(call) + " is not a function of the driver", "its name without _v2, such as cuMemCreate");
    }
    if (words.size() != kFewColumns && words.size() != kAllColumns) {
      refuse("a row of " + std::string(call) + " with " + std::to_string(words.size()) + " columns",
             "3, the call, the size and microseconds, or the 11 that arena measure writes");
    }
    const PricePoint point{.bytes = read_size(call, words[1]), .microseconds = read_time(call, words[2])};
    for (std::size_t i = kFewColumns; i < words.size(); ++i) {
      if (words[i] != "-") read_time(call, words[i]);
    }
    std::vector<PricePoint>& points = points_of(call);
    if (!points.empty() && (point.bytes == 0 || points.back().bytes == 0 || points.back().bytes >= point.bytes)) {
      refuse("the size " + in_quotes(words[1]) + " of " + std::string(call) + " comes after " +
                 (points.back().bytes == 0 ? "a row for all sizes" : std::to_string(points.back().bytes) + " bytes"),
             "each size once, from the smallest to the largest, or one row with - for all sizes");
    }
    points.push_back(point);
  }

  std::vector<PricePoint>& points_of(std::string_view call) {
    for (auto& [name, points] : file_.rows) {
      if (name == call) return points;
    }
    return file_.rows.emplace_back(call, std::vector<PricePoint>{}).second;
  }

  std::uint64_t read_size(std::string_view call, std::string_view text) const {
    if (text == "-") return 0;
    if (std::find(kSized.begin(), kSized.end(), call) == kSized.end()) {
      refuse("the size " + in_quotes(text) + " of " + std::string(call) + ", whose price does not depend on one", "-");
    }
    constexpr std::array<std::string_view, 4> units{"", "KiB", "MiB", "GiB"};
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
    const auto unit = std::find(units.begin(), units.end(), rest);
    const auto shift = 10 * static_cast<unsigned>(unit - units.begin());
    if (error != std::errc{} || unit == units.end() || count == 0 || count > (kLargest >> shift)) {
      refuse("the size " + in_quotes(text) + " of " + std::string(call) + " is not accepted",
             "a whole number with a unit, such as 2MiB, up to 1024GiB, or - for all sizes");
    }
    return count << shift;
  }

  double read_time(std::string_view call, std::string_view text) const {
    double time = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), time, std::chars_format::fixed);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(time) || std::signbit(time) ||
        time > kHighest) {
      refuse(in_quotes(text) + " of " + std::string(call) + " is not accepted",
             "microseconds, a number from 0 to 1000000000 such as 193.5");
    }
    return time;
  }

  PriceFile file_;
  std::size_t number_ = 1;
};

}  // namespace

PriceFile parse_prices(std::string_view text) { return Reader().read(text); }

}  // namespace cudasim
