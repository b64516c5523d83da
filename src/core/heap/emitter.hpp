// Emits events to the observer, if there is one.
#pragma once

#include <memory>
#include <utility>

#include "core/blocks/blocks.hpp"
#include "core/heap/events.hpp"
#include "core/streams/streams.hpp"

namespace arena {

class Emitter {
 public:
  explicit Emitter(const Streams& streams) : streams_(streams) {}

  bool is_on() const { return observer_ != nullptr; }
  // Sets the observer (or null) and returns the previous one.
  std::shared_ptr<Observer> set(std::shared_ptr<Observer> observer) {
    emitted_reserved_ = 0;
    return std::exchange(observer_, std::move(observer));
  }

  void emit(Event event) const;  // requires is_on()
  // Emits the live blocks, in the order of their allocation.
  void emit_live(const Blocks& blocks) const;
  // Emits it if it has changed. Call this after emitting the event that changed it.
  void emit_reserved(Bytes reserved);

 private:
  const Streams& streams_;
  std::shared_ptr<Observer> observer_;
  Bytes emitted_reserved_ = 0;  // the last value
};

}  // namespace arena
