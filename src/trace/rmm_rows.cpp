#include "trace/rmm_rows.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace arena {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kDay = 24 * 3600 * kSecond;
constexpr std::uint64_t kPerThread = 2;  // the handle of the per-thread default stream

bool are_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

template <class Number>
bool parse(std::string_view text, Number& number, int base = 10) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && at == end;
}

// For addresses and streams. Not every platform prints the 0x.
bool parse_address(std::string_view text, std::uint64_t& address) {
  if (text.empty() || text == "(nil)") return true;
  if (text.starts_with("0x")) text.remove_prefix(2);
  return parse(text, address, 16);
}

// 09:05:00.123456, with up to nine digits after the point, which may be a colon.
bool parse_time(std::string_view text, std::int64_t& time) {
  if (text.size() < 10 || text[2] != ':' || text[5] != ':' || (text[8] != '.' && text[8] != ':')) return false;
  const std::string_view part = text.substr(9);
  if (part.size() > 9) return false;
  std::int64_t fraction = 0;
  for (const std::string_view digits : {text.substr(0, 2), text.substr(3, 2), text.substr(6, 2), part}) {
    if (!are_digits(digits)) return false;
    parse(digits, fraction);
    if (digits.data() != part.data()) time = time * 60 + fraction;
  }
  for (std::size_t digits = part.size(); digits < 9; ++digits) fraction *= 10;
  time = time * kSecond + fraction;
  return true;
}

bool parse_action(std::string_view text, RmmRows::Action& action) {
  using enum RmmRows::Action;
  if (text != "allocate" && text != "free" && text != "allocate failure") return false;
  action = text == "allocate" ? kAllocate : text == "free" ? kFree : kFailure;
  return true;
}

// ASCII, as all of RMM's rows are.
std::string_view without_spaces(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool parse_row(std::string_view text, RmmRows::Row& row) {
  std::array<std::string_view, 6> fields;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t end = text.find(',');
    if ((end == std::string_view::npos) != (i + 1 == fields.size())) return false;
    fields[i] = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), fields[i].size() + 1));
  }
  row.thread = fields[0];
  return are_digits(fields[0]) && parse_time(fields[1], row.time) && parse_action(fields[2], row.action) &&
         parse_address(fields[3], row.pointer) && parse(fields[4], row.size) && parse_address(fields[5], row.stream);
}

}  // namespace

TextPlace RmmRows::read(std::string_view text, TextPlace from) {
  return read_rows(text, from, [&](std::string_view line, std::uint64_t) {
    const std::string_view text = without_spaces(line);
    if (text.empty()) return true;
    Row row;
    if (!parse_row(text, row)) return false;
    add(row);
    return true;
  });
}

void RmmRows::add(const Row& row) {
  const std::uint32_t thread = threads_.try_emplace(row.thread, threads_.size()).first->second;
  const Moment when{time_of(row.time), thread};
  const std::uint32_t stream = stream_of(row.stream, thread);
  switch (row.action) {
    case Action::kAllocate:
      free(when, row.pointer, std::nullopt);  // if the log lost its free
      allocate(when, row, stream);
      break;
    case Action::kFree:
      free(when, row.pointer, stream);
      break;
    case Action::kFailure:
      trace_->add(
          {.kind = EventKind::kFailure, .thread = thread, .stream = stream, .time = when.time, .size = row.size});
      break;
  }
}

std::uint64_t RmmRows::time_of(std::int64_t time_of_day) {
  if (time_of_day < last_ - kDay / 2) ++days_;  // past midnight; a small step back only means another thread
  last_ = time_of_day;
  const std::int64_t now = time_of_day + days_ * kDay;
  if (!begin_) begin_ = now;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, now - *begin_));
}

std::uint32_t RmmRows::stream_of(std::uint64_t handle, std::uint32_t thread) {
  const auto next = static_cast<std::uint32_t>(streams_.size());
  const auto [it, is_new] = streams_.try_emplace({handle, handle == kPerThread ? thread : 0}, next);
  if (is_new && next >= kStreamNumbers) {
    throw TraceError("stream " + std::to_string(next) + " of at most " + std::to_string(kStreamNumbers));
  }
  if (is_new) {
    trace_->set_handle(next, handle);
    trace_->set_streams(next + 1);
  }
  return it->second;
}

void RmmRows::allocate(Moment when, const Row& row, std::uint32_t stream) {
  trace_->add({.kind = EventKind::kAllocate,
               .thread = when.thread,
               .stream = stream,
               .time = when.time,
               .block = allocated_,
               .size = row.size});
  live_.set(row.pointer, {allocated_++, stream});
}

void RmmRows::free(Moment when, std::uint64_t pointer, std::optional<std::uint32_t> stream) {
  const Live* const found = live_.find(pointer);
  if (found == nullptr) return;  // allocated before the log began
  const Live live = *found;
  live_.erase(pointer);
  if (stream && *stream != live.stream) {  // in RMM, a free waits for the stream that is passed to it
    trace_->add({.kind = EventKind::kRecordStream,
                 .thread = when.thread,
                 .stream = *stream,
                 .time = when.time,
                 .block = live.block});
  }
  trace_->add({.kind = EventKind::kFree, .thread = when.thread, .time = when.time, .block = live.block});
}

}  // namespace arena
