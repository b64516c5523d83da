#include "standins/common/driver.hpp"

#include <dlfcn.h>

namespace standins {

void* driver_function(const char* name) {
  // Not kept: a program may open its driver later than the first call here.
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  void* const function = dlsym(driver, name);
  dlclose(driver);
  return function;
}

int device_attribute(int number) {
  using Get = int (*)(int* value, int attribute, int device);
  const auto get = driver_function<Get>("cuDeviceGetAttribute");
  int value = 0;
  return get != nullptr && get(&value, number, 0) == 0 ? value : 0;
}

int compute_capability() { return device_attribute(75) * 10 + device_attribute(76); }

bool clear_device_ints(const Object& handle, Word address, std::int64_t count) {
  if (address == 0 || count <= 0) return true;
  using Memset = int (*)(std::uint64_t pointer, unsigned char value, std::size_t bytes, void* stream);
  const auto memset = driver_function<Memset>("cuMemsetD8Async");
  if (memset == nullptr) return true;
  void* const stream = reinterpret_cast<void*>(handle.get(Key::kStream));
  return memset(address, 0, static_cast<std::size_t>(count) * sizeof(int), stream) == 0;
}

}  // namespace standins
