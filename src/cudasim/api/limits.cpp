// What can be set on a context: limits, preferences and flags. Nothing here changes what a program can see of its memory.
#include <algorithm>

#include "cudasim/api/contexts.hpp"

namespace cudasim {
namespace {

bool has_limit(const Card& card, cu::Limit limit) {
  if (limit == cu::Limit::kRuntimeSyncDepth) return card.major < 9;
  if (limit == cu::Limit::kPersistingL2CacheSize) return card.major >= 8;
  return cu::bits(limit) <= cu::bits(cu::Limit::kPersistingL2CacheSize);
}

// As the driver may change a value to one that the device can have.
std::size_t clamped(const Card& card, cu::Limit limit, std::size_t value) {
  using enum cu::Limit;
  switch (limit) {
    case kStackSize:
      return std::clamp<std::size_t>((value + 15) / 16 * 16, 16, 512 << 10);
    case kL2FetchGranularity:
      return value <= 32 ? 32 : value <= 64 ? 64 : 128;
    case kPersistingL2CacheSize:
      return std::min<std::size_t>(value, static_cast<unsigned>(card.l2_cache / 4 * 3));
    default:
      return value;
  }
}

template <typename Value, typename Get>
Result get(std::string_view name, Value* out, Get found) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(out != nullptr, kInvalidValue);
    *out = found(*call.context);
    return kSuccess;
  });
}

}  // namespace

std::array<std::size_t, 7> standard_limits() { return {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0}; }

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuCtxGetLimit(std::size_t* value, cu::Limit limit) {
  return enter("cuCtxGetLimit", Need::kContext, [&](Call& call) {
    require(value != nullptr, kInvalidValue);
    require(has_limit(call.machine.settings.card, limit), kUnsupportedLimit);
    *value = call.context->limits[cu::bits(limit)];
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxSetLimit(cu::Limit limit, std::size_t value) {
  return enter("cuCtxSetLimit", Need::kContext, [&](Call& call) {
    const Card& card = call.machine.settings.card;
    require(has_limit(card, limit), kUnsupportedLimit);
    require(limit != cu::Limit::kRuntimeSyncDepth || value <= 24, kInvalidValue);
    require(limit != cu::Limit::kL2FetchGranularity || value <= 128, kInvalidValue);
    call.context->limits[cu::bits(limit)] = clamped(card, limit, value);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetCacheConfig(cu::FunctionCache* config) {
  return get("cuCtxGetCacheConfig", config, [](const ContextState& context) { return context.cache; });
}

CUDASIM_EXPORT Result cuCtxSetCacheConfig(cu::FunctionCache config) {
  return enter("cuCtxSetCacheConfig", Need::kContext, [&](Call& call) {
    require(cu::bits(config) <= cu::bits(cu::FunctionCache::kEqual), kInvalidValue);
    call.context->cache = config;
    return kSuccess;
  });
}

// Banks of shared memory are four bytes wide, whatever is asked for.
CUDASIM_EXPORT Result cuCtxGetSharedMemConfig(cu::SharedConfig* config) {
  return get("cuCtxGetSharedMemConfig", config, [](const ContextState&) { return cu::SharedConfig::kFourBytes; });
}

CUDASIM_EXPORT Result cuCtxSetSharedMemConfig(cu::SharedConfig config) {
  return enter("cuCtxSetSharedMemConfig", Need::kContext, [&](Call&) {
    require(cu::bits(config) <= cu::bits(cu::SharedConfig::kEightBytes), kInvalidValue);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxResetPersistingL2Cache() {
  return enter("cuCtxResetPersistingL2Cache", Need::kContext, [&](Call& call) {
    require(call.machine.settings.card.major >= 8, kNotSupported);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxSetFlags(unsigned flags) {
  return enter("cuCtxSetFlags", Need::kContext, [&](Call& call) {
    require((flags & ~kContextFlags) == 0, kInvalidValue);
    call.context->flags = flags;
    return kSuccess;
  });
}
