#include "trace/text_rows.hpp"

#include <charconv>
#include <string>

namespace arena {
namespace {

constexpr std::uint64_t kRowTime = 1000;  // nanoseconds per row: the text has no times

// Takes a number and the comma after it; `row` is empty after the last number. False if the row has any other form.
bool take_number(std::string_view& row, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(row.data(), row.data() + row.size(), number);
  if (error != std::errc()) return false;
  row.remove_prefix(static_cast<std::size_t>(end - row.data()));
  if (row.empty()) return true;
  if (row.front() != ',') return false;
  row.remove_prefix(1);
  return !row.empty();
}

// One that is not valid text is for the caller to refuse.
bool is_comment(std::string_view row) { return row.starts_with('#') && is_utf8(row); }

}  // namespace

TextPlace TextRows::read(std::string_view text, TextPlace from) {
  return read_rows(text, from, [&](std::string_view row, std::uint64_t number) { return read_row(row, number); });
}

bool TextRows::read_row(std::string_view row, std::uint64_t number) {
  if (row.empty() || is_comment(row)) return true;
  if (row.starts_with("s,") && is_utf8(row)) {
    steps_.push_back({trace_->events().size(), std::string(row.substr(2))});
    return true;
  }
  if (row.size() < 3 || row[1] != ',') return false;
  const char kind = row[0];
  row.remove_prefix(2);
  if (kind == 'x') return read_failure(row, number);
  std::uint64_t block = 0, size = 0, stream = 0;
  if (!take_number(row, block)) return false;
  if (kind == 'f') {
    if (!row.empty() || !live_.contains(block)) return false;
    free(number, block);
    return true;
  }
  if (kind != 'a' || row.empty() || !take_number(row, size) || row.empty()) return false;
  if (!take_number(row, stream) || !row.empty() || stream >= kStreamNumbers || live_.contains(block)) return false;
  allocate(number, block, size, static_cast<std::uint32_t>(stream));
  return true;
}

bool TextRows::read_failure(std::string_view row, std::uint64_t number) {
  std::uint64_t size = 0, stream = 0;
  if (!take_number(row, size) || row.empty() || !take_number(row, stream)) return false;
  if (!row.empty() || stream >= kStreamNumbers) return false;
  trace_->add({.kind = EventKind::kFailure,
               .stream = static_cast<std::uint32_t>(stream),
               .time = number * kRowTime,
               .size = size});
  trace_->set_streams(static_cast<std::uint32_t>(stream) + 1);
  return true;
}

void TextRows::allocate(std::uint64_t row, std::uint64_t block, Bytes size, std::uint32_t stream) {
  if (live_.contains(block)) throw TraceError("block " + std::to_string(block) + " is already live");
  trace_->add(
      {.kind = EventKind::kAllocate, .stream = stream, .time = row * kRowTime, .block = allocated_, .size = size});
  trace_->set_streams(stream + 1);
  live_.set(block, allocated_++);
}

void TextRows::free(std::uint64_t row, std::uint64_t block) {
  const std::uint64_t* const found = live_.find(block);
  if (found == nullptr) throw TraceError("block " + std::to_string(block) + " is not live");
  trace_->add({.kind = EventKind::kFree, .time = row * kRowTime, .block = *found});
  live_.erase(block);
}

}  // namespace arena
