#include "cudasim/machine/checker.hpp"

#include "cudasim/machine/say.hpp"

namespace cudasim {
void Clock::join(const Clock& other) {
  for (const auto& [actor, tick] : other.seen_) {
    if (actor->retired) continue;
    std::uint64_t& mine = seen_[actor];
    mine = std::max(mine, tick);
  }
  if (seen_.size() > 64) std::erase_if(seen_, [](const auto& entry) { return entry.first->retired; });
}

bool Clock::has_seen(const ActorRef& actor, std::uint64_t tick) const {
  if (actor->retired || tick == 0) return true;
  const auto it = seen_.find(actor);
  return it != seen_.end() && it->second >= tick;
}

void History::split(std::uint64_t at) {
  auto it = cells.upper_bound(at);
  if (it == cells.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Cell upper = it->second;
  it->second.end = at;
  cells.emplace(at, std::move(upper));
}

std::map<std::uint64_t, History::Cell>::iterator History::cover(std::uint64_t begin, std::uint64_t end) {
  split(begin);
  split(end);
  std::uint64_t at = begin;
  for (auto it = cells.lower_bound(begin); at < end;) {
    if (it == cells.end() || it->first > at) {
      Cell empty;
      empty.end = it == cells.end() ? end : std::min(end, it->first);
      it = cells.emplace_hint(it, at, std::move(empty));
    }
    at = it->second.end;
    ++it;
  }
  return cells.find(begin);
}

void Checker::set_mode(Races mode) {
  // Work queued while the checker was off has no history, so it cannot cause reports later.
  mode_ = mode;
}

OperationRef Checker::begin(std::string_view name, const ActorRef& actor, Clock& clock) {
  clock.join(host_);
  clock.advance(actor);
  return std::make_shared<const Operation>(
      Operation{.name = std::string(name), .number = ++operations_, .actor = actor, .tick = actor->ticks});
}

Checker::Side Checker::side_of(const Operation& operation, const char* access, std::uint64_t begin, std::uint64_t end) {
  return {.operation = operation.name,
          .number = operation.number,
          .stream = operation.actor->stream,
          .stream_id = operation.actor->id,
          .access = access,
          .begin = begin,
          .end = end};
}

void Checker::touch(const OperationRef& operation, const Clock& clock, History& history, std::uint64_t begin,
                    std::uint64_t end, std::uint64_t address, bool write) {
  const std::uint64_t shift = address - begin;               // may wrap, and wraps back when it is added
  std::map<std::uint64_t, std::pair<Side, Side>> conflicts;  // one report per earlier operation, by its number
  const auto check = [&](const Access& earlier, const char* access, std::uint64_t lo, std::uint64_t hi) {
    if (!earlier.operation || clock.has_seen(earlier.operation->actor, earlier.operation->tick)) return;
    const Side first = side_of(*earlier.operation, access, lo + earlier.shift, hi + earlier.shift);
    const Side second = side_of(*operation, write ? "write" : "read", lo + shift, hi + shift);
    const auto [it, fresh] = conflicts.emplace(first.number, std::pair{first, second});
    if (fresh) return;
    it->second.first.end = first.end;
    it->second.second.end = second.end;
  };

  auto it = history.cover(begin, end);
  for (; it != history.cells.end() && it->first < end; ++it) {
    History::Cell& cell = it->second;
    check(cell.write, "write", it->first, cell.end);
    if (write) {
      for (const Access& read : cell.reads) check(read, "read", it->first, cell.end);
      cell.reads.clear();
      cell.write = {operation, shift};
    } else {
      std::erase_if(cell.reads, [&](const Access& read) { return read.operation->actor == operation->actor; });
      cell.reads.push_back({operation, shift});
    }
  }
  if (write) {  // merge the cells: they have the same last write now
    it = history.cells.find(begin);
    it->second.end = end;
    history.cells.erase(std::next(it), history.cells.lower_bound(end));
  }
  for (const auto& [earlier, sides] : conflicts) report("race", sides.first, sides.second);
}

void Checker::check_removal(std::string_view call, const History& history, std::uint64_t begin, std::uint64_t end,
                            std::uint64_t address) {
  std::map<std::uint64_t, std::pair<Side, Side>> conflicts;
  const auto check = [&](const Access& earlier, const char* access, std::uint64_t lo, std::uint64_t hi) {
    if (!earlier.operation || earlier.shift != address - begin) return;  // it used another address, which stays mapped
    if (host_.has_seen(earlier.operation->actor, earlier.operation->tick)) return;
    const Side first = side_of(*earlier.operation, access, lo + earlier.shift, hi + earlier.shift);
    const Side second{.operation = std::string(call),
                      .number = 0,
                      .stream = nullptr,
                      .stream_id = 0,
                      .access = "remove",
                      .begin = address,
                      .end = address + (end - begin)};
    conflicts.emplace(first.number, std::pair{first, second});
  };
  for (auto it = history.cells.begin(); it != history.cells.end() && it->first < end; ++it) {
    if (it->second.end <= begin) continue;
    check(it->second.write, "write", it->first, it->second.end);
    for (const Access& read : it->second.reads) check(read, "read", it->first, it->second.end);
  }
  for (const auto& [earlier, sides] : conflicts) report("removed", sides.first, sides.second);
}

void Checker::report(const char* kind, const Side& first, const Side& second) {
  const auto side = [](const Side& s) {
    return "{\"operation\":\"" + s.operation + "\",\"number\":" + std::to_string(s.number) +
           ",\"stream\":" + std::to_string(reinterpret_cast<std::uintptr_t>(s.stream)) +
           ",\"stream_id\":" + std::to_string(s.stream_id) + ",\"access\":\"" + s.access +
           "\",\"begin\":" + std::to_string(s.begin) + ",\"end\":" + std::to_string(s.end) + "}";
  };
  const bool same_handle = first.stream == second.stream;  // reused for another stream
  const auto words = [&](const Side& s) {
    return s.operation + " (" + s.access + " of [" + hex(s.begin) + ", " + hex(s.end) + ")" +
           (s.number == 0 ? "" : ", stream " + hex(reinterpret_cast<std::uintptr_t>(s.stream))) +
           (same_handle ? " with id " + std::to_string(s.stream_id) : "") + ")";
  };
  Finding finding;
  finding.kind = kind;
  finding.call = second.operation;
  finding.handle = reinterpret_cast<std::uintptr_t>(second.stream);
  finding.text = words(second) + " is not ordered after " + words(first);
  finding.race =
      std::string("{\"kind\":\"") + kind + "\",\"first\":" + side(first) + ",\"second\":" + side(second) + "}";
  if (mode_ == Races::kPrint) say(std::string(kind) + ": " + finding.text);
  findings_->add(std::move(finding));
}

}  // namespace cudasim
