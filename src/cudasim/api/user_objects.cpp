#include "cudasim/api/user_objects.hpp"

#include <climits>
#include <thread>

#include "cudasim/api/events.hpp"
#include "cudasim/api/graphs.hpp"

namespace cudasim {
namespace {

// A live object. One without references is dead, though its handle is still known.
UserObjectRef object_of(Call& call, cu::UserObject handle) {
  UserObjectRef object = find_live(call, call.machine.user_objects, handle);
  require(object != nullptr, kInvalidValue);
  if (object->references.load() == 0) {
    report_dead(call, call.machine.user_objects.kind(), reinterpret_cast<std::uint64_t>(handle), true, {});
    throw Refusal{kInvalidValue};
  }
  return object;
}

void check_count(unsigned count) { require(count > 0 && count <= INT_MAX, kInvalidValue); }

}  // namespace

void UserObjectState::release(std::uint64_t count) {
  if (references.fetch_sub(count) != count) return;
  const auto call = [function = destroy, argument = data] { call_program([&] { function(argument); }); };
  try {
    std::thread(call).detach();
  } catch (const std::system_error&) {  // no thread to be had
    call();
  }
}

UserRefs::UserRefs(const UserRefs& other) : held_(other.held_) {
  for (const auto& [object, count] : held_) object->references += count;
}

UserRefs::~UserRefs() {
  for (const auto& [object, count] : held_) object->release(count);
}

void UserRefs::add(const UserObjectRef& object, std::uint64_t count) {
  for (auto& [known, held] : held_) {
    if (known != object) continue;
    held += count;
    return;
  }
  held_.emplace_back(object, count);
}

void UserRefs::take(const UserRefs& others) {
  for (const auto& [object, count] : others.held_) {
    object->references += count;
    add(object, count);
  }
}

bool UserRefs::remove(const UserObjectRef& object, std::uint64_t count) {
  for (auto it = held_.begin(); it != held_.end(); ++it) {
    if (it->first != object || it->second < count) continue;
    if ((it->second -= count) == 0) held_.erase(it);
    object->release(count);
    return true;
  }
  return false;
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuUserObjectCreate(cu::UserObject* object, void* ptr, cu::HostFunction destroy, unsigned count,
                                         unsigned flags) {
  return enter("cuUserObjectCreate", Need::kDriver, [&](Call& call) {
    require(object != nullptr && destroy != nullptr, kInvalidValue);
    require(flags == cu::bits(cu::UserObjectFlag::kNoDestructorSync), kInvalidValue);
    check_count(count);
    auto made = std::make_shared<UserObjectState>();
    made->data = ptr;
    made->destroy = destroy;
    made->references = count;
    *object = call.machine.user_objects.reserve(call.machine.settings.reuse);
    call.machine.user_objects.add(*object, made);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuUserObjectRetain(cu::UserObject handle, unsigned count) {
  return enter("cuUserObjectRetain", Need::kDriver, [&](Call& call) {
    check_count(count);
    object_of(call, handle)->references += count;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuUserObjectRelease(cu::UserObject handle, unsigned count) {
  return enter("cuUserObjectRelease", Need::kDriver, [&](Call& call) {
    check_count(count);
    const UserObjectRef object = object_of(call, handle);
    require(count <= object->references.load(), kInvalidValue);
    object->release(count);
    if (object->references.load() == 0) call.machine.user_objects.erase(handle, death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphRetainUserObject(cu::Graph graph, cu::UserObject handle, unsigned count, unsigned flags) {
  return enter("cuGraphRetainUserObject", Need::kDriver, [&](Call& call) {
    check_count(count);
    require(flags <= cu::bits(cu::UserObjectRetainFlag::kMove), kInvalidValue);
    const UserObjectRef object = object_of(call, handle);
    const GraphRef owner = graph_of(call, graph, WhileCaptured::kAllowed);
    if (flags == 0) object->references += count;
    owner->users.add(object, count);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphReleaseUserObject(cu::Graph graph, cu::UserObject handle, unsigned count) {
  return enter("cuGraphReleaseUserObject", Need::kDriver, [&](Call& call) {
    check_count(count);
    const UserObjectRef object = object_of(call, handle);
    require(graph_of(call, graph, WhileCaptured::kAllowed)->users.remove(object, count), kInvalidValue);
    return kSuccess;
  });
}
