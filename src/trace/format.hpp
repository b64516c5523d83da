// The records of a trace, as bytes. A file is a header and chunks (docs/trace-format.md); what is in a chunk of events is
// written by encoder.cpp and read by trace.cpp, and both begin here.
//
//   record   kind, time, fields
//   kind     1 byte: EventKind, and bits that say which optional fields follow
//   time     nanoseconds since the record before, modulo 2^64: in the logs of others a thread may be late
//   numbers  LEB128: 7 bits a byte, the lowest first, the 8th says that another byte follows
//
//   kAllocate      size, stream, line if kHasLine        its block is the one after the block allocated last
//   kFree          how many blocks before the next one
//   kRecordStream  how many blocks before the next one, stream
//   kFailure       size, stream, line if kHasLine
//   kReserved, kReserve, kSetCap  size
//   kScopeBegin    scope, budget + 1 or 0, length of its name, name in UTF-8
//   kScopeEnd      scope
//   kStream        stream, its handle, or all ones        before its first use in a chunk; all ones: not known
//
// With kHasThread the number of the thread follows the time; without, it is the last one.
#pragma once

#include <cstdint>

namespace arena {

inline constexpr std::uint8_t kHasThread = 0x80;
inline constexpr std::uint8_t kHasLine = 0x40;
inline constexpr std::uint8_t kKindBits = 0x3f;
inline constexpr std::uint8_t kStreamRecord = 0x3f;  // no EventKind

}  // namespace arena
