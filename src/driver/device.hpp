// One device, as the core sees it: addresses, physical memory, streams and events, each a driver call. Owns a reference
// to the device's primary context and nothing else: callers release what they create or reserve.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "abi/types.hpp"
#include "driver/context.hpp"
#include "driver/driver.hpp"

namespace arena {

// `kCaptured`: the event was last recorded inside a capture, so its status is unknown.
enum class EventStatus { kReached, kPending, kCaptured };

// All calls may be made from any thread, with any context current or none. They throw DriverError.
//
// A stream handle may be passed only while the stream is known to be alive: with a destroyed one the driver's behaviour
// is undefined. streams.hpp keeps track of that.
class Device {
 public:
  // Starts this device's context and no other.
  Device(std::shared_ptr<const Driver> driver, int number);

  const std::shared_ptr<const Driver>& driver() const { return driver_; }
  int number() const { return number_; }
  std::uint64_t total() const { return total_; }
  // Asks the driver, which takes about 10 us and has been seen to take 8 ms. Not counted in calls().
  std::uint64_t free() const;
  bool virtual_memory() const { return granule_ != 0; }
  std::uint64_t granule() const { return granule_; }  // 0 without virtual memory
  // Driver calls made through this object so far, without queries about devices and free memory.
  std::uint64_t calls() const { return calls_; }

  bool has_rdma() const { return rdma_; }                   // what the device claims
  const std::vector<int>& peers() const { return peers_; }  // devices that can be given access to its memory

  // nullopt when the device is out of memory.
  std::optional<std::uint64_t> allocate(std::uint64_t size) const;
  void deallocate(std::uint64_t address) const;

  std::uint64_t reserve_addresses(std::uint64_t size) const;
  void free_addresses(std::uint64_t address, std::uint64_t size) const;
  // nullopt when the device is out of memory. `for_rdma`: network cards can access the memory.
  std::optional<cu::MemHandle> create(std::uint64_t size, bool for_rdma) const;
  void release(cu::MemHandle handle) const;
  // False when the device is out of memory, or the host out of mappings.
  bool map(std::uint64_t address, std::uint64_t size, cu::MemHandle handle) const;
  // For the device itself and `peers`.
  bool set_access(std::uint64_t address, std::uint64_t size, const std::vector<int>& peers) const;
  void unmap(std::uint64_t address, std::uint64_t size) const;

  cu::Stream new_stream() const;
  void delete_stream(cu::Stream stream) const;
  cu::Context context() const { return context_.get(); }
  // Null if the driver has no cuStreamGetCtx.
  cu::Context context_of(cu::Stream stream) const;
  // A reference to `context` if it is its device's primary context; otherwise null.
  std::shared_ptr<const PrimaryContext> primary(cu::Context context) const;
  // A number that is never reused for another stream; nullopt before CUDA 12.
  std::optional<std::uint64_t> stream_id(cu::Stream stream) const;
  bool is_blocking(cu::Stream stream) const;

  // An event belongs to a context, and can be recorded only in streams of that context.
  cu::Event new_event(cu::Context context) const;
  void delete_event(cu::Event event) const;
  // False when a capture does not allow it.
  bool record(cu::Event event, cu::Stream stream) const;
  // Records an event after all work in all streams of a context. False when a capture does not allow it; that
  // invalidates the capture.
  bool can_record_context() const { return driver_->functions().cuCtxRecordEvent != nullptr; }
  bool record_context(cu::Event event, cu::Context context) const;
  // False when a capture does not allow it.
  bool wait(cu::Stream stream, cu::Event event) const;
  EventStatus query(cu::Event event) const;
  void synchronize(cu::Event event) const;
  // Waits for all work of a context. False when a capture does not allow it; that invalidates the capture.
  bool synchronize(cu::Context context) const;
  bool synchronize() const { return synchronize(context_.get()); }
  // The active primary contexts of all other devices: their work may access this memory.
  std::vector<std::unique_ptr<const PrimaryContext>> active_others() const;
  // Waits for all work of those.
  bool synchronize_others() const;
  // Also true of the legacy stream while a blocking stream of its context is being captured.
  bool is_capturing(cu::Stream stream) const;
  // The unique id of the capture that a stream is in; nullopt if there is none. Not for the legacy stream. A driver
  // without cuStreamGetCaptureInfo gets a new id with every call.
  std::optional<std::uint64_t> capture_of(cu::Stream stream) const;
  // Whether memory can be allocated while another stream is being captured, under a RelaxedCapture.
  bool can_relax() const { return driver_->functions().cuThreadExchangeStreamCaptureMode != nullptr; }

  // Copies to another device, with peer access or without it, in the order of a stream. `to` is that device's memory. Any error is
  // the caller's to report; kNotSupported if the driver is too old.
  cu::Result copy_to_peer(const Device& other, std::uint64_t to, std::uint64_t from, std::uint64_t size,
                          cu::Stream stream) const;
  void copy_to_host(void* to, std::uint64_t from, std::uint64_t size) const;
  void copy_from_host(std::uint64_t to, const void* from, std::uint64_t size) const;

 private:
  friend class RelaxedCapture;
  bool has_room(cu::Result result, const char* call) const;
  template <typename Query>
  cu::Result ask_about_stream(const Query& query) const;
  bool is_capturing_here(cu::Stream stream) const;  // in the current context
  // Whether blocking streams of another device's context are being captured.
  bool has_captures(cu::Context context) const;
  const Functions& count() const {
    ++calls_;
    return driver_->functions();
  }

  std::shared_ptr<const Driver> driver_;
  int number_;
  PrimaryContext context_;
  std::uint64_t total_ = 0;
  std::uint64_t granule_ = 0;
  bool rdma_ = false;
  std::vector<int> peers_;
  mutable std::atomic<std::uint64_t> calls_{0};
};

// While it lives, this thread's calls do not invalidate captures in progress in other streams or threads, if the driver
// supports that (can_relax). Use it where no captured work depends on the calls. Throws if the driver refuses.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Device& device);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cu::Result exchange() { return device_.driver_->functions().cuThreadExchangeStreamCaptureMode(&mode_); }

  const Device& device_;
  cu::CaptureMode mode_ = cu::CaptureMode::kRelaxed;
};

}  // namespace arena
