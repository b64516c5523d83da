#include "core/heap/account.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/units.hpp"

namespace arena {
namespace {

std::string text_of(const Failure& failure) {
  const auto is_it = [&](const VerdictWords& words) { return words.verdict == failure.verdict; };
  const std::string text = std::find_if(std::begin(kVerdicts), std::end(kVerdicts), is_it)->text;
  return failure.budget ? text + " " + failure.budget->scope + " reached" : text;
}

std::string use_in_words(const std::optional<BudgetUse>& use) {
  return use ? " (" + format_share(use->live, use->budget) + " used)" : "";
}

// Names the rule (with or without moving) if it makes a difference.
std::string largest_in_words(const Failure& failure) {
  const Bytes without = std::min(failure.largest, failure.stats.largest_without_moving);
  const std::string text = format_bytes(failure.largest);
  if (failure.by_moving.largest > failure.largest) {
    return text + " without moving live data, " + format_bytes(failure.by_moving.largest) + " with moving";
  }
  if (without < failure.largest) return text + " with moving live data, " + format_bytes(without) + " without moving";
  return text;
}

}  // namespace

std::string Failure::verdict_text() const { return text_of(*this); }

OutOfMemory::OutOfMemory(Failure failure)
    : Error("out of memory: " + format_bytes(failure.requested) + " requested, " + text_of(failure) +
            use_in_words(failure.budget) + "; the largest request that would pass is " + largest_in_words(failure)),
      failure_(std::move(failure)) {}

}  // namespace arena
