// The settings of an arena.
#pragma once

#include "core/backing/plain.hpp"
#include "core/backing/plan.hpp"
#include "core/types.hpp"

namespace arena {

struct ArenaSettings {
  Bytes cap = 0;
  Bytes reserve = 0;
  Bytes headroom = 0;
  Bytes growth = Bytes{64} << 20;
  bool virtual_memory = true;  // if the device has it and there is no upstream
  Peers peers = {};            // which other devices may access the memory
  bool moves = false;          // see Arena::expect_moving()
  bool validates = false;      // checks every invariant after every operation: slow
  PlainSource upstream = {};
};

}  // namespace arena
