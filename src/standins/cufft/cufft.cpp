// cuFFT: plans know the work area they want (common/catalogue.hpp), or what CUDASIM_WORKSPACE_CUFFT says. A plan allocates
// none by itself; frameworks give it theirs.
#include <map>
#include <mutex>
#include <utility>
#include <vector>

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

// What is transformed: how many complex numbers of `element` bytes, along which lengths. No points if a length is not
// positive.
struct Shape {
  std::vector<std::int64_t> lengths;
  std::int64_t points = 0;
  std::size_t element = 0;
  bool is_real = false;

  Estimate work_area(std::size_t gpus = 1) const {
    const std::size_t bytes = (static_cast<std::size_t>(points) * element + gpus - 1) / gpus;
    return fft_work_area({.lengths = lengths, .bytes = bytes, .is_real = is_real});
  }
};

Shape shape_of(std::vector<std::int64_t> lengths, std::int64_t batch, Word type) {
  const bool is_real = (type & 0xf) != 9;  // CUFFT_C2C is 0x29, CUFFT_Z2Z is 0x69
  Shape shape{
      .lengths = std::move(lengths), .points = batch, .element = complex_size_of_type(type), .is_real = is_real};
  for (const std::int64_t length : shape.lengths) shape.points *= length > 0 ? length : 0;
  if (shape.points < 0 || shape.lengths.empty()) shape.points = 0;
  return shape;
}

template <class Int>
std::vector<std::int64_t> lengths_at(Word rank, Word dimensions) {
  std::vector<std::int64_t> lengths;
  const auto* const first = reinterpret_cast<const Int*>(dimensions);
  for (std::int64_t i = 0; first != nullptr && i < as_int(rank); ++i)
    lengths.push_back(static_cast<std::int64_t>(first[i]));
  return lengths;
}

int answer_size(const Shape& shape, Word size) {
  if (shape.points == 0) return kInvalidSize;
  return write<std::size_t>(size, workspace("CUFFT", shape.work_area())) ? 0 : kBadArgument;
}

// Sets the plan's work area, which several devices share evenly, and writes its size (for each device).
int make(Word plan, const Shape& shape, Word sizes) {
  if (shape.points == 0) return kInvalidSize;
  Plans& all = plans();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(static_cast<int>(plan));
  if (found == all.live.end()) return kNoHandle;
  const auto gpus = static_cast<std::size_t>(found->second.gpus);
  found->second.work_size = workspace("CUFFT", shape.work_area(gpus));
  for (std::size_t i = 0; i < gpus && sizes != 0; ++i)
    reinterpret_cast<std::size_t*>(sizes)[i] = found->second.work_size;
  return 0;
}

int create_and_make(Word plan, const Shape& shape) {
  if (plan == 0) return kBadArgument;
  if (shape.points == 0) return kInvalidSize;
  write<int>(plan, create_plan());
  return make(static_cast<Word>(*reinterpret_cast<int*>(plan)), shape, 0);
}

int answer_live(Word plan, const Shape& shape, Word size) {
  return is_live(plan) ? answer_size(shape, size) : kNoHandle;
}

// The arguments of the functions, with a type. Transforms of one dimension come in batches.
Shape line(Word length, Word type, Word batch) { return shape_of({as_int(length)}, as_int(batch), type); }
Shape plane(Word x, Word y, Word type) { return shape_of({as_int(x), as_int(y)}, 1, type); }
Shape box(Word x, Word y, Word z, Word type) { return shape_of({as_int(x), as_int(y), as_int(z)}, 1, type); }
Shape many(Word rank, Word dimensions, Word type, Word batch) {
  return shape_of(lengths_at<int>(rank, dimensions), as_int(batch), type);
}
Shape many64(Word rank, Word dimensions, Word type, Word batch) {
  return shape_of(lengths_at<long long>(rank, dimensions), static_cast<std::int64_t>(batch), type);
}

// The types of input, output and execution are each a cudaDataType: 0, 1, 2 and 14 are real.
bool is_real(Word data_type) {
  const auto type = static_cast<int>(data_type);
  return (type >= 0 && type <= 2) || type == 14;
}
Shape typed(Word rank, Word dimensions, Word input, Word output, Word execution, Word batch) {
  Shape shape = many64(rank, dimensions, 0, batch);
  shape.element = complex_size(execution);
  shape.is_real = is_real(input) || is_real(output);
  return shape;
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

STANDIN_FUNCTION(cufftPlan1d) { return create_and_make(a0, line(a1, a2, a3)); }
STANDIN_FUNCTION(cufftPlan2d) { return create_and_make(a0, plane(a1, a2, a3)); }
STANDIN_FUNCTION(cufftPlan3d) { return create_and_make(a0, box(a1, a2, a3, a4)); }
STANDIN_FUNCTION(cufftPlanMany) { return create_and_make(a0, many(a1, a2, a9, a10)); }

STANDIN_FUNCTION(cufftMakePlan1d) { return make(a0, line(a1, a2, a3), a4); }
STANDIN_FUNCTION(cufftMakePlan2d) { return make(a0, plane(a1, a2, a3), a4); }
STANDIN_FUNCTION(cufftMakePlan3d) { return make(a0, box(a1, a2, a3, a4), a5); }
STANDIN_FUNCTION(cufftMakePlanMany) { return make(a0, many(a1, a2, a9, a10), a11); }

STANDIN_FUNCTION(cufftGetSize1d) { return answer_live(a0, line(a1, a2, a3), a4); }
STANDIN_FUNCTION(cufftGetSize2d) { return answer_live(a0, plane(a1, a2, a3), a4); }
STANDIN_FUNCTION(cufftGetSize3d) { return answer_live(a0, box(a1, a2, a3, a4), a5); }
STANDIN_FUNCTION(cufftGetSizeMany) { return answer_live(a0, many(a1, a2, a9, a10), a11); }

STANDIN_FUNCTION(cufftEstimate1d) { return answer_size(line(a0, a1, a2), a3); }
STANDIN_FUNCTION(cufftEstimate2d) { return answer_size(plane(a0, a1, a2), a3); }
STANDIN_FUNCTION(cufftEstimate3d) { return answer_size(box(a0, a1, a2, a3), a4); }
STANDIN_FUNCTION(cufftEstimateMany) { return answer_size(many(a0, a1, a8, a9), a10); }

STANDIN_FUNCTION(cufftMakePlanMany64) { return make(a0, many64(a1, a2, a9, a10), a11); }
STANDIN_FUNCTION(cufftGetSizeMany64) { return answer_live(a0, many64(a1, a2, a9, a10), a11); }
STANDIN_FUNCTION(cufftXtMakePlanMany) { return make(a0, typed(a1, a2, a6, a10, a13, a11), a12); }
STANDIN_FUNCTION(cufftXtGetSizeMany) { return answer_live(a0, typed(a1, a2, a6, a10, a13, a11), a12); }
