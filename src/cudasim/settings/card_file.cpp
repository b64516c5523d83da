// Reads the profile of a card: a flat TOML file with a key and a value on each line, as docs/cards.md describes it. Strict,
// because a figure that was misread would look like one: what is not understood is refused, with its line.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cudasim/machine/store.hpp"
#include "cudasim/settings/files.hpp"
#include "cudasim/settings/settings.hpp"

namespace cudasim {
namespace {

constexpr std::size_t kLargestProfile = 1 << 16;
constexpr std::size_t kLongestName = 255;  // that cuDeviceGetName can return
constexpr int kMostInt = 0x7fffffff;

// What follows from the compute capability, from NVIDIA's table of technical specifications.
struct Generation {
  int capability, threads, blocks, shared_kib;
};
constexpr std::array<Generation, 12> kGenerations{{{50, 2048, 32, 64},
                                                   {52, 2048, 32, 96},
                                                   {60, 2048, 32, 64},
                                                   {61, 2048, 32, 96},
                                                   {70, 2048, 32, 96},
                                                   {75, 1024, 16, 64},
                                                   {80, 2048, 32, 164},
                                                   {86, 1536, 16, 100},
                                                   {87, 1536, 16, 164},
                                                   {89, 1536, 24, 100},
                                                   {90, 2048, 32, 228},
                                                   {120, 1536, 24, 100}}};

Generation generation_of(int capability) {
  Generation found = kGenerations.front();
  for (const Generation& one : kGenerations) {
    if (one.capability <= capability) found = one;
  }
  if (capability >= 100 && capability < 120) found = {capability, 2048, 32, 228};
  return found;
}

int shared_optin(int capability, int per_multiprocessor) {
  if (capability >= 80) return per_multiprocessor - 1024;
  return capability >= 70 ? per_multiprocessor : 48 << 10;
}

struct Value {
  std::size_t line = 0;
  std::string text;
  bool quoted = false;
};

class Profile {
 public:
  Profile(std::string path, std::string_view text) : path_(std::move(path)) {
    for (std::size_t number = 1; !text.empty(); ++number) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      read_line(number, text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  Card card() {
    Card card;
    card.name = read_name();
    card.memory = bytes("memory", kMinDeviceMemory, kMaxDeviceMemory);
    std::tie(card.major, card.minor) = read_capability();
    const Generation from = generation_of(card.capability());
    card.multiprocessors = number("multiprocessors", {}, 1, 1 << 16);
    card.threads_per_multiprocessor = number("threads_per_multiprocessor", from.threads, 32, 1 << 16);
    card.blocks_per_multiprocessor = number("blocks_per_multiprocessor", from.blocks, 1, 1 << 16);
    card.shared_per_multiprocessor = number("shared_per_multiprocessor", from.shared_kib << 10, 1 << 10, 1 << 30);
    card.shared_per_block = number("shared_per_block", 48 << 10, 1 << 10, 1 << 30);
    const int optin = shared_optin(card.capability(), card.shared_per_multiprocessor);
    card.shared_per_block_optin = number("shared_per_block_optin", optin, 1 << 10, 1 << 30);
    card.registers_per_multiprocessor = number("registers_per_multiprocessor", 64 << 10, 1 << 10, 1 << 30);
    card.l2_cache = number("l2_cache", 4 << 20, 0, kMostInt);
    card.clock_khz = number("clock_khz", 1'500'000, 1, kMostInt);
    card.memory_clock_khz = number("memory_clock_khz", 5'000'000, 1, kMostInt);
    card.bus_width = number("bus_width", 256, 1, 1 << 20);
    card.integrated = read_switch("integrated");
    card.context = values_.contains("context") ? bytes("context", 0, *card.memory) : 0;
    card.path = path_;
    return card;
  }

 private:
  static constexpr std::array<std::string_view, 16> kKeys{"name",
                                                          "memory",
                                                          "compute_capability",
                                                          "multiprocessors",
                                                          "threads_per_multiprocessor",
                                                          "blocks_per_multiprocessor",
                                                          "shared_per_block",
                                                          "shared_per_block_optin",
                                                          "shared_per_multiprocessor",
                                                          "registers_per_multiprocessor",
                                                          "l2_cache",
                                                          "clock_khz",
                                                          "memory_clock_khz",
                                                          "bus_width",
                                                          "integrated",
                                                          "context"};

  [[noreturn]] void refuse_line(std::size_t line, const std::string& what, const std::string& right) const {
    throw std::invalid_argument(shown_path(path_) + ", line " + std::to_string(line) + ": " + what + "; write " +
                                right);
  }
  [[noreturn]] void refuse_value(std::string_view key, const std::string& right) const {
    const Value& value = values_.find(key)->second;
    const std::string shown = value.quoted ? '"' + value.text + '"' : value.text;
    refuse_line(value.line, std::string(key) + " = " + shown + " is not accepted", right);
  }

  void read_line(std::size_t number, std::string_view line) {
    line = trim_blanks(line);
    if (line.empty() || line.front() == '#') return;
    const std::size_t equals = line.find('=');
    const std::string key(trim_blanks(line.substr(0, std::min(equals, line.size()))));
    if (equals == std::string_view::npos) {
      refuse_line(number, "'" + key.substr(0, 60) + "' has no value", "key = value, such as multiprocessors = 128");
    }
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      std::string known;
      for (const std::string_view one : kKeys) known += (known.empty() ? "" : ", ") + std::string(one);
      refuse_line(number, "there is no key '" + key.substr(0, 60) + "'", "one of " + known);
    }
    if (values_.contains(key)) refuse_line(number, key + " is there twice", "it once");
    values_[key] = read_value(number, key, trim_blanks(line.substr(equals + 1)));
  }

  Value read_value(std::size_t number, const std::string& key, std::string_view text) const {
    Value value{.line = number, .text = {}, .quoted = text.starts_with('"')};
    std::size_t end = std::min(text.find('#'), text.size());
    if (value.quoted) {
      const std::size_t close = text.find('"', 1);
      const bool whole = close != std::string_view::npos && text.find('\\') > close;
      const std::string_view rest = whole ? trim_blanks(text.substr(close + 1)) : "?";
      if (!whole || (!rest.empty() && rest.front() != '#')) {
        refuse_line(number, key + " = " + std::string(text.substr(0, 60)) + " is not accepted",
                    "a text in double quotes, without a backslash, and no more");
      }
      value.text = text.substr(1, close - 1);
      return value;
    }
    value.text = trim_blanks(text.substr(0, end));
    if (value.text.empty()) refuse_line(number, key + " has no value", "one behind the =");
    return value;
  }

  const Value& required(std::string_view key) const {
    const auto it = values_.find(key);
    if (it != values_.end()) return it->second;
    throw std::invalid_argument(shown_path(path_) + " has no " + std::string(key) +
                                "; a profile has at least name, memory, compute_capability and multiprocessors");
  }

  std::string read_name() const {
    const Value& value = required("name");
    const bool plain = std::none_of(value.text.begin(), value.text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (!value.quoted || value.text.empty() || value.text.size() > kLongestName || !plain) {
      refuse_value("name", "a text of 1 to 255 bytes in double quotes");
    }
    return value.text;
  }

  std::pair<int, int> read_capability() const {
    const Value& value = required("compute_capability");
    const std::size_t dot = value.text.find('.');
    const auto digits = [](std::string_view text) {
      return !text.empty() && text.size() <= 2 &&
             std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    const std::string_view text = value.text;
    if (!value.quoted || dot == std::string::npos || !digits(text.substr(0, dot)) || text.size() != dot + 2 ||
        !digits(text.substr(dot + 1)) || std::stoi(value.text) < 5) {
      refuse_value("compute_capability", "it in double quotes, from \"5.0\" on, such as \"8.9\"");
    }
    return {std::stoi(value.text), value.text[dot + 1] - '0'};
  }

  std::uint64_t bytes(std::string_view key, std::uint64_t low, std::uint64_t high) const {
    const Value& value = required(key);
    std::uint64_t found = 0;
    bool good = false;
    try {
      found = value.quoted ? parse_bytes(value.text) : whole_number(value.text);
      good = found >= low && found <= high;
    } catch (const std::invalid_argument&) {  // refused below, with the place
    }
    if (!good) {
      refuse_value(
          key, "bytes, such as 25386352640 or \"24GiB\", from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return found;
  }

  // A number, or for memory a size in quotes; `standard` if it is not given, and then it need not be.
  int number(std::string_view key, std::optional<int> standard, int low, int high) const {
    if (standard && !values_.contains(key)) return *standard;
    required(key);
    const bool size = key.starts_with("shared") || key == "l2_cache";
    if (size) return static_cast<int>(bytes(key, static_cast<unsigned>(low), static_cast<unsigned>(high)));
    const Value& value = values_.find(key)->second;
    std::uint64_t found = 0;
    bool good = false;
    try {
      found = whole_number(value.text);
      good = !value.quoted && found >= static_cast<unsigned>(low) && found <= static_cast<unsigned>(high);
    } catch (const std::invalid_argument&) {
    }
    if (!good) refuse_value(key, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    return static_cast<int>(found);
  }

  bool read_switch(std::string_view key) const {
    const auto it = values_.find(key);
    if (it == values_.end()) return false;
    if (it->second.quoted || (it->second.text != "true" && it->second.text != "false")) {
      refuse_value(key, "true or false");
    }
    return it->second.text == "true";
  }

  // Digits, with underscores between them as TOML allows.
  static std::uint64_t whole_number(std::string_view text) {
    std::string digits;
    for (const char c : text) {
      if (c != '_') digits += c;
    }
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool good = error == std::errc{} && end == digits.data() + digits.size() && !text.starts_with('_') &&
                      !text.ends_with('_') && text.find("__") == std::string_view::npos;
    if (!good) throw std::invalid_argument("");
    return value;
  }

  static std::string_view trim_blanks(std::string_view text) {
    constexpr std::string_view blanks = " \t\r";
    const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
    text.remove_prefix(begin);
    return text.substr(0, text.find_last_not_of(blanks) + 1);
  }

  std::string path_;
  std::map<std::string, Value, std::less<>> values_;
};

// The last content of every profile that was read. Guarded, as all settings are, by the machine's mutex.
std::map<std::string, Card, std::less<>>& cards_read_before() {
  static auto& cards = *new std::map<std::string, Card, std::less<>>;
  return cards;
}

}  // namespace

Card find_card(std::string_view text) {
  if (text.empty()) return {};
  std::error_code error;
  const std::string path = std::filesystem::absolute(std::filesystem::path(text), error).lexically_normal().string();
  if (error) throw std::invalid_argument("'" + shown_path(text) + "' is not the path of a profile");
  if (!std::filesystem::exists(path, error)) {
    const auto known = cards_read_before().find(path);
    if (known != cards_read_before().end()) return known->second;
    throw std::invalid_argument("'" + shown_path(text) +
                                "' is not accepted; write the path of a card's profile; there is no file of that name");
  }
  Card card = Profile(path, read_small_file(path, kLargestProfile, "the profile of a card")).card();
  cards_read_before()[path] = card;
  return card;
}

}  // namespace cudasim
