// cuFFT: plans know the work area they want. Its size is an assumption: one complex copy of the data, or what
// CUDASIM_WORKSPACE_CUFFT says. A plan allocates none by itself; frameworks give it theirs.
#include <map>
#include <mutex>

#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 1;     // CUFFT_INVALID_PLAN
constexpr int kBadArgument = 4;  // CUFFT_INVALID_VALUE
constexpr int kInvalidSize = 8;  // CUFFT_INVALID_SIZE
constexpr int kVersion = by_release(11400, 12200);

struct Plan {
  std::size_t work_size = 0;
  int gpus = 1;
};

struct Plans {
  std::mutex mutex;
  std::map<int, Plan> live;
  int last = 0;  // numbers are not given again
};

Plans& plans() {
  static Plans* const only = new Plans;
  return *only;
}

int create_plan() {
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  all.live.emplace(++all.last, Plan());
  return all.last;
}

bool is_live(Word plan) {
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  return all.live.contains(static_cast<int>(plan));
}

bool is_double(Word type) { return (type & 0x40) != 0; }  // cufftType: 0x29 to 0x2c are single, 0x69 to 0x6c double

std::size_t complex_size(Word data_type) {  // cudaDataType: 1 and 5 are double, 2 and 6 half
  switch (static_cast<int>(data_type)) {
    case 1:
    case 5:
      return 16;
    case 2:
    case 6:
    case 14:  // bfloat16
    case 15:
      return 4;
    default:
      return 8;
  }
}

std::size_t complex_size_of_type(Word type) { return is_double(type) ? 16 : 8; }

// The number of points, or -1 if a dimension is not positive.
template <class Int>
std::int64_t points(Word rank, Word dimensions, std::int64_t batch) {
  if (dimensions == 0 || as_int(rank) < 1) return -1;
  std::int64_t product = batch;
  for (std::int64_t i = 0; i < as_int(rank); ++i) {
    const auto size = static_cast<std::int64_t>(reinterpret_cast<const Int*>(dimensions)[i]);
    if (size < 1) return -1;
    product *= size;
  }
  return product > 0 ? product : -1;
}

std::int64_t points(std::initializer_list<Word> dimensions) {
  std::int64_t product = 1;
  for (const Word size : dimensions) {
    if (as_int(size) < 1) return -1;
    product *= as_int(size);
  }
  return product;
}

int answer_size(std::int64_t count, std::size_t element, Word size) {
  if (count < 0) return kInvalidSize;
  if (size == 0) return kBadArgument;
  write<std::size_t>(size, workspace("CUFFT", static_cast<std::size_t>(count) * element));
  return 0;
}

// Sets the plan's work area, which several devices share evenly, and writes its size (for each device).
int make(Word plan, std::int64_t count, std::size_t element, Word sizes) {
  if (count < 0) return kInvalidSize;
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(static_cast<int>(plan));
  if (found == all.live.end()) return kNoHandle;
  const auto gpus = static_cast<std::size_t>(found->second.gpus);
  found->second.work_size = workspace("CUFFT", (static_cast<std::size_t>(count) * element + gpus - 1) / gpus);
  for (std::size_t i = 0; i < gpus && sizes != 0; ++i)
    reinterpret_cast<std::size_t*>(sizes)[i] = found->second.work_size;
  return 0;
}

int create_and_make(Word plan, std::int64_t count, std::size_t element) {
  if (plan == 0) return kBadArgument;
  if (count < 0) return kInvalidSize;
  write<int>(plan, create_plan());
  return make(static_cast<Word>(*reinterpret_cast<int*>(plan)), count, element, 0);
}

int answer_live(Word plan, std::int64_t count, std::size_t element, Word size) {
  return is_live(plan) ? answer_size(count, element, size) : kNoHandle;
}

}  // namespace

#define PLAN(name) \
  STANDIN_FUNCTION(name) { return is_live(a0) ? 0 : kNoHandle; }

#include "standins/cufft/cufft.def"

STANDIN_FUNCTION(cufftCreate) {
  if (a0 == 0) return kBadArgument;
  write<int>(a0, create_plan());
  return 0;
}

STANDIN_FUNCTION(cufftDestroy) {
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  return all.live.erase(static_cast<int>(a0)) == 1 ? 0 : kNoHandle;
}

STANDIN_FUNCTION(cufftXtSetGPUs) {
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(static_cast<int>(a0));
  if (found == all.live.end()) return kNoHandle;
  if (as_int(a1) < 1 || a2 == 0) return kBadArgument;
  found->second.gpus = static_cast<int>(a1);
  return 0;
}

STANDIN_FUNCTION(cufftGetSize) {
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(static_cast<int>(a0));
  if (found == all.live.end()) return kNoHandle;
  return write<std::size_t>(a1, found->second.work_size) ? 0 : kBadArgument;
}

STANDIN_FUNCTION(cufftPlan1d) { return create_and_make(a0, points({a1, a3}), complex_size_of_type(a2)); }
STANDIN_FUNCTION(cufftPlan2d) { return create_and_make(a0, points({a1, a2}), complex_size_of_type(a3)); }
STANDIN_FUNCTION(cufftPlan3d) { return create_and_make(a0, points({a1, a2, a3}), complex_size_of_type(a4)); }
STANDIN_FUNCTION(cufftPlanMany) {
  return create_and_make(a0, points<int>(a1, a2, as_int(a10)), complex_size_of_type(a9));
}

STANDIN_FUNCTION(cufftMakePlan1d) { return make(a0, points({a1, a3}), complex_size_of_type(a2), a4); }
STANDIN_FUNCTION(cufftMakePlan2d) { return make(a0, points({a1, a2}), complex_size_of_type(a3), a4); }
STANDIN_FUNCTION(cufftMakePlan3d) { return make(a0, points({a1, a2, a3}), complex_size_of_type(a4), a5); }
STANDIN_FUNCTION(cufftMakePlanMany) {
  return make(a0, points<int>(a1, a2, as_int(a10)), complex_size_of_type(a9), a11);
}

STANDIN_FUNCTION(cufftGetSize1d) { return answer_live(a0, points({a1, a3}), complex_size_of_type(a2), a4); }
STANDIN_FUNCTION(cufftGetSize2d) { return answer_live(a0, points({a1, a2}), complex_size_of_type(a3), a4); }
STANDIN_FUNCTION(cufftGetSize3d) { return answer_live(a0, points({a1, a2, a3}), complex_size_of_type(a4), a5); }
STANDIN_FUNCTION(cufftGetSizeMany) {
  return answer_live(a0, points<int>(a1, a2, as_int(a10)), complex_size_of_type(a9), a11);
}

STANDIN_FUNCTION(cufftEstimate1d) { return answer_size(points({a0, a2}), complex_size_of_type(a1), a3); }
STANDIN_FUNCTION(cufftEstimate2d) { return answer_size(points({a0, a1}), complex_size_of_type(a2), a3); }
STANDIN_FUNCTION(cufftEstimate3d) { return answer_size(points({a0, a1, a2}), complex_size_of_type(a3), a4); }
STANDIN_FUNCTION(cufftEstimateMany) {
  return answer_size(points<int>(a0, a1, as_int(a9)), complex_size_of_type(a8), a10);
}

STANDIN_FUNCTION(cufftMakePlanMany64) {
  return make(a0, points<long long>(a1, a2, static_cast<std::int64_t>(a10)), complex_size_of_type(a9), a11);
}
STANDIN_FUNCTION(cufftGetSizeMany64) {
  return answer_live(a0, points<long long>(a1, a2, static_cast<std::int64_t>(a10)), complex_size_of_type(a9), a11);
}
STANDIN_FUNCTION(cufftXtMakePlanMany) {
  return make(a0, points<long long>(a1, a2, static_cast<std::int64_t>(a11)), complex_size(a13), a12);
}
STANDIN_FUNCTION(cufftXtGetSizeMany) {
  return answer_live(a0, points<long long>(a1, a2, static_cast<std::int64_t>(a11)), complex_size(a13), a12);
}
