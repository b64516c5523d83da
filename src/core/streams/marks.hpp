// Points in streams that memory was last used before. Memory may be used by a stream again at once, by another stream
// after a wait for the mark, and by the host (to unmap it) when the mark is known to have been reached.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace arena {

using StreamIndex = std::uint32_t;

// After the `number`-th free of a stream, counted from 1.
struct Mark {
  StreamIndex stream = 0;
  std::uint64_t number = 0;
};

// At most one mark for each stream: the last one. Mostly there is only one, which takes no memory of its own.
class Marks {
 public:
  Marks() = default;
  explicit Marks(Mark only) : only_(only) {}
  Marks(const Marks& other) : only_(other.only_), several_(copy_of(other)) {}
  Marks(Marks&&) = default;
  Marks& operator=(const Marks& other) {
    only_ = other.only_;
    if (several_ || other.several_) several_ = copy_of(other);
    return *this;
  }
  Marks& operator=(Marks&&) = default;

  void add(Mark mark) {
    if (!several_ && (only_.stream == mark.stream || empty())) {
      only_ = {mark.stream, std::max(only_.number, mark.number)};
    } else {
      add_to_several(mark);
    }
  }
  void join(const Marks& other) {
    if (other.several_) {
      for (const Mark mark : *other.several_) add(mark);
    } else if (other.only_.number > 0) {
      add(other.only_);
    }
  }
  template <typename Predicate>
  void drop_if(const Predicate& predicate) {
    Marks kept;
    for (const Mark mark : *this) {
      if (!predicate(mark)) kept.add(mark);
    }
    if (kept.count() < count()) *this = std::move(kept);
  }
  bool empty() const { return count() == 0; }
  std::size_t count() const { return several_ ? several_->size() : only_.number > 0; }
  const Mark* begin() const { return several_ ? several_->data() : &only_; }
  const Mark* end() const { return begin() + count(); }

 private:
  using Several = std::unique_ptr<std::vector<Mark>>;

  static Several copy_of(const Marks& other) {
    return other.several_ ? std::make_unique<std::vector<Mark>>(*other.several_) : nullptr;
  }
  [[gnu::noinline]] void add_to_several(Mark mark) {
    if (!several_) several_ = std::make_unique<std::vector<Mark>>(1, only_);
    for (Mark& mine : *several_) {
      if (mine.stream != mark.stream) continue;
      mine.number = std::max(mine.number, mark.number);
      return;
    }
    several_->push_back(mark);
  }

  Mark only_;        // if there is one: its number is not 0
  Several several_;  // if there are more: all of them
};

}  // namespace arena
