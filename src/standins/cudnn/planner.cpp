// A graph is rebuilt, attribute by attribute, of descriptors of the real cuDNN, each made once and kept with ours.
#include "standins/cudnn/planner.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "standins/cudnn/cudnn.hpp"

namespace standins::cudnn {

// A descriptor of the real cuDNN, and those that it was made of.
struct Planned {
  void* descriptor = nullptr;
  std::vector<PlannedRef> parts;
  int (*destroy)(void*) = nullptr;

  ~Planned() {
    if (descriptor != nullptr) destroy(descriptor);
  }
};

namespace {

constexpr int kDeviceProperties = 38;  // CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR
constexpr int kHeuristicsDevice = 204, kPlanDevice = 407, kPropertiesText = 2702;
constexpr std::int64_t kMostNotes = 64;

struct Functions {
  int (*create)(int type, void** descriptor) = nullptr;
  int (*destroy)(void* descriptor) = nullptr;
  int (*finalize)(void* descriptor) = nullptr;
  int (*set)(void* descriptor, int name, int type, std::int64_t count, const void* elements) = nullptr;
  int (*get)(void* descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
             void* elements) = nullptr;
};

template <class Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// In a namespace of its own, where it finds neither our libraries nor the simulated driver, which it would look for
// functions that ours do not have.
bool load(Functions& real) {
  const char* const path = std::getenv("CUDASIM_WORKSPACE_CUDNN_LIBRARY");
  if (path == nullptr || *path == '\0' || workspace_setting("CUDNN")) return false;
  void* const library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "cudasim: CUDASIM_WORKSPACE_CUDNN_LIBRARY: %s. Workspaces of cuDNN are estimated instead.\n",
                 dlerror());
    return false;
  }
  return load(library, "cudnnBackendCreateDescriptor", real.create) &&
         load(library, "cudnnBackendDestroyDescriptor", real.destroy) &&
         load(library, "cudnnBackendFinalize", real.finalize) && load(library, "cudnnBackendSetAttribute", real.set) &&
         load(library, "cudnnBackendGetAttribute", real.get);
}

// The properties of the simulated device as cuDNN writes them down. The numbers are those of CUdevice_attribute.
std::string properties() {
  using Name = int (*)(char* name, int size, int device);
  using Memory = int (*)(std::size_t* bytes, int device);
  using Version = int (*)(int* version);
  const auto name_of = driver_function<Name>("cuDeviceGetName");
  const auto memory_of = driver_function<Memory>("cuDeviceTotalMem_v2");
  const auto version_of = driver_function<Version>("cuDriverGetVersion");
  char name[256] = "";
  std::size_t memory = 0;
  int version = 0;
  if (name_of == nullptr || memory_of == nullptr || version_of == nullptr) return "";
  if (name_of(name, sizeof name, 0) != 0 || memory_of(&memory, 0) != 0 || version_of(&version) != 0) return "";
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    text += (text.empty() ? "{\"" : ", \"") + std::string(key) + "\": " + value;
  };
  const auto number = [](int attribute) { return std::to_string(device_attribute(attribute)); };
  add("deviceName", '"' + std::string(name) + '"');
  add("cudaDeviceId", "0");
  add("deviceVer", std::to_string(compute_capability() * 10));
  add("driverVer", std::to_string(version));
  add("maxGridSize", "[" + number(5) + ", " + number(6) + ", " + number(7) + "]");
  add("maxBlockSize", "[" + number(2) + ", " + number(3) + ", " + number(4) + "]");
  add("regsPerBlock", number(12));
  add("multiProcessorCount", number(16));
  add("smClockRateKHz", number(13));
  add("memClockRateKHz", number(36));
  add("memoryBusWidth", number(37));
  add("l2CacheSize", number(38));
  add("warpSize", number(10));
  add("maxSharedMemoryPerBlock", number(8));
  add("maxSharedMemoryPerBlockOptin", number(97));
  add("reservedSharedMemoryPerBlock", number(111));
  add("oversizedSharedMemoryPerBlock", "0");
  add("sharedMemPerMultiprocessor", number(81));
  add("maxRegistersPerSM", number(82));
  add("maxCtasPerSM", number(106));
  add("maxThreadsPerBlock", number(1));
  add("maxThreadsPerSM", number(39));
  add("pciDeviceId", number(34));
  add("isTccDriver", number(35));
  add("supportCoopLaunch", number(95));
  add("totalGlobalMem", std::to_string(memory));
  return text + "}";
}

// The real cuDNN and the device it plans for. All calls are made with its mutex held.
class Planner {
 public:
  static Planner* find() {
    static Planner* const only = [] {
      auto* const planner = new Planner;
      return planner->device_ != nullptr ? planner : nullptr;
    }();
    return only;
  }

  std::mutex mutex;

  PlannedRef make(int type) const {
    auto made = std::make_shared<Planned>();
    made->destroy = real_.destroy;
    return real_.create(type, &made->descriptor) == 0 ? made : nullptr;
  }

  // The same descriptor of the real cuDNN, without the handle; for the device, if `device` is the name it is set under.
  PlannedRef rebuild(const Contents& contents, int device = 0) const {
    if (contents.planned != nullptr) return contents.planned;
    PlannedRef made = make(contents.type);
    if (made == nullptr) return nullptr;
    for (const auto& [name, attribute] : contents.attributes) {
      if (attribute.type == kTypeHandle) continue;
      if (!set(*made, name, attribute)) return nullptr;
    }
    if (device != 0 && real_.set(made->descriptor, device, kTypeDescriptor, 1, &device_->descriptor) != 0)
      return nullptr;
    if (real_.finalize(made->descriptor) != 0) return nullptr;
    contents.planned = made;
    return made;
  }

  std::int64_t count(const Planned& planned, int name, int type) const {
    std::int64_t found = 0;
    return real_.get(planned.descriptor, name, type, 0, &found, nullptr) == 0 ? found : 0;
  }

  bool get(const Planned& planned, int name, int type, std::int64_t requested, std::int64_t& found,
           void* elements) const {
    return real_.get(planned.descriptor, name, type, requested, &found, elements) == 0;
  }

 private:
  Planner() {
    const std::string text = load(real_) ? properties() : "";
    if (text.empty()) return;
    PlannedRef made = make(kDeviceProperties);
    if (made == nullptr) return;
    const auto size = static_cast<std::int64_t>(text.size());
    if (real_.set(made->descriptor, kPropertiesText, kTypeChar, size, text.data()) != 0) return;
    if (real_.finalize(made->descriptor) == 0) device_ = std::move(made);
  }

  bool set(Planned& planned, int name, const Attribute& attribute) const {
    std::vector<void*> children;
    for (const ContentsRef& child : attribute.children) {
      PlannedRef part = rebuild(*child);
      if (part == nullptr) return false;
      children.push_back(part->descriptor);
      planned.parts.push_back(std::move(part));
    }
    const void* const elements =
        attribute.type == kTypeDescriptor ? static_cast<const void*>(children.data()) : attribute.bytes.data();
    return real_.set(planned.descriptor, name, attribute.type, attribute.count, elements) == 0;
  }

  Functions real_;
  PlannedRef device_;
};

Attribute child(ContentsRef contents) {
  return {.type = kTypeDescriptor, .count = 1, .bytes = {}, .children = {std::move(contents)}};
}

// An attribute of numbers as the real descriptor has it: up to `most`, each of type T. False if it has none.
template <class T>
bool copy(const Planner& planner, const Planned& from, Contents& to, int name, int type, std::int64_t most) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(most) * sizeof(T));
  std::int64_t found = 0;
  if (!planner.get(from, name, type, most, found, bytes.data())) return false;
  found = std::min(found, most);
  bytes.resize(static_cast<std::size_t>(found) * sizeof(T));
  to.attributes[name] = {.type = type, .count = found, .bytes = std::move(bytes), .children = {}};
  return true;
}

ContentsRef configuration(const Planner& planner, PlannedRef planned, const ContentsRef& graph) {
  auto engine = std::make_shared<Contents>();
  engine->type = kEngine;
  engine->is_final = true;
  engine->planned = planner.make(kEngine);
  std::int64_t found = 0;
  if (engine->planned == nullptr ||
      !planner.get(*planned, kConfigEngine, kTypeDescriptor, 1, found, &engine->planned->descriptor) || found != 1) {
    return nullptr;
  }
  if (!copy<std::int64_t>(planner, *engine->planned, *engine, kEngineIndex, kTypeInt64, 1) ||
      !copy<int>(planner, *engine->planned, *engine, kEngineNumericalNotes, kTypeNumericalNote, kMostNotes) ||
      !copy<int>(planner, *engine->planned, *engine, kEngineBehaviorNotes, kTypeBehaviorNote, kMostNotes)) {
    return nullptr;
  }
  engine->attributes[kEngineGraph] = child(graph);
  auto made = std::make_shared<Contents>();
  made->type = kEngineConfig;
  made->is_final = true;
  made->planned = std::move(planned);
  made->attributes[kConfigEngine] = child(std::move(engine));
  return made;
}

// The configurations of a graph, best first.
void configure(const Planner& planner, Contents& heuristics) {
  const ContentsRef graph = heuristics.child(kHeuristicsGraph);
  const PlannedRef planned = graph == nullptr ? nullptr : planner.rebuild(heuristics, kHeuristicsDevice);
  if (planned == nullptr) return;
  const std::int64_t count = planner.count(*planned, kHeuristicsResults, kTypeDescriptor);
  std::vector<PlannedRef> results;
  std::vector<void*> descriptors;
  for (std::int64_t i = 0; i < count; ++i) {
    results.push_back(planner.make(kEngineConfig));
    if (results.back() == nullptr) return;
    descriptors.push_back(results.back()->descriptor);
  }
  std::int64_t found = 0;
  if (count == 0 || !planner.get(*planned, kHeuristicsResults, kTypeDescriptor, count, found, descriptors.data())) {
    return;
  }
  Attribute answer{.type = kTypeDescriptor, .count = 0, .bytes = {}, .children = {}};
  for (std::int64_t i = 0; i < std::min(found, count); ++i) {
    ContentsRef one = configuration(planner, std::move(results[static_cast<std::size_t>(i)]), graph);
    if (one != nullptr) answer.children.push_back(std::move(one));
  }
  answer.count = static_cast<std::int64_t>(answer.children.size());
  if (answer.count > 0) heuristics.attributes[kHeuristicsResults] = std::move(answer);
}

int plan(const Planner& planner, Contents& contents) {
  const ContentsRef configuration = contents.child(kPlanConfig);
  if (configuration == nullptr || configuration->planned == nullptr) return 0;
  const PlannedRef planned = planner.rebuild(contents, kPlanDevice);
  const bool is_known =
      planned != nullptr && copy<std::int64_t>(planner, *planned, contents, kPlanWorkspace, kTypeInt64, 1);
  return is_known ? 0 : kNotSupported;
}

}  // namespace

int ask_planner(Contents& contents) {
  if (contents.type != kHeuristics && contents.type != kPlan) return 0;
  Planner* const planner = Planner::find();
  if (planner == nullptr) return 0;
  const std::lock_guard lock(planner->mutex);
  if (contents.type == kPlan) return plan(*planner, contents);
  configure(*planner, contents);
  return 0;
}

}  // namespace standins::cudnn
