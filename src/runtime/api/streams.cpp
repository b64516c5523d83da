// Streams and events.
#include "runtime/exports.hpp"
#include "runtime/state.hpp"

using namespace cudart;

namespace {

Error create(rt::Stream* stream, unsigned flags, int priority) {
  return with_context([&](const Driver& driver) { return driver.cuStreamCreateWithPriority(stream, flags, priority); });
}

// Runs a function of the driver on a stream, with null as the caller means it.
template <typename Body>
Error on_stream(rt::Stream stream, const Body& body) {
  return with_context([&](const Driver& driver) { return body(driver, stream_for(stream)); });
}

}  // namespace

CUDART_EXPORT Error cudaStreamCreate(rt::Stream* stream) { return create(stream, 0, 0); }

CUDART_EXPORT Error cudaStreamCreateWithFlags(rt::Stream* stream, unsigned flags) { return create(stream, flags, 0); }

CUDART_EXPORT Error cudaStreamCreateWithPriority(rt::Stream* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}

CUDART_EXPORT Error cudaStreamDestroy(rt::Stream stream) {
  return with_context([&](const Driver& driver) {
    return stream == nullptr ? cu::Result::kInvalidHandle : driver.cuStreamDestroy_v2(stream);
  });
}

CUDART_EXPORT Error cudaStreamQuery(rt::Stream stream) {
  return on_stream(stream, [](const Driver& driver, rt::Stream s) { return driver.cuStreamQuery(s); });
}

CUDART_EXPORT Error cudaStreamSynchronize(rt::Stream stream) {
  return on_stream(stream, [](const Driver& driver, rt::Stream s) { return driver.cuStreamSynchronize(s); });
}

CUDART_EXPORT Error cudaStreamWaitEvent(rt::Stream stream, rt::Event event, unsigned flags) {
  return on_stream(stream,
                   [&](const Driver& driver, rt::Stream s) { return driver.cuStreamWaitEvent(s, event, flags); });
}

// The status that a callback gets has the same number in both interfaces.
CUDART_EXPORT Error cudaStreamAddCallback(rt::Stream stream, rt::StreamCallback callback, void* data, unsigned flags) {
  return on_stream(
      stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamAddCallback(s, callback, data, flags); });
}

CUDART_EXPORT Error cudaLaunchHostFunc(rt::Stream stream, rt::HostFunction function, void* data) {
  return on_stream(stream,
                   [&](const Driver& driver, rt::Stream s) { return driver.cuLaunchHostFunc(s, function, data); });
}

CUDART_EXPORT Error cudaStreamGetPriority(rt::Stream stream, int* priority) {
  return on_stream(stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamGetPriority(s, priority); });
}

CUDART_EXPORT Error cudaStreamGetFlags(rt::Stream stream, unsigned* flags) {
  return on_stream(stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamGetFlags(s, flags); });
}

CUDART_EXPORT Error cudaStreamGetId(rt::Stream stream, unsigned long long* id) {
  return on_stream(stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamGetId(s, id); });
}

CUDART_EXPORT Error cudaStreamGetDevice(rt::Stream stream, int* device) {
  return on_stream(stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamGetDevice(s, device); });
}

CUDART_EXPORT Error cudaStreamAttachMemAsync(rt::Stream stream, void* ptr, std::size_t size, unsigned flags) {
  return on_stream(stream, [&](const Driver& driver, rt::Stream s) {
    return driver.cuStreamAttachMemAsync(s, device_ptr(ptr), size, flags);
  });
}

CUDART_EXPORT Error cudaStreamCopyAttributes(rt::Stream dst, rt::Stream src) {
  return on_stream(
      dst, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamCopyAttributes(s, stream_for(src)); });
}

CUDART_EXPORT Error cudaStreamGetAttribute(rt::Stream stream, unsigned attribute, void* value) {
  return on_stream(
      stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamGetAttribute(s, attribute, value); });
}

CUDART_EXPORT Error cudaStreamSetAttribute(rt::Stream stream, unsigned attribute, const void* value) {
  return on_stream(
      stream, [&](const Driver& driver, rt::Stream s) { return driver.cuStreamSetAttribute(s, attribute, value); });
}

CUDART_EXPORT Error cudaEventCreate(rt::Event* event) { return cudaEventCreateWithFlags(event, 0); }

CUDART_EXPORT Error cudaEventCreateWithFlags(rt::Event* event, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuEventCreate(event, flags); });
}

CUDART_EXPORT Error cudaEventDestroy(rt::Event event) {
  return with_context([&](const Driver& driver) { return driver.cuEventDestroy_v2(event); });
}

CUDART_EXPORT Error cudaEventRecord(rt::Event event, rt::Stream stream) {
  return on_stream(stream, [&](const Driver& driver, rt::Stream s) { return driver.cuEventRecord(event, s); });
}

CUDART_EXPORT Error cudaEventRecordWithFlags(rt::Event event, rt::Stream stream, unsigned flags) {
  return on_stream(stream,
                   [&](const Driver& driver, rt::Stream s) { return driver.cuEventRecordWithFlags(event, s, flags); });
}

CUDART_EXPORT Error cudaEventQuery(rt::Event event) {
  return with_context([&](const Driver& driver) { return driver.cuEventQuery(event); });
}

CUDART_EXPORT Error cudaEventSynchronize(rt::Event event) {
  return with_context([&](const Driver& driver) { return driver.cuEventSynchronize(event); });
}

CUDART_EXPORT Error cudaEventElapsedTime(float* milliseconds, rt::Event start, rt::Event end) {
  return with_context([&](const Driver& driver) { return driver.cuEventElapsedTime(milliseconds, start, end); });
}

#if CUDART_MAJOR < 13
CUDART_EXPORT Error cudaEventElapsedTime_v2(float* milliseconds, rt::Event start, rt::Event end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}
#endif
