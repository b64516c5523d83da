#include "standins/common/settings.hpp"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace standins {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::optional<double> unit_of(std::string_view unit) {
  if (unit.empty() || unit == "B") return 1.0;
  if (unit == "KiB") return 1024.0;
  if (unit == "MiB") return 1024.0 * 1024.0;
  if (unit == "GiB") return 1024.0 * 1024.0 * 1024.0;
  if (unit == "kB" || unit == "KB") return 1e3;
  if (unit == "MB") return 1e6;
  if (unit == "GB") return 1e9;
  return std::nullopt;
}

std::optional<std::uint64_t> read_setting(std::string_view library) {
  const std::string name = "CUDASIM_WORKSPACE_" + std::string(library);
  const char* const text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::optional<std::uint64_t> size = parse_size(text);
  if (!size) {
    std::fprintf(stderr,
                 "cudasim: %s: '%s' is not a size; give bytes or a size such as 64MiB. The estimate is used instead.\n",
                 name.c_str(), text);
  }
  return size;
}

enum class Wanted { kLeast, kLikely, kMost };

Wanted read_wanted() {
  const char* const text = std::getenv("CUDASIM_WORKSPACE_ESTIMATES");
  const std::string_view word = text == nullptr ? "" : text;
  if (word == "least") return Wanted::kLeast;
  if (word == "most") return Wanted::kMost;
  if (!word.empty() && word != "likely") {
    std::fprintf(stderr, "cudasim: CUDASIM_WORKSPACE_ESTIMATES: '%s' is not least, likely or most. Likely is used.\n",
                 text);
  }
  return Wanted::kLikely;
}

// Adds a line to the log if the estimate is less certain than all of its library before.
void log(std::string_view library, const Estimate& estimate) {
  static const char* const path = std::getenv("CUDASIM_WORKSPACE_LOG");
  static std::mutex* const mutex = new std::mutex;
  static auto* const widest = new std::map<std::string_view, std::uint64_t>;
  if (path == nullptr || *path == '\0' || estimate.high <= estimate.low) return;
  const std::lock_guard lock(*mutex);
  std::uint64_t& before = (*widest)[library];
  if (estimate.high - estimate.low <= before) return;
  before = estimate.high - estimate.low;
  std::FILE* const file = std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s %llu %llu %llu\n", std::string(library).c_str(), static_cast<unsigned long long>(estimate.low),
               static_cast<unsigned long long>(estimate.likely), static_cast<unsigned long long>(estimate.high));
  std::fclose(file);
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
  text = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
  const auto unit = unit_of(trimmed({end, static_cast<std::size_t>(text.data() + text.size() - end)}));
  if (!unit || number * *unit > 1e15) return std::nullopt;
  return static_cast<std::uint64_t>(number * *unit);
}

std::optional<std::uint64_t> workspace_setting(std::string_view library) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const known = new std::map<std::string_view, std::optional<std::uint64_t>>;
  const std::lock_guard lock(*mutex);
  const auto found = known->find(library);
  if (found != known->end()) return found->second;
  return known->emplace(library, read_setting(library)).first->second;
}

std::uint64_t workspace(std::string_view library, const Estimate& estimate) {
  const auto set = workspace_setting(library);
  return set ? *set : estimated(library, estimate);
}

std::uint64_t estimated(std::string_view library, const Estimate& estimate) {
  static const Wanted wanted = read_wanted();
  log(library, estimate);
  return wanted == Wanted::kLeast ? estimate.low : wanted == Wanted::kMost ? estimate.high : estimate.likely;
}

std::uint64_t workspace(std::string_view library, std::uint64_t size) {
  return workspace_setting(library).value_or(size);
}

}  // namespace standins
