#include "trace/pickles.hpp"

#include <string>
#include <string_view>

#include "trace/trace.hpp"

namespace arena {
namespace {

// What follows an opcode. The opcodes are those of Python's pickletools, up to protocol 5.
enum class Follows { kNothing, kBytes, kCounted, kFrame, kIndex, kLine, kTwoLines, kIndexLine, kUnknown };

struct Shape {
  Follows follows;
  unsigned width = 0;  // of the bytes, the length or the index
};

Shape shape_of(std::uint8_t opcode) {
  using enum Follows;
  const auto is_in = [&](std::string_view set) { return set.find(static_cast<char>(opcode)) != set.npos; };
  if (is_in("(.012NRbd}ael]ost)uQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98")) return {kNothing};
  if (is_in("Kh\x80\x82")) return {kBytes, 1};
  if (is_in("M\x83")) return {kBytes, 2};
  if (is_in("Jj\x84")) return {kBytes, 4};
  if (is_in("G")) return {kBytes, 8};
  if (is_in("UC\x8a\x8c")) return {kCounted, 1};
  if (is_in("TXB\x8b")) return {kCounted, 4};
  if (is_in("\x8d\x8e\x96")) return {kCounted, 8};
  if (is_in("\x95")) return {kFrame, 8};
  if (is_in("q")) return {kIndex, 1};
  if (is_in("r")) return {kIndex, 4};
  if (is_in("FILPSVg")) return {kLine};
  if (is_in("ci")) return {kTwoLines};
  if (is_in("p")) return {kIndexLine};
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
      case Follows::kFrame:  // what is in it is passed over next
        if (number(shape.width) > size_ - at_) fail("it ends here");
        break;
      case Follows::kIndex:
        check_index(number(shape.width));
        break;
      case Follows::kTwoLines:
        line();
        line();
        break;
      case Follows::kLine:
        line();
        break;
      case Follows::kIndexLine: {
        const std::size_t first = at_;
        std::uint64_t index = 0;
        line();
        for (std::size_t i = first; i + 1 < at_ && index <= size_; ++i) index = index * 10 + (data_[i] & 0xf);
        check_index(index);
        break;
      }
      case Follows::kUnknown:
        fail("no such opcode");
    }
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
  void check_index(std::uint64_t index) const {
    if (index > size_) fail("an index of " + std::to_string(index));
  }
  [[noreturn]] void fail(const std::string& text) const {
    throw TraceError("byte " + std::to_string(begin_) + ": " + text);
  }

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;  // of the opcode
};

}  // namespace

void check_pickle(const std::uint8_t* data, std::size_t size) { Walker(data, size).walk(); }

}  // namespace arena
