// Parses the rows of `arena-trace 1` text into events. Reads rows in arena's own form, which are nearly all, ten times
// as fast as Python; any other row is left to the caller, which also writes the error message.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "trace/trace.hpp"

namespace arena {

// A position in the text, where reading begins or ended.
struct TextPlace {
  std::size_t at;        // offset of the start of a row
  std::uint64_t number;  // of the previous row
};

// Passes complete rows, without their newline, and their numbers to `read`, up to the first for which it returns false
// or throws TraceError. The caller reads that row again and reports the error with the name of the file.
template <class Function>
TextPlace read_rows(std::string_view text, TextPlace from, const Function& read) {
  while (true) {
    const std::size_t end = text.find('\n', from.at);
    if (end == std::string_view::npos) return from;
    try {
      if (!read(text.substr(from.at, end - from.at), from.number + 1)) return from;
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

 private:
  bool read_row(std::string_view row, std::uint64_t number);

  std::shared_ptr<Trace> trace_;
  std::unordered_map<std::uint64_t, std::uint64_t> live_;  // block numbers of the text to those of the trace
  std::uint64_t allocated_ = 0;
};

}  // namespace arena
