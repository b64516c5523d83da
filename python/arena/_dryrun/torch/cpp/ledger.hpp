// The ledger: what is live in the memory that PyTorch gave out, what was live at the peak and when a request failed last,
// and why: the line, the module, and the kind of each block.
#pragma once

#include <cstdint>
#include <string>

namespace arena::ledger {

// What a block is labelled with, by those who know. The names are in `names` of ledger.cpp; Python has them, too.
enum class Kind : std::uint8_t {
  kNone,
  kParameters,
  kBuffers,
  kGradients,
  kState,  // of an optimizer
  kActivations,
  kInputs,
  kWorkspaces,
  kTemporaries,
  kOthers,
  kUnknown,
};

// What the thread that allocates is doing. Found before the allocator's lock is taken: it may need Python's.
struct Doing {
  std::uint32_t line = 0, module = 0;  // 0: not known
  std::uint64_t operation = 0;         // changes from one operation to the next
  bool is_known = false;
  bool is_backward = false;
  bool is_recomputed = false;  // forward again, in the backward pass
  bool has_graph = false;      // autograd keeps what the operation needs for its backward pass
  bool is_step = false;
  bool is_state = false;
  bool becomes_gradient = false;
};

// Called with the allocator's lock held. Take no lock of Python's and call nothing of PyTorch's that allocates.
void add_block(std::uint64_t address, std::int64_t size, const Doing& doing);
void remove_block(std::uint64_t address);
void note_failure();

// Says what a live block is. Nothing happens where there is no block at this address. A line of 0 changes no line.
void label(std::uint64_t address, Kind kind, std::uint32_t module, std::uint32_t line);
void label_if_new(std::uint64_t address, Kind kind);  // unless it has another

void note_backward(int task);  // a pass of autograd is running
std::int64_t most_live();
std::uint64_t event_of_peak();  // changes whenever there is a new one

// Until the end: blocks that are freed are workspaces that libraries kept.
void clearing_workspaces(bool on);

// {"peak": {"live", "used", "at", "rows": [[bytes, blocks, line, module, kind, is_backward]]}, "failure": the same or
// null, "lines"}
std::string as_json();

}  // namespace arena::ledger
