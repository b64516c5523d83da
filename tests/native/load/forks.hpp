#pragma once

namespace arena {

// How many of so many children wait for ever; it ends with the first.
int count_hung_children(int forks);

}  // namespace arena
