#include "cudasim/api/tracking.hpp"

#include <algorithm>
#include <cstring>

#include "cudasim/api/graphs.hpp"

namespace cudasim {
namespace {

// Bytes that a copy brings to a place in device memory.
struct Arrival {
  std::uint64_t address;
  std::uint64_t size;
  Content content;
};

// What a copy finds and where it goes, read before any mark changes: its sides may overlap.
struct Plan {
  std::vector<Arrival> arrivals;
  Substitute substitute;
  std::uint64_t unknown = 0;  // bytes that would reach the host
};

// Bytes of a copy that are alike: their content, whose they are, and their place in what is copied.
struct Departure {
  Content content;
  Tracking from;
  std::uint64_t at;
};

void plan_run(Machine& m, Plan& plan, std::uint64_t dst, std::uint64_t size, const Departure& run) {
  m.values.each_part(*m.space, dst, dst + size, [&](std::uint64_t begin, std::uint64_t end, Tracking to) {
    const bool replaced = run.content == Content::kUnknown && to != Tracking::kOwn;
    const Content content = replaced ? Content::kZero : run.content;
    if (to != Tracking::kNone) plan.arrivals.push_back({begin, end - begin, content});
    if (replaced) plan.substitute.zeros.emplace_back(run.at + (begin - dst), run.at + (end - dst));
    // Between two pieces of managed memory nothing is read yet.
    const bool is_read = to == Tracking::kNone || (to == Tracking::kShared && run.from == Tracking::kOwn);
    if (is_read && content != Content::kKnown) plan.unknown += end - begin;
  });
}

Plan plan_copy(Machine& m, const Copy& copy) {
  Plan plan;
  std::uint64_t at = 0;
  for (std::uint64_t z = 0; z < copy.depth; ++z) {
    for (std::uint64_t y = 0; y < copy.height; ++y, at += copy.width) {
      const std::uint64_t dst = copy.dst.address + z * copy.dst.slice + y * copy.dst.pitch;
      if (!copy.src.managed) {
        plan_run(m, plan, dst, copy.width, {.content = Content::kKnown, .from = Tracking::kNone, .at = at});
        continue;
      }
      const std::uint64_t src = copy.src.address + z * copy.src.slice + y * copy.src.pitch;
      const auto plan_part = [&](std::uint64_t begin, std::uint64_t end, Content content, Tracking from) {
        const Departure run{.content = content, .from = from, .at = at + (begin - src)};
        plan_run(m, plan, dst + (begin - src), end - begin, run);
      };
      m.values.each_run(*m.space, src, src + copy.width, plan_part);
    }
  }
  return plan;
}

void track_copy(Call& call, Work& work, const Copy& copy, Origin origin) {
  Machine& m = call.machine;
  Plan plan = plan_copy(m, copy);
  for (const Arrival& arrival : plan.arrivals) m.values.mark(*m.space, arrival.address, arrival.size, arrival.content);
  if (plan.unknown == 0) return;
  // What the program expects of its next copy is not for a graph, whose copies it did not call.
  if (origin == Origin::kCall) {
    if (auto expected = take_expected(copy.size(), m.generation)) {
      plan.substitute = {.zeros = {}, .bytes = std::move(*expected)};
      plan.unknown = 0;
    }
  }
  if (plan.unknown > 0) call.unknown_reads.push_back({copy.src.address, copy.size(), plan.unknown});
  if (plan.substitute.zeros.empty() && plan.substitute.bytes.empty()) return;
  Copy safe = copy;
  safe.substitute = std::make_shared<const Substitute>(std::move(plan.substitute));
  work.run = [safe] { return run_copy(safe); };
}

}  // namespace

void forget_variables(Machine& m, const ModuleState& module) {
  for (const auto& [name, variable] : module.variables) {
    const VariableInfo* info = module.image->variable(name);
    if (info != nullptr && info->kind == VariableKind::kConstant) continue;
    m.values.forget(*m.space, variable.address, variable.size);
  }
}

Tracker copy_tracker(Copy copy, const ContextRef& context, Origin origin) {
  if (copy.dst_context == nullptr) copy.dst_context = context;
  if (copy.src_context == nullptr) copy.src_context = context;
  join_rows(copy);
  return [copy = std::move(copy), origin](Call& call, Work& work) { track_copy(call, work, copy, origin); };
}

Tracker fill_tracker(const Fill& fill) {
  return [fill](Call& call, Work&) {
    Machine& m = call.machine;
    for (std::uint64_t y = 0; y < fill.rows; ++y) {
      m.values.mark(*m.space, fill.address + y * fill.pitch, fill.row, Content::kKnown);
    }
  };
}

void forget_written(Machine& m, const FunctionState& function, const Arguments& arguments) {
  if (!arguments) return m.values.forget_all();
  forget_variables(m, *function.module);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> done;
  std::uint64_t word = 0;
  for (std::size_t at = 0; at + sizeof word <= arguments->size(); at += sizeof word) {
    std::memcpy(&word, arguments->data() + at, sizeof word);
    if (!m.space->contains(word)) continue;
    const auto holds = [&](const auto& range) { return word - range.first < range.second - range.first; };
    if (std::any_of(done.begin(), done.end(), holds)) continue;
    done.push_back(m.values.forget_around(*m.space, word));
  }
}

void track_kernel_node(Call& call, Work& work) {
  const auto& kernel = std::get<KernelParams>(work.params->described);
  forget_written(call.machine, *kernel.function, kernel.arguments);
}

}  // namespace cudasim
