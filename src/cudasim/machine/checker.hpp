// The race checker: vector clocks per stream, per event and for the host, and the last accesses to every byte of
// physical memory.
//
// An operation may touch bytes only if every conflicting earlier access is ordered before it, by its own stream, an
// event, or a wait of the host. That is decided when the operation is queued, so a race is found even if the timing of
// this run hides it. The host is one clock: a wait of one host thread counts for all, because their synchronization is
// invisible here. Accesses are kept by byte range of a handle, not by address, so a handle keeps its history when it is
// mapped twice or mapped elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "abi/types.hpp"
#include "cudasim/machine/findings.hpp"
#include "cudasim/settings/settings.hpp"

namespace cudasim {

// A stream, as the checker sees it. `retired` once it is destroyed and waited for: then everything it did is ordered
// before all later work, and clocks can drop it.
struct Actor {
  cu::Stream stream;
  std::uint64_t id = 0;  // of the stream, whose handle may be reused
  std::uint64_t ticks = 0;
  bool retired = false;
};
using ActorRef = std::shared_ptr<Actor>;

class Clock {
 public:
  void join(const Clock& other);
  void advance(const ActorRef& actor) { seen_[actor] = ++actor->ticks; }
  bool has_seen(const ActorRef& actor, std::uint64_t tick) const;

 private:
  std::unordered_map<ActorRef, std::uint64_t> seen_;
};

struct Operation {
  std::string name;
  std::uint64_t number = 0;  // counts all operations, in the order of queueing
  ActorRef actor;
  std::uint64_t tick = 0;
};
using OperationRef = std::shared_ptr<const Operation>;

// One access by an operation. `shift` plus the offset in the handle is the address that the operation used.
struct Access {
  OperationRef operation;
  std::uint64_t shift = 0;
};

// The accesses to one handle that later ones may conflict with: for each range the last write, and the reads since
// then.
class History {
 public:
  struct Cell {
    std::uint64_t end = 0;
    Access write;
    std::vector<Access> reads;
  };
  // Returns the first of the cells that tile [begin, end). Splits cells at its ends and adds empty ones where there are
  // none.
  std::map<std::uint64_t, Cell>::iterator cover(std::uint64_t begin, std::uint64_t end);
  std::map<std::uint64_t, Cell> cells;

 private:
  void split(std::uint64_t at);
};

class Checker {
 public:
  explicit Checker(Findings& findings) : findings_(&findings) {}
  void set_mode(Races mode);
  bool on() const { return mode_ != Races::kOff; }

  // Begins an operation of `actor`, whose clock is `clock`. It is ordered after everything that the host has waited
  // for.
  OperationRef begin(std::string_view name, const ActorRef& actor, Clock& clock);
  void touch(const OperationRef& operation, const Clock& clock, History& history, std::uint64_t begin,
             std::uint64_t end, std::uint64_t address, bool write);
  // `call` removes [begin, end) (unmap, free): the host must have waited for every operation that touched it.
  void check_removal(std::string_view call, const History& history, std::uint64_t begin, std::uint64_t end,
                     std::uint64_t address);
  void host_waited(const Clock& clock) { host_.join(clock); }
  bool host_has_seen(const ActorRef& actor) const { return host_.has_seen(actor, actor->ticks); }

 private:
  struct Side {
    std::string operation;
    std::uint64_t number;
    cu::Stream stream;
    std::uint64_t stream_id;
    const char* access;
    std::uint64_t begin, end;
  };
  static Side side_of(const Operation& operation, const char* access, std::uint64_t begin, std::uint64_t end);
  void report(const char* kind, const Side& first, const Side& second);

  Findings* findings_;
  Races mode_ = Races::kOff;
  Clock host_;
  std::uint64_t operations_ = 0;
};

}  // namespace cudasim
