// Named parts of a program, each with the bytes that it allocated and an optional budget. Scopes nest: an allocation
// counts in its scope and in all scopes around it. A scope applies only to the thread that entered it.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/types.hpp"

namespace arena {

// Totals over all scopes with the same path, in all threads, for the life of the arena. Needs the arena's lock.
struct ScopeTotals {
  Bytes live = 0, peak = 0;
  std::uint64_t blocks = 0;          // live ones
  std::uint64_t entered = 0;         // how often a scope was entered
  std::optional<Bytes> budget = {};  // of the last scope

  void add(Bytes size) {
    live += size;
    blocks += 1;
    peak = std::max(peak, live);
  }
  void remove(Bytes size) {
    live -= size;
    blocks -= 1;
  }
};

// The totals of an arena's scopes by path. A program may generate any number of names, so after kMost paths the others
// are counted together.
class ScopePaths {
 public:
  static constexpr std::size_t kMost = 1000;
  static constexpr const char* kOthers = "(other scopes)";

  std::shared_ptr<ScopeTotals> enter(const std::string& path, std::optional<Bytes> budget) {
    const bool is_full = by_path_.size() >= kMost && !by_path_.contains(path);
    std::shared_ptr<ScopeTotals>& totals = by_path_[is_full ? kOthers : path];
    if (!totals) totals = std::make_shared<ScopeTotals>();
    totals->entered += 1;
    totals->budget = budget;
    return totals;
  }
  std::map<std::string, ScopeTotals> copy() const {
    std::map<std::string, ScopeTotals> made;
    for (const auto& [path, totals] : by_path_) made.emplace(path, *totals);
    return made;
  }

 private:
  std::map<std::string, std::shared_ptr<ScopeTotals>> by_path_;
};

class Scope;

struct ScopeOptions {
  std::uint64_t number = 0;  // among all scopes of its arena
  std::uint64_t first = 0;   // lowest serial of a block in it
  std::string name;
  std::optional<Bytes> budget = {};
  std::shared_ptr<Scope> parent = {};
};

// The figures change with the arena's lock held, and can be read without it.
class Scope {
 public:
  static constexpr std::uint32_t kDeepest = 1000;  // levels of nesting: every allocation walks all of them

  Scope(ScopeOptions options, ScopePaths& paths)
      : options_(std::move(options)), totals_(paths.enter(path(), options_.budget)) {}

  std::uint32_t depth() const { return depth_; }
  std::uint64_t number() const { return options_.number; }
  std::uint64_t first() const { return options_.first; }
  const std::string& name() const { return options_.name; }
  std::string path() const { return parent() ? parent()->path() + "/" + name() : name(); }
  std::optional<Bytes> budget() const { return options_.budget; }
  const std::shared_ptr<Scope>& parent() const { return options_.parent; }
  Bytes live() const { return live_; }
  Bytes peak() const { return peak_; }
  std::uint64_t blocks() const { return blocks_; }  // live ones

  bool has_ended() const { return ended_; }
  void end() { ended_ = true; }

  Bytes left() const { return budget() ? *budget() - std::min<Bytes>(*budget(), live_) : ~Bytes{0}; }
  // The least that is left in this scope and those around it.
  Bytes left_in_all() const { return parent() ? std::min(left(), parent()->left_in_all()) : left(); }
  Bytes least_budget() const {
    const Bytes own = budget().value_or(~Bytes{0});
    return parent() ? std::min(own, parent()->least_budget()) : own;
  }
  // Whether it is the other scope, or inside it.
  bool is_in(const Scope& other) const { return this == &other || (parent() && parent()->is_in(other)); }
  // The innermost scope whose budget a request would exceed.
  const Scope* exceeded_by(Bytes size) const {
    const Scope* scope = this;
    while (scope != nullptr && scope->left() >= size) scope = scope->parent().get();
    return scope;
  }
  void add(Bytes size) {
    for (Scope* s = this; s != nullptr; s = s->parent().get()) {
      s->live_ += size;
      s->blocks_ += 1;
      s->peak_ = std::max<Bytes>(s->peak_, s->live_);
      s->totals_->add(size);
    }
  }
  void remove(Bytes size) {
    for (Scope* s = this; s != nullptr; s = s->parent().get()) {
      s->live_ -= size;
      s->blocks_ -= 1;
      s->totals_->remove(size);
    }
  }

 private:
  const ScopeOptions options_;
  const std::shared_ptr<ScopeTotals> totals_;
  const std::uint32_t depth_ = parent() ? parent()->depth_ + 1 : 1;
  std::atomic<Bytes> live_ = 0, peak_ = 0;
  std::atomic<std::uint64_t> blocks_ = 0;
  std::atomic<bool> ended_ = false;
};

// The innermost scope that this thread is in, by arena (`owner`); null if there is none.
std::shared_ptr<Scope> current_scope(std::uint64_t owner);
void enter_scope(std::uint64_t owner, std::shared_ptr<Scope> scope);

}  // namespace arena
