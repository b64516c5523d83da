// Marks: the points in streams up to which freed memory may be in use. The stream that freed it can reuse it at once,
// another stream after waiting for the mark, and the host (to unmap it) once the mark is known to be reached.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace arena {

using StreamIndex = std::uint32_t;

// The point after the `number`-th free of a stream, counted from 1.
struct Mark {
  StreamIndex stream = 0;
  std::uint64_t number = 0;
};

// The last mark of each stream. Usually there is only one, which is stored inline.
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

  Mark only_;        // the mark, if there is exactly one; its number is 0 if there is none
  Several several_;  // all marks, if there are more; otherwise null
};

}  // namespace arena
