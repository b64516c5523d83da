// cuSPARSE: matrices and vectors of the generic interface remember what they were made of. How many elements a result has
// is unknown without computing it, so it is an assumption: a product has as many as there are pairs to multiply, on average; a
// sum has those of both; a dense matrix, all zeros here, has none. Buffers are estimates, or CUDASIM_WORKSPACE_CUSPARSE.
#include <algorithm>
#include <array>
#include <cstring>

#include "standins/common/attributes.hpp"
#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 1;     // CUSPARSE_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 3;  // CUSPARSE_STATUS_INVALID_VALUE
constexpr int kVersion = by_release(12510, 12700);

// How a matrix or vector is described: the width in bytes of each argument, and where some of them are.
struct Layout {
  int format;          // cusparseFormat_t; 0 for what has none
  const char* widths;  // a digit for each argument after the descriptor
  int values;          // which one is the array of values
  int elements;        // which one is the number of elements; -1 for dense ones
  int index_base;      // which one is the index base; -1 for dense ones
};
constexpr Layout kCsr{1, "8888884444", 5, 2, 8};
constexpr Layout kCsc{2, "8888884444", 5, 2, 8};
constexpr Layout kCoo{3, "888888444", 5, 2, 7};
constexpr Layout kBsr{6, "8888888844444", 7, 2, 10};
constexpr Layout kDense{0, "888844", 3, -1, -1};
constexpr Layout kDenseVector{0, "884", 1, -1, -1};
constexpr Layout kSparseVector{0, "8888444", 3, 1, 5};

constexpr std::size_t kMaxFields = 13;
using Fields = std::array<Word, kMaxFields>;

struct Described : Object {
  const Layout* layout = nullptr;
  Fields fields{};
  Attributes attributes;
  int batch = 1;
  Word batch_stride = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(fields[0]); }
  std::int64_t columns() const { return static_cast<std::int64_t>(fields[1]); }
  std::int64_t elements() const {
    return layout->elements < 0 ? 0 : static_cast<std::int64_t>(field(layout->elements));
  }
  Word field(int index) const { return fields[static_cast<std::size_t>(index)]; }
  Word& field(int index) { return fields[static_cast<std::size_t>(index)]; }
};

int describe(Word descriptor, const Layout& layout, const Fields& arguments) {
  if (descriptor == 0) return kBadArgument;
  auto object = std::make_unique<Described>();
  object->layout = &layout;
  for (std::size_t i = 0; layout.widths[i] != '\0'; ++i) {
    object->fields[i] = layout.widths[i] == '4' ? static_cast<std::uint32_t>(arguments[i]) : arguments[i];
  }
  write(descriptor, add_object(std::move(object)));
  return 0;
}

int show(Word descriptor, const Layout& layout, const Fields& addresses) {
  const auto* const object = find<Described>(descriptor);
  if (object == nullptr || object->layout != &layout) return kBadArgument;
  for (std::size_t i = 0; layout.widths[i] != '\0'; ++i) {
    if (layout.widths[i] == '4') {
      write(addresses[i], static_cast<std::uint32_t>(object->fields[i]));
    } else {
      write(addresses[i], object->fields[i]);
    }
  }
  return 0;
}

// Estimates of buffers, in bytes.
std::uint64_t work(std::int64_t bytes) {
  return workspace("CUSPARSE", textbook(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0))));
}
std::uint64_t indices(Word rows, Word elements) { return work(4 * (as_int(rows) + as_int(elements)) + 128); }
std::uint64_t sorting(Word elements) { return work(16 * as_int(elements) + 128); }
std::uint64_t diagonals(std::int64_t size, Word rows, Word right_sides) {
  return work(size * as_int(rows) * (3 + as_int(right_sides)));
}
std::uint64_t matrix_work(Word matrix) {
  const auto* const object = find<Described>(matrix);
  return work(object == nullptr ? 0 : 4 * (object->rows() + object->elements()));
}

// The number of products of two sparse matrices: each element of the first meets an average row of the second.
std::int64_t products(const Described& a, const Described& b) {
  return b.rows() > 0 ? (a.elements() * b.elements() + b.rows() - 1) / b.rows() : 0;
}

void set_product(const Described& a, const Described& b, Described& c) {
  const std::int64_t dense = c.rows() * c.columns();
  c.field(c.layout->elements) = static_cast<Word>(std::min(products(a, b), dense));
}

// A step of a product: says how much buffer it wants if it is given none.
int product_step(Word handle, Word a, Word b, Word c, Word size, Word buffer) {
  if (find_object(handle) == nullptr) return kNoHandle;
  const auto* const first = find<Described>(a);
  const auto* const second = find<Described>(b);
  auto* const result = find<Described>(c);
  if (first == nullptr || second == nullptr || result == nullptr || result->layout->elements < 0) return kBadArgument;
  if (buffer == 0 && size != 0) write<std::size_t>(size, work(8 * products(*first, *second)));
  set_product(*first, *second, *result);
  return 0;
}

std::size_t size_of(Word data_type) {  // cudaDataType
  switch (static_cast<int>(data_type)) {
    case 1:  // double
    case 4:  // complex float
      return 8;
    case 5:  // complex double
      return 16;
    default:
      return 4;
  }
}

const char* status_name(Word status) {
  switch (static_cast<int>(status)) {
    case 0:
      return "CUSPARSE_STATUS_SUCCESS";
    case kNoHandle:
      return "CUSPARSE_STATUS_NOT_INITIALIZED";
    case kBadArgument:
      return "CUSPARSE_STATUS_INVALID_VALUE";
    default:
      return "CUSPARSE_STATUS_INTERNAL_ERROR";
  }
}

}  // namespace

#define STANDIN_FIELDS {a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13}
// Runs `body` on the matrix or vector that argument 0 is.
#define ON_DESCRIBED(name, body)                \
  STANDIN_FUNCTION(name) {                      \
    auto* const object = find<Described>(a0);   \
    if (object == nullptr) return kBadArgument; \
    body;                                       \
    return 0;                                   \
  }
#define MODE(name, key)                                                     \
  STANDIN_FUNCTION(name) {                                                  \
    const Object* const object = find_object(a0);                           \
    return object == nullptr ? 0 : static_cast<int>(object->get(Key::key)); \
  }
#define DESCRIBE(name, layout) \
  STANDIN_FUNCTION(name) { return describe(a0, layout, STANDIN_FIELDS); }
#define SHOW(name, layout) \
  STANDIN_FUNCTION(name) { return show(a0, layout, STANDIN_FIELDS); }
#define SET_VALUES(name) ON_DESCRIBED(name, object->field(object->layout->values) = a1)
#define SHOW_VALUES(name) ON_DESCRIBED(name, write(a1, object->field(object->layout->values)))
#define SET_POINTERS(name) ON_DESCRIBED(name, object->fields[3] = a1; object->fields[4] = a2; object->fields[5] = a3)
#define SET_BATCH(name) ON_DESCRIBED(name, object->batch = static_cast<int>(a1); object->batch_stride = a2)

#include "standins/cusparse/cusparse.def"

RETURN(cusparseGetErrorName, const char*, status_name(a0))
RETURN(cusparseGetErrorString, const char*, status_name(a0))

ON_DESCRIBED(cusparseDnMatGetStridedBatch, write(a1, object->batch); write(a2, object->batch_stride))
ON_DESCRIBED(cusparseSpMatGetStridedBatch, write(a1, object->batch))
ON_DESCRIBED(cusparseSpMatGetFormat, write(a1, object->layout->format))
ON_DESCRIBED(cusparseSpMatGetSize, write(a1, object->rows()); write(a2, object->columns());
             write(a3, object->elements()))
ON_DESCRIBED(cusparseSpMatSetAttribute, object->attributes.set(static_cast<int>(a1), a2, a3))
ON_DESCRIBED(cusparseSpMatGetAttribute, object->attributes.get(static_cast<int>(a1), a2, a3))
ON_DESCRIBED(cusparseSpMatGetIndexBase, write(a1, static_cast<int>(object->field(object->layout->index_base))))
ON_DESCRIBED(cusparseSpVecGetIndexBase, write(a1, static_cast<int>(object->field(object->layout->index_base))))

// (handle, dense, sparse, algorithm, buffer): a matrix of zeros has no elements.
STANDIN_FUNCTION(cusparseDenseToSparse_analysis) {
  if (find_object(a0) == nullptr) return kNoHandle;
  auto* const sparse = find<Described>(a2);
  if (sparse == nullptr || sparse->layout->elements < 0) return kBadArgument;
  sparse->field(sparse->layout->elements) = 0;
  return 0;
}

// (handle, opA, opB, alpha, A, B, beta, C, type, algorithm, descriptor, size, buffer)
STANDIN_FUNCTION(cusparseSpGEMM_workEstimation) { return product_step(a0, a4, a5, a7, a11, a12); }
STANDIN_FUNCTION(cusparseSpGEMM_compute) { return product_step(a0, a4, a5, a7, a11, a12); }
// (handle, opA, opB, A, B, C, algorithm, descriptor, size, buffer, ...)
STANDIN_FUNCTION(cusparseSpGEMMreuse_workEstimation) { return product_step(a0, a3, a4, a5, a8, a9); }
STANDIN_FUNCTION(cusparseSpGEMMreuse_nnz) {
  const int status = product_step(a0, a3, a4, a5, a8, a9);
  if (status != 0) return status;
  product_step(a0, a3, a4, a5, a10, a11);
  return product_step(a0, a3, a4, a5, a12, a13);
}
// (handle, opA, opB, alpha, A, beta, B, C, type, algorithm, descriptor, buffer)
STANDIN_FUNCTION(cusparseSpGEAM_nnz) {
  if (find_object(a0) == nullptr) return kNoHandle;
  const auto* const first = find<Described>(a4);
  const auto* const second = find<Described>(a6);
  auto* const result = find<Described>(a7);
  if (first == nullptr || second == nullptr || result == nullptr || result->layout->elements < 0) return kBadArgument;
  result->field(result->layout->elements) =
      static_cast<Word>(std::min(first->elements() + second->elements(), result->rows() * result->columns()));
  return 0;
}

// (handle, operation, x, y, result, type, buffer)
STANDIN_FUNCTION(cusparseSpVV) {
  const Object* const handle = find_object(a0);
  if (handle == nullptr) return kNoHandle;
  if (is_result_on_host(*handle) && a4 != 0) std::memset(reinterpret_cast<void*>(a4), 0, size_of(a5));
  return 0;
}
