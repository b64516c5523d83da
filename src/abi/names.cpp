// The names and meanings of result codes.
#include "abi/types.hpp"

namespace arena::cu {

const char* error_name(Result error) {
  switch (error) {
#define CU_RESULT(ours, theirs, value, text) \
  case Result::ours:                         \
    return #theirs;
#include "abi/results.def"
#undef CU_RESULT
  }
  return nullptr;
}

const char* error_text(Result error) {
  switch (error) {
#define CU_RESULT(ours, theirs, value, text) \
  case Result::ours:                         \
    return text;
#include "abi/results.def"
#undef CU_RESULT
  }
  return nullptr;
}

}  // namespace arena::cu
