// The functions of the backend interface. Order matters as in cuDNN: attributes are set before a descriptor is finalized and
// read afterwards, and what is set on another descriptor is final.
#include "standins/cudnn/backend.hpp"

#include <algorithm>
#include <cstring>

#include "standins/cudnn/cudnn.hpp"
#include "standins/cudnn/planner.hpp"

namespace standins::cudnn {

namespace {

int set_children(Attribute& attribute, Word elements) {
  const auto* const handles = reinterpret_cast<const Word*>(elements);
  for (std::int64_t i = 0; i < attribute.count; ++i) {
    const auto* const child = find<BackendDescriptor>(handles[i]);
    if (child == nullptr) return kBadArgument;
    if (!child->contents->is_final) return kNotFinalized;
    attribute.children.push_back(child->contents);
  }
  return 0;
}

int set_attribute(Word descriptor, int name, int type, std::int64_t count, Word elements) {
  auto* const object = find<BackendDescriptor>(descriptor);
  if (object == nullptr || count < 0 || (count > 0 && elements == 0)) return kBadArgument;
  if (object->contents->is_final) return kNotInitialized;
  Attribute attribute{.type = type, .count = count, .bytes = {}, .children = {}};
  if (type == kTypeDescriptor) {
    if (const int status = set_children(attribute, elements); status != 0) return status;
  } else if (count > 0) {
    const auto* const first = reinterpret_cast<const unsigned char*>(elements);
    attribute.bytes.assign(first, first + static_cast<std::size_t>(count) * size_of_attribute(type));
  }
  object->contents->attributes[name] = std::move(attribute);
  return 0;
}

// Descriptors are not handed out: those that the caller made are given the contents. `count` is how many were, as in
// cuDNN: cudnn-frontend keeps as many.
int get_children(const Attribute& attribute, std::int64_t requested, Word count, Word elements) {
  const auto* const handles = reinterpret_cast<const Word*>(elements);
  const std::int64_t given = std::min(requested, attribute.count);
  write<std::int64_t>(count, given);
  for (std::int64_t i = 0; i < given; ++i) {
    auto* const target = find<BackendDescriptor>(handles[i]);
    if (target == nullptr) return kBadArgument;
    const ContentsRef& child = attribute.children[static_cast<std::size_t>(i)];
    if (target->contents->type != child->type) return kBadArgument;
    target->contents = std::const_pointer_cast<Contents>(child);  // final: never written again
  }
  return 0;
}

int get_attribute(Word descriptor, int name, int type, std::int64_t requested, Word count, Word elements) {
  const auto* const object = find<BackendDescriptor>(descriptor);
  if (object == nullptr || requested < 0) return kBadArgument;
  if (!object->contents->is_final) return kNotFinalized;
  Attribute derived;
  const Attribute* attribute = object->contents->find(name);
  if (attribute == nullptr && derive(*object->contents, name, derived)) attribute = &derived;
  write<std::int64_t>(count, attribute == nullptr ? 0 : attribute->count);
  if (attribute == nullptr) return kNotSupported;
  if (attribute->type != type) return kWrongType;
  if (elements == 0 || requested == 0) return 0;
  if (type == kTypeDescriptor) return get_children(*attribute, requested, count, elements);
  const auto copied = static_cast<std::size_t>(std::min(requested, attribute->count)) * size_of_attribute(type);
  std::memcpy(reinterpret_cast<void*>(elements), attribute->bytes.data(), copied);
  return 0;
}

const Contents* final_contents(Word descriptor, int type) {
  const auto* const object = find<BackendDescriptor>(descriptor);
  return object != nullptr && object->contents->is_final && object->contents->type == type ? object->contents.get()
                                                                                           : nullptr;
}

int execute(Word handle, Word plan, Word pack) {
  if (find_object(handle) == nullptr) return kNoHandle;
  return final_contents(plan, kPlan) != nullptr && final_contents(pack, kVariantPack) != nullptr ? 0 : kNotFinalized;
}

}  // namespace

std::size_t size_of_attribute(int type) {
  switch (type) {
    case kTypeHandle:
    case kTypeInt64:
    case kTypeDouble:
    case kTypePointer:
    case kTypeDescriptor:
      return 8;
    case kTypeFraction:
      return 16;
    case kTypeBoolean:
    case kTypeChar:
      return 1;
    default:  // single precision, 32-bit integers, and all enumerations
      return 4;
  }
}

const Attribute* Contents::find(int name) const {
  const auto found = attributes.find(name);
  return found == attributes.end() ? nullptr : &found->second;
}

ContentsRef Contents::child(int name) const {
  const Attribute* const attribute = find(name);
  return attribute == nullptr || attribute->children.empty() ? nullptr : attribute->children.front();
}

std::vector<std::int64_t> Contents::integers(int name) const {
  const Attribute* const attribute = find(name);
  if (attribute == nullptr || attribute->type != kTypeInt64 || attribute->bytes.empty()) return {};
  std::vector<std::int64_t> values(static_cast<std::size_t>(attribute->count));
  std::memcpy(values.data(), attribute->bytes.data(), attribute->bytes.size());
  return values;
}

STANDIN_FUNCTION(cudnnBackendCreateDescriptor) {
  if (a1 == 0 || as_int(a0) < 0 || as_int(a0) > kLastDescriptorType) return kBadArgument;
  auto descriptor = std::make_unique<BackendDescriptor>();
  descriptor->contents->type = static_cast<int>(a0);
  write(a1, add_object(std::move(descriptor)));
  return 0;
}

STANDIN_FUNCTION(cudnnBackendDestroyDescriptor) { return remove_object(a0) ? 0 : kBadArgument; }

// Sets a descriptor back to what it was when it was made.
STANDIN_FUNCTION(cudnnBackendInitialize) {
  auto* const object = find<BackendDescriptor>(a0);
  if (object == nullptr) return kBadArgument;
  auto fresh = std::make_shared<Contents>();
  fresh->type = object->contents->type;
  object->contents = std::move(fresh);
  return 0;
}

STANDIN_FUNCTION(cudnnBackendFinalize) {
  auto* const object = find<BackendDescriptor>(a0);
  if (object == nullptr) return kBadArgument;
  if (const int status = ask_planner(*object->contents); status != 0) return status;
  object->contents->is_final = true;
  return 0;
}

STANDIN_FUNCTION(cudnnBackendSetAttribute) {
  return set_attribute(a0, static_cast<int>(a1), static_cast<int>(a2), static_cast<std::int64_t>(a3), a4);
}

STANDIN_FUNCTION(cudnnBackendGetAttribute) {
  return get_attribute(a0, static_cast<int>(a1), static_cast<int>(a2), static_cast<std::int64_t>(a3), a4, a5);
}

STANDIN_FUNCTION(cudnnBackendExecute) { return execute(a0, a1, a2); }
STANDIN_FUNCTION(cudnnBackendPopulateCudaGraph) { return execute(a0, a1, a2); }
STANDIN_FUNCTION(cudnnBackendUpdateCudaGraph) { return execute(a0, a1, a2); }

STANDIN_FUNCTION(cudnnGetExecutionPlanWorkspaceSize) {
  if (find_object(a0) == nullptr) return kNoHandle;
  const Contents* const plan = final_contents(a1, kPlan);
  if (plan == nullptr) return kNotFinalized;
  return write(a3, static_cast<std::size_t>(graph_workspace(*plan))) ? 0 : kBadArgument;
}

}  // namespace standins::cudnn
