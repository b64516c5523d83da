#pragma once

namespace arena {

// Forks up to so many children. Returns how many hung: 0 or 1, because it stops at the first.
int count_hung_children(int forks);

}  // namespace arena
