// The events of a trace, compressed: a recording has tens of millions of them, and neighbours have similar values.
//
// Events are stored in pages. In a full page each field is a column: the minimum of the page, and each event's
// difference to it, in as many bytes as the largest difference needs. Events can be read in constant time, and only
// appended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/heap/events.hpp"

namespace arena {

struct TraceEvent {
  EventKind kind = EventKind::kAllocate;
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;
  Line line = 0;
  std::uint64_t time = 0;   // nanoseconds since the recording began
  std::uint64_t block = 0;  // or the number of a scope
  Bytes size = 0;
};

class EventStore {
 public:
  class Iterator {
   public:
    Iterator(const EventStore& store, std::size_t index) : store_(&store), index_(index) {}
    TraceEvent operator*() const { return (*store_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    const EventStore* store_;
    std::size_t index_;
  };

  void push_back(const TraceEvent& event) {
    open_.push_back(event);
    if (open_.size() == kPage) pack();
  }
  std::size_t size() const { return pages_.size() * kPage + open_.size(); }
  bool empty() const { return size() == 0; }
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

  TraceEvent operator[](std::size_t index) const {
    const std::size_t page = index / kPage;
    return page < pages_.size() ? unpack(pages_[page], index % kPage) : open_[index % kPage];
  }
  TraceEvent at(std::size_t index) const {
    if (index >= size()) throw std::out_of_range("no such event");
    return (*this)[index];
  }

 private:
  static constexpr std::size_t kPage = 4096;  // events
  static constexpr std::size_t kFields = 7;
  using Values = std::array<std::uint64_t, kFields>;

  struct Page {
    Values least = {};
    std::array<std::uint8_t, kFields> width = {};  // bytes: 0, 1, 2, 4 or 8
    std::unique_ptr<std::uint8_t[]> columns;
  };

  static Values values_of(const TraceEvent& event);
  static TraceEvent unpack(const Page& page, std::size_t index);
  void pack();  // turns `open_`, a full page of events, into a Page

  std::vector<Page> pages_;
  std::vector<TraceEvent> open_;
};

}  // namespace arena
