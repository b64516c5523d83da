// One device, as the core sees it: addresses, physical memory, streams and events, each a call of the driver. Owns the
// use of the device's primary context and nothing else: whoever creates, reserves or records gives it back.
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

// What the driver says of an event. `kCaptured`: a capture swallowed its last record, so it tells nothing.
enum class EventStatus { kReached, kPending, kCaptured };

// All calls may be made from any thread, with any context current or none. They throw DriverError.
//
// A stream handle may be passed only while the stream is known to live: with a destroyed one the driver's behaviour is
// undefined. Who knows that is streams.hpp.
class Device {
 public:
  // Starts this device's context and no other.
  Device(std::shared_ptr<const Driver> driver, int number);

  const std::shared_ptr<const Driver>& driver() const { return driver_; }
  int number() const { return number_; }
  std::uint64_t total() const { return total_; }
  // Asks the driver, which takes some 10 us, and was seen to take 8 ms. Not counted among the calls.
  std::uint64_t free() const;
  bool virtual_memory() const { return granule_ != 0; }
  std::uint64_t granule() const { return granule_; }  // 0 without virtual memory
  // Calls of the driver so far, through this object; questions about devices and free memory are not counted.
  std::uint64_t calls() const { return calls_; }

  bool has_rdma() const { return rdma_; }                   // as it says
  const std::vector<int>& peers() const { return peers_; }  // that can be given access to its memory

  // Nothing when the device is out of memory.
  std::optional<std::uint64_t> allocate(std::uint64_t size) const;
  void deallocate(std::uint64_t address) const;

  std::uint64_t reserve_addresses(std::uint64_t size) const;
  void free_addresses(std::uint64_t address, std::uint64_t size) const;
  // Nothing when the device is out of memory. `for_rdma`: network cards may be given the memory.
  std::optional<cu::MemHandle> create(std::uint64_t size, bool for_rdma) const;
  void release(cu::MemHandle handle) const;
  // False when the device, or the host's room for mappings, is out of memory.
  bool map(std::uint64_t address, std::uint64_t size, cu::MemHandle handle) const;
  // For the device itself and others.
  bool set_access(std::uint64_t address, std::uint64_t size, const std::vector<int>& peers) const;
  void unmap(std::uint64_t address, std::uint64_t size) const;

  cu::Stream new_stream() const;
  void delete_stream(cu::Stream stream) const;
  cu::Context context() const { return context_.get(); }
  // Null where the driver cannot be asked.
  cu::Context context_of(cu::Stream stream) const;
  // The primary context of the device that a context is on, if it is that one; null if it is another.
  std::shared_ptr<const PrimaryContext> primary(cu::Context context) const;
  // A number that no other stream ever has; nothing before CUDA 12.
  std::optional<std::uint64_t> stream_id(cu::Stream stream) const;
  bool is_blocking(cu::Stream stream) const;

  // Events belong to a context, and are recorded in streams of that one.
  cu::Event new_event(cu::Context context) const;
  void delete_event(cu::Event event) const;
  // False when a capture does not allow it.
  bool record(cu::Event event, cu::Stream stream) const;
  // An event after all work of a context, whatever its streams. False when a capture does not allow it, which the
  // capture does not survive.
  bool can_record_context() const { return driver_->functions().cuCtxRecordEvent != nullptr; }
  bool record_context(cu::Event event, cu::Context context) const;
  // False when a capture does not allow it.
  bool wait(cu::Stream stream, cu::Event event) const;
  EventStatus query(cu::Event event) const;
  void synchronize(cu::Event event) const;
  // Waits for all work of a context. False when a capture does not allow it, which the capture does not survive.
  bool synchronize(cu::Context context) const;
  bool synchronize() const { return synchronize(context_.get()); }
  // The same for the primary contexts of all other devices that are in use: their work may reach this memory.
  bool synchronize_others() const;
  // True of the legacy stream while a blocking stream of its context is being captured.
  bool is_capturing(cu::Stream stream) const;
  // The number of the capture of a stream, not the legacy one, which no other capture has; nothing if there is none. Another
  // one each time where the driver cannot tell.
  std::optional<std::uint64_t> capture_of(cu::Stream stream) const;
  // Whether memory can be taken while another stream is being captured, within a Relaxed.
  bool can_relax() const { return driver_->functions().cuThreadExchangeStreamCaptureMode != nullptr; }

  void copy_to_host(void* to, std::uint64_t from, std::uint64_t size) const;
  void copy_from_host(std::uint64_t to, const void* from, std::uint64_t size) const;

 private:
  friend class Relaxed;
  bool has_room(cu::Result result, const char* call) const;
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

// While it lives, this thread's calls do not spoil captures that other streams or threads have under way, where the
// driver can be told so. To be used where no captured work depends on what the calls do. Throws if the driver refuses.
class Relaxed {
 public:
  explicit Relaxed(const Device& device);
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cu::Result exchange() { return device_.driver_->functions().cuThreadExchangeStreamCaptureMode(&mode_); }

  const Device& device_;
  cu::CaptureMode mode_ = cu::CaptureMode::kRelaxed;
};

}  // namespace arena
