// cuRAND: generators remember their kind, because normal numbers of a pseudorandom one come in pairs.
#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 101;           // CURAND_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 104;        // CURAND_STATUS_OUT_OF_RANGE
constexpr int kTypeError = 103;          // CURAND_STATUS_TYPE_ERROR
constexpr int kLengthNotMultiple = 105;  // CURAND_STATUS_LENGTH_NOT_MULTIPLE
constexpr int kVersion = by_release(10309, 10402);
constexpr std::int64_t kFirstPseudo = 100, kFirstQuasi = 200, kLastQuasi = 204;  // of curandRngType

int generate_normal(Word generator, std::size_t count) {
  const Object* const object = find_object(generator);
  if (object == nullptr) return kNoHandle;
  const bool is_pseudo = static_cast<std::int64_t>(object->get(Key::kMode)) < kFirstQuasi;
  return is_pseudo && count % 2 != 0 ? kLengthNotMultiple : 0;
}

}  // namespace

#include "standins/curand/curand.def"

STANDIN_FUNCTION(curandCreateGenerator) {
  if (a0 == 0) return kBadArgument;
  const std::int64_t type = as_int(a1);
  if (type < kFirstPseudo || type > kLastQuasi) return kTypeError;
  const Word generator = create<Handle>();
  find_object(generator)->set(Key::kMode, static_cast<Word>(type));
  write(a0, generator);
  return 0;
}

STANDIN_FUNCTION(curandGenerateNormal) { return generate_normal(a0, a2); }
STANDIN_FUNCTION(curandGenerateNormalDouble) { return generate_normal(a0, a2); }
STANDIN_FUNCTION(curandGenerateLogNormal) { return generate_normal(a0, a2); }
STANDIN_FUNCTION(curandGenerateLogNormalDouble) { return generate_normal(a0, a2); }
