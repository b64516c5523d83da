// The race checker: vector clocks per stream, event and host, and the last accesses to every byte of physical memory.
//
// An operation may touch bytes only if every conflicting earlier access is ordered before it, by its own stream, an
// event, or the host having waited. That is decided when the operation is queued, so a race is found whether or not the
// timing of this run shows it. The host is one clock: what one host thread has waited for counts for all, because how
// host threads tell each other is invisible here. Accesses are kept as byte ranges of a handle, not of addresses, so a
// handle that is mapped twice or mapped anew carries its history along.
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

// Who can be ordered: a stream. `retired` once destroyed and waited for: then everything it did is ordered before all
// that comes, and clocks need not remember it.
struct Actor {
  cu::Stream stream;
  std::uint64_t id = 0;  // of the stream: its number may be another's later
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
  std::uint64_t number = 0;  // counts all operations, in the order in which they were queued
  ActorRef actor;
  std::uint64_t tick = 0;
};
using OperationRef = std::shared_ptr<const Operation>;

// One access by an operation. `shift` added to a place in the handle gives the address that the operation used.
struct Access {
  OperationRef operation;
  std::uint64_t shift = 0;
};

// The accesses to one handle that a later one may conflict with: for each range the last write, and the reads since.
class History {
 public:
  struct Cell {
    std::uint64_t end = 0;
    Access write;
    std::vector<Access> reads;
  };
  // The cells that tile [begin, end), split at its ends and filled where nothing was known.
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

  // Begins an operation of `actor`, whose clock is `clock`: it sees all that the host has waited for.
  OperationRef begin(std::string_view name, const ActorRef& actor, Clock& clock);
  void touch(const OperationRef& operation, const Clock& clock, History& history, std::uint64_t begin,
             std::uint64_t end, std::uint64_t address, bool write);
  // The host takes [begin, end) away (unmap, release) in `call`: all that touched it must have been waited for.
  void take_away(std::string_view call, const History& history, std::uint64_t begin, std::uint64_t end,
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
  void report(const char* kind, const Side& first, const Side& second);

  Findings* findings_;
  Races mode_ = Races::kOff;
  Clock host_;
  std::uint64_t operations_ = 0;
};

}  // namespace cudasim
