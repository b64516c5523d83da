#include "trace/pickles.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "trace/trace.hpp"

namespace arena {
namespace {

constexpr std::uint64_t kLongestNumber = 255;  // bytes: one that many entries share would be added to itself for each

// Of how many parts a thing is, a tuple of those of all that is in it: the work of hashing it. 255 stands for all above.
using Parts = std::uint8_t;
constexpr Parts kMostInKey = 100;

Parts sum(Parts one, Parts other) { return static_cast<Parts>(std::min(255, one + other)); }

// What Python's reader has on its stack and in its memo, as far as it says how long the keys of dicts and sets take to
// hash: a tuple that holds another twice, which does so again, is hashed 2^n times over; and one in one in one, without
// end, overflows the stack. Who takes what is not there will be refused by the reader: here it is one part.
class Stack {
 public:
  void push(Parts parts = 1) { items_.push_back(parts); }
  void duplicate() { push(items_.empty() ? 1 : items_.back()); }
  Parts pop() {
    if (items_.empty()) return 1;
    const Parts parts = items_.back();
    items_.pop_back();
    return parts;
  }
  void pop_and_push(unsigned count, bool as_tuple) {
    Parts parts = 1;
    while (count-- > 0) parts = sum(parts, pop());
    push(as_tuple ? parts : 1);
  }

  void mark() { marks_.push_back(items_.size()); }
  bool pop_empty_mark() {
    if (marks_.empty() || marks_.back() != items_.size()) return false;
    marks_.pop_back();
    return true;
  }
  // What lies above the last mark, with the mark.
  std::vector<Parts> pop_marked() {
    const std::size_t begin = marks_.empty() ? 0 : std::min(marks_.back(), items_.size());
    if (!marks_.empty()) marks_.pop_back();
    const auto first = items_.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<Parts> found(first, items_.end());
    items_.erase(first, items_.end());
    return found;
  }

  void keep(std::uint64_t index) {
    if (memo_.size() <= index) memo_.resize(static_cast<std::size_t>(index) + 1);
    Parts& place = memo_[static_cast<std::size_t>(index)];
    if (place == 0) ++kept_;
    place = items_.empty() ? 1 : items_.back();
  }
  void keep_next() { keep(kept_); }
  void fetch(std::uint64_t index) { push(index < memo_.size() ? memo_[static_cast<std::size_t>(index)] : 1); }

 private:
  std::vector<Parts> items_, memo_;  // memo: 0 where nothing is
  std::vector<std::size_t> marks_;
  std::uint64_t kept_ = 0;
};

bool is_in(std::string_view set, std::uint8_t opcode) { return set.find(static_cast<char>(opcode)) != set.npos; }

// What follows an opcode. The opcodes are those of Python's pickletools, up to protocol 5.
enum class Follows { kNothing, kBytes, kCounted, kNumber, kFrame, kIndex, kLine, kTwoLines, kIndexLine, kUnknown };

struct Shape {
  Follows follows;
  unsigned width = 0;  // of the bytes, the length or the index
};

Shape shape_of(std::uint8_t opcode) {
  using enum Follows;
  const auto is = [&](std::string_view set) { return is_in(set, opcode); };
  if (is("(.012NRbd}ael]ost)uQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98")) return {kNothing};
  if (is("K\x80\x82")) return {kBytes, 1};
  if (is("M\x83")) return {kBytes, 2};
  if (is("J\x84")) return {kBytes, 4};
  if (is("G")) return {kBytes, 8};
  if (is("UC\x8c")) return {kCounted, 1};
  if (is("TXB")) return {kCounted, 4};
  if (is("\x8d\x8e\x96")) return {kCounted, 8};
  if (is("\x8a")) return {kNumber, 1};
  if (is("\x8b")) return {kNumber, 4};
  if (is("\x95")) return {kFrame, 8};
  if (is("qh")) return {kIndex, 1};
  if (is("rj")) return {kIndex, 4};
  if (is("FILPSV")) return {kLine};
  if (is("ci")) return {kTwoLines};
  if (is("pg")) return {kIndexLine};
  return {kUnknown};
}

class Walker {
 public:
  Walker(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  void walk() {
    std::uint8_t opcode = 0;
    while (opcode != '.') {
      begin_ = at_;
      opcode = data_[skip(1)];
      pass(shape_of(opcode));
      play(opcode);
    }
  }

 private:
  void pass(Shape shape) {
    switch (shape.follows) {
      case Follows::kNothing:
        break;
      case Follows::kBytes:
        skip(shape.width);
        break;
      case Follows::kCounted:
        skip(number(shape.width));
        break;
      case Follows::kNumber: {
        const std::uint64_t length = number(shape.width);
        if (length > kLongestNumber) fail("a number of " + std::to_string(length) + " bytes");
        skip(length);
        break;
      }
      case Follows::kFrame:  // what is in it is passed over next
        if (number(shape.width) > size_ - at_) fail("it ends here");
        break;
      case Follows::kIndex:
        set_index(number(shape.width));
        break;
      case Follows::kTwoLines:
        line();
        line();
        break;
      case Follows::kLine:
        line();
        break;
      case Follows::kIndexLine:
        set_index(decimal());
        break;
      case Follows::kUnknown:
        fail("no such opcode");
    }
  }

  // What the reader does with its stack. Opcodes that name or make objects are refused there; what follows is not read.
  void play(std::uint8_t opcode) {
    const auto is = [&](std::string_view set) { return is_in(set, opcode); };
    if (is("NFILSVKMJGUTXCB]})Pc\x82\x83\x84\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x96\x97")) return stack_.push();
    if (is("\x85\x86\x87")) return stack_.pop_and_push(opcode - 0x84u, true);
    if (is("qrp")) return stack_.keep(index_);
    if (is("\x94")) return stack_.keep_next();
    if (is("hjg")) return stack_.fetch(index_);
    if (is("(")) return stack_.mark();
    if (is("2")) return stack_.duplicate();
    if (is("ab") || (is("0") && !stack_.pop_empty_mark())) stack_.pop();
    if (is("s")) {
      stack_.pop();
      check_key(stack_.pop());
    }
    if (is("R\x81\x93")) stack_.pop_and_push(2, false);
    if (is("\x92")) stack_.pop_and_push(3, false);
    if (is("1eudltio\x90\x91")) play_marked(opcode);
  }

  void play_marked(std::uint8_t opcode) {
    const std::vector<Parts> found = stack_.pop_marked();
    const bool is_dict = is_in("ud", opcode), is_set = is_in("\x90\x91", opcode);
    Parts parts = 1;
    for (std::size_t i = 0; i < found.size(); ++i) {
      parts = sum(parts, found[i]);
      if (is_set || (is_dict && i % 2 == 0)) check_key(found[i]);
    }
    if (is_in("dlio", opcode)) stack_.push();
    if (is_in("t\x91", opcode)) stack_.push(parts);
  }

  std::size_t skip(std::uint64_t count) {
    if (count > size_ - at_) fail("it ends here");
    const std::size_t before = at_;
    at_ += static_cast<std::size_t>(count);
    return before;
  }
  std::uint64_t number(unsigned width) {
    const std::size_t first = skip(width);
    std::uint64_t value = 0;
    for (unsigned i = 0; i < width; ++i) value |= std::uint64_t{data_[first + i]} << (8 * i);
    return value;
  }
  void line() {
    while (data_[skip(1)] != '\n') {
    }
  }
  std::uint64_t decimal() {
    std::uint64_t value = 0;
    for (std::uint8_t digit = 0; (digit = data_[skip(1)]) != '\n';) {
      if (digit < '0' || digit > '9') fail("an index that is no number");
      if (value <= size_) value = value * 10 + (digit - '0');
    }
    return value;
  }
  void set_index(std::uint64_t index) {
    if (index > size_) fail("an index of " + std::to_string(index));
    index_ = index;
  }
  void check_key(Parts parts) const {
    if (parts > kMostInKey) fail("a key of more than " + std::to_string(kMostInKey) + " parts");
  }
  [[noreturn]] void fail(const std::string& text) const {
    throw TraceError("byte " + std::to_string(begin_) + ": " + text);
  }

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;    // of the opcode
  std::uint64_t index_ = 0;  // in the memo: of the opcode, if it names one
  Stack stack_;
};

}  // namespace

void check_pickle(const std::uint8_t* data, std::size_t size) { Walker(data, size).walk(); }

}  // namespace arena
