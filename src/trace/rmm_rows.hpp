// Parses the rows of RMM's log, `Thread,Time,Action,Pointer,Size,Stream`, into events. Like text_rows.hpp, it reads
// rows in RMM's usual form and leaves all others to the caller. The log has addresses and no date, so blocks, threads
// and streams are numbered in order of appearance.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trace/text_rows.hpp"
#include "trace/trace.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

class RmmRows {
 public:
  enum class Action { kAllocate, kFree, kFailure };
  struct Row {
    std::string thread;
    std::int64_t time = 0;  // nanoseconds of the day
    Action action = Action::kAllocate;
    std::uint64_t pointer = 0;
    Bytes size = 0;
    std::uint64_t stream = 0;  // its handle
  };

  explicit RmmRows(std::shared_ptr<Trace> trace) : trace_(std::move(trace)) {}
  // Appends the events of complete rows, up to the first that it cannot parse or has no room for.
  TextPlace read(std::string_view text, TextPlace from);
  // Appends the events of a row. Throws TraceError if there is no room, or if there are too many streams.
  void add(const Row& row);

 private:
  struct Moment {
    std::uint64_t time;
    std::uint32_t thread;
  };
  struct Live {
    std::uint64_t block;
    std::uint32_t stream;
  };

  std::uint64_t time_of(std::int64_t time_of_day);
  std::uint32_t stream_of(std::uint64_t handle, std::uint32_t thread);
  void allocate(Moment when, const Row& row, std::uint32_t stream);
  void free(Moment when, std::uint64_t pointer, std::optional<std::uint32_t> stream);

  std::shared_ptr<Trace> trace_;
  std::map<std::string, std::uint32_t> threads_;                    // not hashed: a file chooses these texts
  using HandleAndThread = std::pair<std::uint64_t, std::uint32_t>;  // thread: only for per-thread streams
  std::map<HandleAndThread, std::uint32_t> streams_;
  CountingMap<Live> live_;  // by address
  std::optional<std::int64_t> begin_;
  std::int64_t days_ = 0, last_ = 0;
  std::uint64_t allocated_ = 0;
};

}  // namespace arena
