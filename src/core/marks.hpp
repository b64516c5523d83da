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

// At most one mark for each stream: the last one. Mostly there is only one, which takes no memory of its own.
class Marks {
 public:
  Marks() = default;
  explicit Marks(Mark only) : only_(only), count_(1) {}

  void add(Mark mark) {
    if (count_ == 1 && only_.stream == mark.stream) {  // mostly
      only_.number = std::max(only_.number, mark.number);
      return;
    }
    for (Mark& mine : *this) {
      if (mine.stream != mark.stream) continue;
      mine.number = std::max(mine.number, mark.number);
      return;
    }
    if (count_ == 0) {
      only_ = mark;
    } else {
      if (count_ == 1) several_.push_back(only_);
      several_.push_back(mark);
    }
    ++count_;
  }
  void join(const Marks& other) {
    for (const Mark mark : other) add(mark);
  }
  template <typename Predicate>
  void drop_if(const Predicate& predicate) {
    Marks kept;
    for (const Mark mark : *this) {
      if (!predicate(mark)) kept.add(mark);
    }
    if (kept.count_ < count_) *this = std::move(kept);
  }
  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }
  const Mark* begin() const { return count_ > 1 ? several_.data() : &only_; }
  const Mark* end() const { return begin() + count_; }

 private:
  Mark* begin() { return count_ > 1 ? several_.data() : &only_; }
  Mark* end() { return begin() + count_; }

  Mark only_;                  // if there is one
  std::vector<Mark> several_;  // if there are more: all of them
  std::size_t count_ = 0;
};

}  // namespace arena
