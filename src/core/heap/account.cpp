#include "core/heap/account.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/units.hpp"

namespace arena {
namespace {

std::string use_in_words(const std::optional<BudgetUse>& use) {
  return use ? " (" + format_share(use->live, use->budget) + " used)" : "";
}

// Names the rules under which it would pass, if they make a difference.
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

std::string Failure::verdict_text() const {
  const auto is_it = [&](const VerdictWords& words) { return words.verdict == verdict; };
  const std::string text = std::find_if(std::begin(kVerdicts), std::end(kVerdicts), is_it)->text;
  return budget ? text + " " + budget->scope + " reached" : text;
}

std::string Failure::headline(const std::string& requested_size) const {
  return "out of memory: " + requested_size + " requested, " + verdict_text() + use_in_words(budget) +
         "; the largest request that would pass is " + largest_in_words(*this);
}

std::string Failure::headline() const { return headline(format_bytes(requested)); }

OutOfMemory::OutOfMemory(Failure failure) : Error(failure.headline()), failure_(std::move(failure)) {}

}  // namespace arena
