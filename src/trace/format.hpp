// The format of a trace's records. A file is a header and chunks (docs/trace-format.md); encoder.cpp writes the records
// of a chunk, and trace.cpp reads them.
//
//   record   kind, time, fields
//   kind     1 byte: EventKind, and bits for the optional fields
//   time     nanoseconds since the previous record, modulo 2^64: in other tools' logs, time may go backwards
//   numbers  LEB128: 7 bits per byte, lowest first; the 8th bit says that another byte follows
//
//   kAllocate      size, stream, line if kHasLine        its block number is the last one + 1
//   kFree          next block number - its block number
//   kRecordStream  next block number - its block number, stream
//   kFailure       size, stream, line if kHasLine
//   kReserved, kReserve, kSetCap  size
//   kScopeBegin    scope, budget + 1 or 0, length of its name, name in UTF-8
//   kScopeEnd      scope
//   kStreamRecord  stream, its handle (all ones: unknown)  before the stream's first use in a chunk
//
// With kHasThread, the number of the thread follows the time; otherwise the thread is the same as before.
#pragma once

#include <cstdint>

namespace arena {

inline constexpr std::uint8_t kHasThread = 0x80;
inline constexpr std::uint8_t kHasLine = 0x40;
inline constexpr std::uint8_t kKindBits = 0x3f;
inline constexpr std::uint8_t kStreamRecord = 0x3f;  // no EventKind

}  // namespace arena
