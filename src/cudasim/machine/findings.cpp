#include "cudasim/machine/findings.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"
#include "cudasim/machine/say.hpp"

namespace cudasim {
namespace {

constexpr std::size_t kKeptOfEach = 1000;

std::string place(std::uint64_t number, std::uint64_t thread) {
  return "(call " + std::to_string(number) + ", thread " + std::to_string(thread) + ")";
}

// Names of kernels may contain anything.
std::string json_string(std::string_view text) {
  std::string found = "\"";
  for (const char c : text) {
    char escape[7];
    std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<std::uint8_t>(c)));
    found += c == '"' || c == '\\' || (c >= 0 && c < ' ') ? std::string(escape) : std::string(1, c);
  }
  return found + '"';
}

std::string describe_death(const Death& death, std::uint64_t now) {
  if (death.by.empty()) return "which was destroyed";
  const std::uint64_t ago = now - death.number;
  return "which " + std::string(death.by) + " destroyed " + std::to_string(ago) + (ago == 1 ? " call" : " calls") +
         " earlier " + place(death.number, death.thread);
}

}  // namespace

std::uint64_t native_thread() { return static_cast<std::uint64_t>(syscall(SYS_gettid)); }

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

void Findings::add(Finding finding) {
  const bool race = !finding.race.empty();
  ++(race ? race_count_ : other_count_);
  const std::size_t kept = race ? kept_races_ : kept_.size() - kept_races_;
  if (kept >= kKeptOfEach) return;
  kept_races_ += race;
  kept_.push_back({std::move(finding), call_number_, native_thread()});
}

std::string Findings::lines() const {
  std::string text;
  for (const auto& [finding, number, thread] : kept_) {
    text += "{\"kind\":" + json_string(finding.kind) + ",\"call\":" + json_string(finding.call) +
            ",\"number\":" + std::to_string(number) + ",\"thread\":" + std::to_string(thread) +
            ",\"handle\":" + std::to_string(finding.handle) + ",\"text\":" + json_string(finding.text) +
            ",\"destroyed_by\":" + json_string(finding.death.by) +
            ",\"destroyed_number\":" + std::to_string(finding.death.number) +
            ",\"destroyed_thread\":" + std::to_string(finding.death.thread) +
            ",\"race\":" + (finding.race.empty() ? "null" : finding.race) + "}\n";
  }
  return text;
}

std::string Findings::race_lines() const {
  std::string text;
  for (const Kept& kept : kept_) {
    if (!kept.finding.race.empty()) text += kept.finding.race + "\n";
  }
  return text;
}

void Findings::clear() {
  race_count_ = other_count_ = kept_races_ = 0;
  kept_.clear();
}

void Findings::clear_races() {
  std::erase_if(kept_, [](const Kept& kept) { return !kept.finding.race.empty(); });
  race_count_ = kept_races_ = 0;
}

Death death_by(const Call& call) { return {call.name, call.number, native_thread()}; }

void report_dead(Call& call, std::string_view kind, std::uint64_t handle, bool was_issued, const Death& death) {
  if (handle == 0) return;
  Finding finding;
  finding.kind = was_issued ? "dead " + std::string(kind) : "unknown handle";
  finding.call = call.name;
  finding.handle = handle;
  finding.text = finding.call + " " + place(call.number, native_thread()) + " uses " + std::string(kind) + " " +
                 hex(handle) + ", " + (was_issued ? describe_death(death, call.number) : "which never existed");
  if (was_issued) finding.death = death;
  const Dead reaction = call.machine.settings.dead;
  if (reaction != Dead::kReport) say(finding.kind + ": " + finding.text);
  if (reaction == Dead::kAbort) std::abort();
  call.machine.findings.add(std::move(finding));
}

}  // namespace cudasim
