#include "trace/event_store.hpp"

#include <algorithm>
#include <cstring>

namespace arena {
namespace {

std::uint8_t width_of(std::uint64_t largest) {
  return largest == 0 ? 0 : largest <= 0xff ? 1 : largest <= 0xffff ? 2 : largest <= 0xffffffff ? 4 : 8;
}

template <class Number>
std::uint64_t load_as(const std::uint8_t* place) {
  Number number;
  std::memcpy(&number, place, sizeof number);
  return number;
}

std::uint64_t load(const std::uint8_t* column, std::size_t index, std::uint8_t width) {
  switch (width) {
    case 0:
      return 0;
    case 1:
      return column[index];
    case 2:
      return load_as<std::uint16_t>(column + 2 * index);
    case 4:
      return load_as<std::uint32_t>(column + 4 * index);
    default:
      return load_as<std::uint64_t>(column + 8 * index);
  }
}

template <class Number>
void store_as(std::uint8_t* place, std::uint64_t value) {
  const auto number = static_cast<Number>(value);
  std::memcpy(place, &number, sizeof number);
}

void store(std::uint8_t* column, std::size_t index, std::uint8_t width, std::uint64_t value) {
  switch (width) {
    case 0:
      return;
    case 1:
      column[index] = static_cast<std::uint8_t>(value);
      return;
    case 2:
      return store_as<std::uint16_t>(column + 2 * index, value);
    case 4:
      return store_as<std::uint32_t>(column + 4 * index, value);
    default:
      return store_as<std::uint64_t>(column + 8 * index, value);
  }
}

}  // namespace

EventStore::Values EventStore::values_of(const TraceEvent& event) {
  return {static_cast<std::uint64_t>(event.kind),
          event.thread,
          event.stream,
          event.line,
          event.time,
          event.block,
          event.size};
}

TraceEvent EventStore::unpack(const Page& page, std::size_t index) {
  Values found = page.least;
  const std::uint8_t* column = page.columns.get();
  for (std::size_t field = 0; field < kFields; ++field) {
    found[field] += load(column, index, page.width[field]);
    column += page.width[field] * kPage;
  }
  return {.kind = static_cast<EventKind>(found[0]),
          .thread = static_cast<std::uint32_t>(found[1]),
          .stream = static_cast<std::uint32_t>(found[2]),
          .line = static_cast<Line>(found[3]),
          .time = found[4],
          .block = found[5],
          .size = found[6]};
}

void EventStore::pack() {
  Page page;
  page.least = values_of(open_.front());
  Values most = page.least;
  for (const TraceEvent& event : open_) {
    const Values values = values_of(event);
    for (std::size_t field = 0; field < kFields; ++field) {
      page.least[field] = std::min(page.least[field], values[field]);
      most[field] = std::max(most[field], values[field]);
    }
  }
  std::size_t bytes = 0;
  for (std::size_t field = 0; field < kFields; ++field) {
    page.width[field] = width_of(most[field] - page.least[field]);
    bytes += page.width[field] * kPage;
  }
  page.columns = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
  for (std::size_t index = 0; index < kPage; ++index) {
    const Values values = values_of(open_[index]);
    std::uint8_t* column = page.columns.get();
    for (std::size_t field = 0; field < kFields; ++field) {
      store(column, index, page.width[field], values[field] - page.least[field]);
      column += page.width[field] * kPage;
    }
  }
  pages_.push_back(std::move(page));
  open_.clear();
}

}  // namespace arena
