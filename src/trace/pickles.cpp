#include "trace/pickles.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "trace/trace.hpp"

namespace arena {
namespace {

// In bytes. The reader adds up sizes, so a huge number that many entries share would be added again and again.
constexpr std::uint64_t kLongestNumber = 255;

// The number of parts of an object, including those of all tuples in it: the work of hashing it. Saturates at 255. A number
// of more than 64 bits has two.
using Parts = std::uint8_t;
constexpr Parts kMostInKey = 100;

// Python hashes texts with a secret, but tuples and numbers in a way that anyone can compute: any number of different ones
// can have the same hash, and then each is compared with all before it. Of whole numbers of 64 bits, only a few can.
constexpr unsigned kMostOddKeys = 1000;  // keys of more than one part
constexpr std::uint64_t kWordBytes = 8, kWordDigits = 20;

Parts sum(Parts one, Parts other) { return static_cast<Parts>(std::min(255, one + other)); }

// A model of the stack and memo of Python's reader, with only what is needed to bound the time to hash keys of dicts
// and sets. A tuple that holds another one twice, n levels deep, takes 2^n steps to hash, and very deep nesting
// overflows the stack. Popping from an empty stack counts as one part; the reader rejects that pickle later.
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
  void make_tuple(unsigned count) {
    Parts parts = 1;
    while (count-- > 0) parts = sum(parts, pop());
    push(parts);
  }
  void make_object(unsigned count) {
    while (count-- > 0) pop();
    push();
  }

  void mark() { marks_.push_back(items_.size()); }
  bool pop_empty_mark() {
    if (marks_.empty() || marks_.back() != items_.size()) return false;
    marks_.pop_back();
    return true;
  }
  // Pops everything above the last mark, and the mark.
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
  std::vector<Parts> items_, memo_;  // memo: 0 for an empty entry
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
      skip_argument(shape_of(opcode));
      simulate(opcode);
    }
  }

 private:
  void skip_argument(Shape shape) {
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
        is_long_ = length > kWordBytes;
        skip(length);
        break;
      }
      case Follows::kFrame:  // its contents come next
        if (number(shape.width) > size_ - at_) fail("the pickle ends here");
        break;
      case Follows::kIndex:
        set_index(number(shape.width));
        break;
      case Follows::kTwoLines:
        line();
        line();
        break;
      case Follows::kLine:
        is_long_ = line() > kWordDigits;
        break;
      case Follows::kIndexLine:
        set_index(decimal());
        break;
      case Follows::kUnknown:
        fail("no such opcode");
    }
  }

  // What the reader does with its stack. It rejects opcodes that name or create objects, so these need not be exact.
  void simulate(std::uint8_t opcode) {
    const auto is = [&](std::string_view set) { return is_in(set, opcode); };
    if (is_long_ && is("IL\x8a\x8b")) return stack_.push(2);
    if (is("NFILSVKMJGUTXCB]})Pc\x82\x83\x84\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x96\x97")) return stack_.push();
    if (is("\x85\x86\x87")) return stack_.make_tuple(opcode - 0x84u);
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
    if (is("R\x81\x93")) stack_.make_object(2);
    if (is("\x92")) stack_.make_object(3);
    if (is("1eudltio\x90\x91")) simulate_marked(opcode);
  }

  void simulate_marked(std::uint8_t opcode) {
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
    if (count > size_ - at_) fail("the pickle ends here");
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
  std::size_t line() {
    const std::size_t begin = at_;
    while (data_[skip(1)] != '\n') {
    }
    return at_ - begin - 1;
  }
  std::uint64_t decimal() {
    std::uint64_t value = 0;
    for (std::uint8_t digit = 0; (digit = data_[skip(1)]) != '\n';) {
      if (digit < '0' || digit > '9') fail("an index that is not a number");
      if (value <= size_) value = value * 10 + (digit - '0');
    }
    return value;
  }
  void set_index(std::uint64_t index) {
    if (index > size_) fail("an index of " + std::to_string(index));
    index_ = index;
  }
  void check_key(Parts parts) {
    if (parts > kMostInKey) fail("a key of more than " + std::to_string(kMostInKey) + " parts");
    if (parts > 1 && ++odd_keys_ > kMostOddKeys) {
      fail("more than " + std::to_string(kMostOddKeys) + " keys that are tuples, sets or numbers of more than 64 bits");
    }
  }
  [[noreturn]] void fail(const std::string& text) const {
    throw TraceError("byte " + std::to_string(begin_) + ": " + text);
  }

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;    // of the opcode
  std::uint64_t index_ = 0;  // of the opcode's memo entry, if it has one
  bool is_long_ = false;     // whether the last number has more than 64 bits
  unsigned odd_keys_ = 0;
  Stack stack_;
};

}  // namespace

void check_pickle(const std::uint8_t* data, std::size_t size) { Walker(data, size).walk(); }

}  // namespace arena
