// Memory that is allocated and freed in stream order.
#include "runtime/exports.hpp"
#include "runtime/state.hpp"

using namespace cudart;

CUDART_EXPORT Error cudaMallocAsync(void** ptr, std::size_t size, rt::Stream stream) {
  return with_context([&](const Driver& driver) { return driver.cuMemAllocAsync(ptr, size, stream_for(stream)); });
}

CUDART_EXPORT Error cudaMallocFromPoolAsync(void** ptr, std::size_t size, rt::MemPool pool, rt::Stream stream) {
  return with_context(
      [&](const Driver& driver) { return driver.cuMemAllocFromPoolAsync(ptr, size, pool, stream_for(stream)); });
}

CUDART_EXPORT Error cudaFreeAsync(void* ptr, rt::Stream stream) {
  return with_context([&](const Driver& driver) { return driver.cuMemFreeAsync(device_ptr(ptr), stream_for(stream)); });
}

CUDART_EXPORT Error cudaMemPoolCreate(rt::MemPool* pool, const rt::MemPoolProps* properties) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolCreate(pool, properties); });
}

CUDART_EXPORT Error cudaMemPoolDestroy(rt::MemPool pool) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolDestroy(pool); });
}

CUDART_EXPORT Error cudaMemPoolGetAttribute(rt::MemPool pool, unsigned attribute, void* value) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolGetAttribute(pool, attribute, value); });
}

CUDART_EXPORT Error cudaMemPoolSetAttribute(rt::MemPool pool, unsigned attribute, void* value) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolSetAttribute(pool, attribute, value); });
}

CUDART_EXPORT Error cudaMemPoolGetAccess(unsigned* flags, rt::MemPool pool, rt::MemLocation* location) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolGetAccess(flags, pool, location); });
}

CUDART_EXPORT Error cudaMemPoolSetAccess(rt::MemPool pool, const rt::MemAccessDesc* descriptions, std::size_t count) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolSetAccess(pool, descriptions, count); });
}

CUDART_EXPORT Error cudaMemPoolTrimTo(rt::MemPool pool, std::size_t keep) {
  return with_context([&](const Driver& driver) { return driver.cuMemPoolTrimTo(pool, keep); });
}
