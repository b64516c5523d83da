// Parses the rows of `arena-trace 1` text into events. Reads rows in arena's own form, and skips comments and blank rows,
// which a small compressed file can have a billion of, ten times as fast as Python; any other row is left to the caller,
// which also writes the error message.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trace/trace.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

// A position in the text, where reading begins or ended.
struct TextPlace {
  std::size_t at;        // offset of the start of a row
  std::uint64_t number;  // of the previous row
};

// Passes complete rows, without their line end, and their numbers to `read`, up to the first for which it returns false
// or throws TraceError. The caller reads that row again and reports the error with the name of the file.
inline constexpr std::size_t kLongestRow = 1 << 16;  // longer ones are left to the caller, which refuses them

// The row without the line ends of other systems.
inline std::string_view without_return(std::string_view row) {
  while (row.ends_with('\r')) row.remove_suffix(1);
  return row;
}

template <class Function>
TextPlace read_rows(std::string_view text, TextPlace from, const Function& read) {
  while (true) {
    const std::size_t end = text.find('\n', from.at);
    if (end == std::string_view::npos || end - from.at >= kLongestRow) return from;
    try {
      if (!read(without_return(text.substr(from.at, end - from.at)), from.number + 1)) return from;
    } catch (const TraceError&) {
      return from;
    }
    from = {end + 1, from.number + 1};
  }
}

class TextRows {
 public:
  explicit TextRows(std::shared_ptr<Trace> trace) : trace_(std::move(trace)) {}

  // Appends the events of complete rows, up to the first that it cannot parse or has no room for.
  TextPlace read(std::string_view text, TextPlace from);

  // A text may use any block numbers, and reuse them after a free. These throw TraceError if the block is already live,
  // or is not live.
  void allocate(std::uint64_t row, std::uint64_t block, Bytes size, std::uint32_t stream);
  void free(std::uint64_t row, std::uint64_t block);

  // Where a step of the program begins.
  struct Step {
    std::uint64_t event;  // the next one
    std::string label;
  };
  // The steps that were read since the last call.
  std::vector<Step> take_steps() { return std::exchange(steps_, {}); }

 private:
  bool read_row(std::string_view row, std::uint64_t number);
  bool read_failure(std::string_view row, std::uint64_t number);

  std::shared_ptr<Trace> trace_;
  CountingMap<std::uint64_t> live_;  // block numbers of the text to those of the trace
  std::vector<Step> steps_;
  std::uint64_t allocated_ = 0;
};

}  // namespace arena
