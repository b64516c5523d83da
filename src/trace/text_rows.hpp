// The rows of `arena-trace 1` text, as events. Reads those that are written as arena writes them, which are nearly all, in
// a tenth of the time that Python takes; any other row is left to the caller, who knows what to say about it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "trace/trace.hpp"

namespace arena {

// Where reading begins, or ended.
struct TextPlace {
  std::size_t at;        // in the text: the beginning of a row
  std::uint64_t number;  // of the row before
};

// Has a function read whole rows, given without their end and with their number, up to the first for which it returns
// false, or throws TraceError: the caller meets that again, and knows the name of the file.
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

  // Appends the events of whole rows, up to the first that is anything else, or that there is no room for.
  TextPlace read(std::string_view text, TextPlace from);

  // A text may give blocks any numbers, and the same again after a free. Throw TraceError if it is live, or is not.
  void allocate(std::uint64_t row, std::uint64_t block, Bytes size, std::uint32_t stream);
  void free(std::uint64_t row, std::uint64_t block);

 private:
  bool read_row(std::string_view row, std::uint64_t number);

  std::shared_ptr<Trace> trace_;
  std::unordered_map<std::uint64_t, std::uint64_t> live_;  // numbers in the trace, by those in the text
  std::uint64_t allocated_ = 0;
};

}  // namespace arena
