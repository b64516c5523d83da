// What can be set on a stream. Nothing here changes what a stream does.
#include <cstring>

#include "cudasim/api/contexts.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {
namespace {

using enum cu::LaunchAttributeId;

bool is_of_streams(cu::LaunchAttributeId what) {
  return what == kAccessPolicyWindow || what == kSynchronizationPolicy || what == kPriority ||
         what == kMemSyncDomainMap || what == kMemSyncDomain;
}

cu::LaunchAttributeValue standard_value(const StreamState& stream, cu::LaunchAttributeId what) {
  cu::LaunchAttributeValue value{};
  const auto give = [&](auto number) { std::memcpy(value.bytes, &number, sizeof number); };
  if (what == kSynchronizationPolicy) give(cu::SynchronizationPolicy::kAuto);
  if (what == kPriority) give(stream.priority);
  if (what == kMemSyncDomainMap) value.bytes[1] = 1;  // the default domain, and the remote one
  return value;
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuStreamGetAttribute(cu::Stream handle, cu::LaunchAttributeId what,
                                           cu::LaunchAttributeValue* value) {
  return enter("cuStreamGetAttribute", Need::kContext, [&](Call& call) {
    require(value != nullptr && is_of_streams(what), kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    const auto set = stream->attributes.find(what);
    *value = set != stream->attributes.end() ? set->second : standard_value(*stream, what);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamSetAttribute(cu::Stream handle, cu::LaunchAttributeId what,
                                           const cu::LaunchAttributeValue* value) {
  return enter("cuStreamSetAttribute", Need::kContext, [&](Call& call) {
    require(value != nullptr && is_of_streams(what) && what != kPriority, kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    if (what == kSynchronizationPolicy) {
      unsigned policy = 0;
      std::memcpy(&policy, value->bytes, sizeof policy);
      require(policy >= 1 && policy <= cu::bits(cu::SynchronizationPolicy::kBlockingSync), kInvalidValue);
    }
    stream->attributes[what] = *value;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamCopyAttributes(cu::Stream target, cu::Stream source) {
  return enter("cuStreamCopyAttributes", Need::kContext, [&](Call& call) {
    const StreamRef to = stream_of(call, target);
    const StreamRef from = stream_of(call, source);
    require(to->context == from->context, kInvalidValue);
    to->attributes = from->attributes;
    return kSuccess;
  });
}

// Who may touch managed memory: everybody can here, so it only has to be asked for rightly.
CUDASIM_EXPORT Result cuStreamAttachMemAsync(cu::Stream handle, cu::DevicePtr ptr, std::size_t length, unsigned flags) {
  return enter("cuStreamAttachMemAsync", Need::kContext, [&](Call& call) {
    const bool single = flags == cu::bits(cu::MemAttach::kSingle);
    require(single || flags == cu::bits(cu::MemAttach::kGlobal) || flags == cu::bits(cu::MemAttach::kHost),
            kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    require(!single || stream != stream->context->legacy, kInvalidValue);
    const Range* range = call.machine.space->find_exact(ptr);
    require(range != nullptr && range->kind == RangeKind::kManaged, kInvalidValue);
    require(length == 0 || length == range->size, kInvalidValue);
    submit(call, stream, {.name = call.name});
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuProfilerStart() {
  return enter("cuProfilerStart", Need::kContext, [](Call&) { return kSuccess; });
}

CUDASIM_EXPORT Result cuProfilerStop() {
  return enter("cuProfilerStop", Need::kContext, [](Call&) { return kSuccess; });
}
