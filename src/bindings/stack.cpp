// Walks a stack by the call frame information of each function: the .eh_frame sections, in DWARF's format.
//
// Whatever is not understood ends the walk. So do functions that keep their frame in a register whose value is unknown.
#include "bindings/stack.hpp"

#if defined(__linux__) && defined(__x86_64__)

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>

// In every runtime library for exceptions, but in no header.
struct dwarf_eh_bases {
  void* text;
  void* data;
  void* function;
};
extern "C" const void* _Unwind_Find_FDE(void* address, dwarf_eh_bases* bases);

namespace arena {
namespace {

using Word = std::uint64_t;
using Signed = std::int64_t;

constexpr std::size_t kStackPointer = 7, kReturnAddress = 16, kRegisters = 17;
constexpr std::size_t kMostFrames = 64;
constexpr std::size_t kMostStack = 1 << 16;  // bytes

struct NotUnderstood {};

class Reader {
 public:
  Reader(const std::uint8_t* at, const std::uint8_t* end) : at_(at), end_(end) {}
  bool is_done() const { return at_ >= end_; }
  const std::uint8_t* at() const { return at_; }
  void skip(Word bytes) {
    if (bytes > static_cast<Word>(end_ - at_)) throw NotUnderstood{};
    at_ += bytes;
  }
  template <typename T>
  T take() {
    T value;
    const std::uint8_t* from = at_;
    skip(sizeof value);
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  Word number() {
    Word value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = take<std::uint8_t>();
      value |= Word{byte & 0x7fU} << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw NotUnderstood{};
  }
  Signed signed_number() {
    Word value = 0;
    for (int shift = 0; shift < 64;) {
      const auto byte = take<std::uint8_t>();
      value |= Word{byte & 0x7fU} << shift;
      shift += 7;
      if ((byte & 0x80) != 0) continue;
      if (shift < 64 && (byte & 0x40) != 0) value |= ~Word{0} << shift;
      return static_cast<Signed>(value);
    }
    throw NotUnderstood{};
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// An entry: its length, and that many bytes.
Reader entry_at(const std::uint8_t* at) {
  Reader length(at, at + 4);
  const auto size = length.take<std::uint32_t>();
  if (size == 0 || size == ~std::uint32_t{0}) throw NotUnderstood{};
  return {at + 4, at + 4 + size};
}

Word size_of_pointer(std::uint8_t encoding) {
  switch (encoding & 0x0f) {
    case 0x00:
    case 0x04:
    case 0x0c:
      return 8;
    case 0x03:
    case 0x0b:
      return 4;
    default:
      throw NotUnderstood{};
  }
}

// What the functions of a compilation have in common.
struct Common {
  Word code_unit = 0;
  Signed data_unit = 0;
  std::uint8_t encoding = 0;
  Reader instructions;
};

Common common_at(const std::uint8_t* at) {
  Reader entry = entry_at(at);
  if (entry.take<std::uint32_t>() != 0) throw NotUnderstood{};
  const auto version = entry.take<std::uint8_t>();
  if (version != 1 && version != 3) throw NotUnderstood{};
  std::array<char, 8> letters{};
  for (std::size_t i = 0;; ++i) {
    const auto letter = entry.take<char>();
    if (letter == '\0') break;
    if (i + 1 >= letters.size()) throw NotUnderstood{};
    letters[i] = letter;
  }
  Common common{.instructions = entry};
  common.code_unit = entry.number();
  common.data_unit = entry.signed_number();
  const Word returned_in = version == 1 ? entry.take<std::uint8_t>() : entry.number();
  if (returned_in != kReturnAddress || letters[0] != 'z') throw NotUnderstood{};
  const Word size = entry.number();
  Reader augmentation = entry;
  entry.skip(size);
  for (std::size_t i = 1; letters[i] != '\0'; ++i) {
    if (letters[i] == 'R') {
      common.encoding = augmentation.take<std::uint8_t>();
    } else if (letters[i] == 'P') {
      augmentation.skip(size_of_pointer(augmentation.take<std::uint8_t>()));
    } else if (letters[i] == 'L') {
      augmentation.skip(1);
    } else {  // a signal handler runs in the middle of anything
      throw NotUnderstood{};
    }
  }
  common.instructions = entry;
  return common;
}

enum class Kept { kInPlace, kOnStack, kUnknown };
struct Rule {
  Kept kept = Kept::kInPlace;
  Signed offset = 0;  // from the frame
};

// How to find the caller's registers, at one place of a function.
struct Rules {
  std::optional<Word> frame_register;
  Signed frame_offset = 0;
  std::array<Rule, kRegisters> registers{};
};

// Runs the instructions up to an address.
class Machine {
 public:
  Machine(const Common& common, Word begin, Word address) : common_(common), at_(begin), address_(address) {}

  Rules rules_of(Reader instructions) {
    run(common_.instructions);
    first_ = rules_;
    run(instructions);
    return rules_;
  }

 private:
  void run(Reader code) {
    while (!code.is_done() && at_ <= address_) step(code);
  }

  Rule& rule(Word number) { return number < kRegisters ? rules_.registers[number] : ignored_; }
  void put(Word number, Signed factored) { rule(number) = {Kept::kOnStack, factored * common_.data_unit}; }
  void put_back(Word number) {
    if (number < kRegisters) rules_.registers[number] = first_.registers[number];
  }
  void set_register(Word number) { rules_.frame_register = number < kRegisters ? std::optional(number) : std::nullopt; }

  void step(Reader& code) {
    const auto byte = code.take<std::uint8_t>();
    const std::uint8_t low = byte & 0x3f;
    switch (byte & 0xc0) {
      case 0x40:
        at_ += low * common_.code_unit;
        return;
      case 0x80:
        return put(low, static_cast<Signed>(code.number()));
      case 0xc0:
        return put_back(low);
      default:
        extended(byte, code);
    }
  }

  void extended(std::uint8_t byte, Reader& code) {
    switch (byte) {
      case 0x00:  // nothing
        return;
      case 0x02:
        at_ += code.take<std::uint8_t>() * common_.code_unit;
        return;
      case 0x03:
        at_ += code.take<std::uint16_t>() * common_.code_unit;
        return;
      case 0x04:
        at_ += code.take<std::uint32_t>() * common_.code_unit;
        return;
      case 0x0a:
        saved_.push_back(rules_);
        return;
      case 0x0b:
        if (saved_.empty()) throw NotUnderstood{};
        rules_ = saved_.back();
        saved_.pop_back();
        return;
      case 0x2e:  // the size of arguments
        code.number();
        return;
      default:
        if (byte >= 0x0c && byte <= 0x13 && byte != 0x10 && byte != 0x11) return frame(byte, code);
        saved_register(byte, code);
    }
  }

  void frame(std::uint8_t byte, Reader& code) {
    switch (byte) {
      case 0x0c:
        set_register(code.number());
        rules_.frame_offset = static_cast<Signed>(code.number());
        return;
      case 0x0d:
        return set_register(code.number());
      case 0x0e:
        rules_.frame_offset = static_cast<Signed>(code.number());
        return;
      case 0x0f:  // an expression
        code.skip(code.number());
        rules_.frame_register.reset();
        return;
      case 0x12:
        set_register(code.number());
        rules_.frame_offset = code.signed_number() * common_.data_unit;
        return;
      default:
        rules_.frame_offset = code.signed_number() * common_.data_unit;
    }
  }

  void saved_register(std::uint8_t byte, Reader& code) {
    const Word number = code.number();
    switch (byte) {
      case 0x05:
        return put(number, static_cast<Signed>(code.number()));
      case 0x06:
        return put_back(number);
      case 0x07:  // undefined
        rule(number).kept = Kept::kUnknown;
        return;
      case 0x08:
        rule(number) = {};
        return;
      case 0x10:  // expressions
      case 0x16:
        code.skip(code.number());
        rule(number).kept = Kept::kUnknown;
        return;
      case 0x11:
        return put(number, code.signed_number());
      default:
        throw NotUnderstood{};
    }
  }

  const Common& common_;
  Word at_;
  Word address_;
  Rules rules_;
  Rules first_;
  Rule ignored_;  // of a register that is not followed
  std::vector<Rules> saved_;
};

struct Found {
  Word function;
  Rules rules;
};

Found rules_at(Word address) {
  dwarf_eh_bases bases{};
  const auto* at = static_cast<const std::uint8_t*>(_Unwind_Find_FDE(reinterpret_cast<void*>(address), &bases));
  if (at == nullptr) throw NotUnderstood{};
  Reader entry = entry_at(at);
  const std::uint8_t* here = entry.at();
  const Common common = common_at(here - entry.take<std::uint32_t>());
  entry.skip(2 * size_of_pointer(common.encoding));
  entry.skip(entry.number());
  const auto function = reinterpret_cast<Word>(bases.function);
  return {function, Machine(common, function, address).rules_of(entry)};
}

// A copy: the thread may end at any moment, and its stack with it.
class Copied {
 public:
  explicit Copied(Word begin) : begin_(begin), bytes_(kMostStack) {
    const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    const ssize_t size = memory < 0 ? 0 : ::pread(memory, bytes_.data(), bytes_.size(), static_cast<off_t>(begin));
    if (memory >= 0) ::close(memory);
    bytes_.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  }
  Word word(Word address) const {
    const Word at = address - begin_;
    if (address < begin_ || bytes_.size() < sizeof(Word) || at > bytes_.size() - sizeof(Word)) throw NotUnderstood{};
    Word value;
    std::memcpy(&value, &bytes_[at], sizeof value);
    return value;
  }

 private:
  Word begin_;
  std::vector<std::uint8_t> bytes_;
};

using Registers = std::array<std::optional<Word>, kRegisters>;

Registers registers_of_caller(const Rules& rules, const Registers& registers, const Copied& stack) {
  if (!rules.frame_register || !registers[*rules.frame_register]) throw NotUnderstood{};
  const Word frame = *registers[*rules.frame_register] + static_cast<Word>(rules.frame_offset);
  if (frame <= *registers[kStackPointer]) throw NotUnderstood{};  // a caller lies above
  Registers of_caller;
  for (std::size_t i = 0; i < kRegisters; ++i) {
    const Rule& rule = rules.registers[i];
    if (rule.kept == Kept::kInPlace) of_caller[i] = registers[i];
    if (rule.kept == Kept::kOnStack) of_caller[i] = stack.word(frame + static_cast<Word>(rule.offset));
  }
  of_caller[kStackPointer] = frame;
  return of_caller;
}

}  // namespace

Walk walk_stack(std::uint64_t stack_pointer, std::uint64_t address) {
  Walk walk;
  try {
    const Copied stack(stack_pointer);
    Registers registers;
    registers[kStackPointer] = stack_pointer;
    registers[kReturnAddress] = address;
    while (walk.frames.size() < kMostFrames) {
      const Word at = *registers[kReturnAddress];
      const Found found = rules_at(at - 1);  // a call may be a function's last instruction
      walk.frames.push_back({at, found.function});
      const Rule& returns = found.rules.registers[kReturnAddress];
      if (returns.kept == Kept::kUnknown) {  // how a thread's first function is marked
        walk.reached_bottom = true;
        break;
      }
      if (returns.kept != Kept::kOnStack) break;
      registers = registers_of_caller(found.rules, registers, stack);
      if (*registers[kReturnAddress] == 0) walk.reached_bottom = true;
      if (walk.reached_bottom) break;
    }
  } catch (const NotUnderstood&) {
  }
  return walk;
}

}  // namespace arena

#else

namespace arena {

Walk walk_stack(std::uint64_t, std::uint64_t) { return {}; }

}  // namespace arena

#endif
