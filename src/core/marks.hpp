// Points in streams that memory was last used before. Memory may be used by a stream again at once, by another stream
// after a wait for the mark, and by the host (to unmap it) when the mark is known to have been reached.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace arena {

using StreamIndex = std::uint32_t;

// After the `number`-th free of a stream.
struct Mark {
  StreamIndex stream = 0;
  std::uint64_t number = 0;
};

// At most one mark for each stream: the last one.
class Marks {
 public:
  void add(Mark mark) {
    for (Mark& mine : marks_) {
      if (mine.stream != mark.stream) continue;
      mine.number = std::max(mine.number, mark.number);
      return;
    }
    marks_.push_back(mark);
  }
  void join(const Marks& other) {
    for (const Mark mark : other.marks_) add(mark);
  }
  template <typename Predicate>
  void drop_if(const Predicate& predicate) {
    std::erase_if(marks_, [&](Mark mark) { return predicate(mark); });
  }
  bool empty() const { return marks_.empty(); }
  std::size_t count() const { return marks_.size(); }
  auto begin() const { return marks_.begin(); }
  auto end() const { return marks_.end(); }

 private:
  std::vector<Mark> marks_;
};

}  // namespace arena
