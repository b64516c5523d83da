#include "core/process.hpp"

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

namespace arena {
namespace {

#if __has_include(<pthread.h>)
const int registered = pthread_atfork(nullptr, nullptr, [] { ++fork_count; });
#endif

}  // namespace

}  // namespace arena
