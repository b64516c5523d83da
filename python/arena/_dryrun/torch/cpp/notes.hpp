// What reaches the program of values that were never computed: asks Python what to assume, and lets it note the line.
#pragma once

#include <cstdint>

#include "host.hpp"

namespace arena::values {

// What takes the place of unknown values: nothing, `*assumed`, or other values than they would have.
enum class Answer : std::uint8_t { kAsComputed = 0, kAssumed = 1, kAnother = 2 };

// Functions of Python (ctypes). Null until Python sets them.
struct Listener {
  // The program reads `unknown` bytes of a type on the host. Returns an Answer.
  int (*read)(const char* type, long long unknown, double* assumed);
  // The number of elements of a result is not known; `most` at most. Returns what to take, and an id for `sized`.
  long long (*count)(const char* operation, long long most, long long* id);
};
extern Listener listener;
Answer ask(const char* type, std::int64_t unknown, double& assumed);
// 1 or, in the place of 1, 0: what was computed of zeros is not always zero.
inline double another(double value) { return value == 1 ? 0 : 1; }

// What was allocated with sizes that follow from one number which is not known.
struct SizedTotals {
  long long id = 0, allocations = 0;
  long long bytes = 0;  // live at a time, at most
  long long most = 0;   // the same, had the number been the largest possible
};
// Fills in up to `room` of them; returns how many.
int sized_totals(SizedTotals* totals, int room);

// A number of elements that is assumed, and tensors that have this size because of it.
std::int64_t assumed_count(const char* operation, std::int64_t most, std::int64_t& id);
void note_result(const at::Tensor& result, std::int64_t id, std::int64_t count, std::int64_t most);
// Results that are as large as they are because an argument is.
void note_following(const c10::OperatorHandle& op, const Stack& arguments, const Stack& results);
void note_copy(const at::Tensor& target, const at::Tensor& source);
bool has_sized();

// Results of an operation that asks for a number itself, as indexing with a mask does: begins before it is called.
class Inside {
 public:
  Inside() : before_(assumed) {}
  bool has_assumed() const { return assumed != before_; }
  void note(const at::Tensor& result) const;

 private:
  friend void note_result(const at::Tensor&, std::int64_t, std::int64_t, std::int64_t);
  const std::uint64_t before_;
  static thread_local std::uint64_t assumed;  // numbers so far
};
void forget_memory(std::uint64_t address);  // it was freed

// A float that is 0 or 1, as a bool is: whether a gradient is not finite. Programs read it to decide what to do.
void note_choice(const at::Tensor& tensor);
bool is_choice(const at::Tensor& tensor);

// Reads the program makes while one lives are part of an operation, whose result is known anyway.
class Quiet {
 public:
  Quiet() { ++depth; }
  ~Quiet() { --depth; }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  static bool is_on() { return depth > 0; }

 private:
  static thread_local int depth;
};

}  // namespace arena::values
