// Encoding and decoding of traces: round trips, malformed input, and threads that share a recorder.
#include "trace/trace.hpp"

#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "native/check.hpp"
#include "trace/pickles.hpp"
#include "trace/recorder.hpp"

namespace arena {
namespace {

bool operator==(const TraceEvent& a, const TraceEvent& b) {
  return a.kind == b.kind && a.thread == b.thread && a.stream == b.stream && a.line == b.line && a.time == b.time &&
         a.block == b.block && a.size == b.size;
}

TraceEvent some_event(std::mt19937& chance, std::uint64_t& next_block) {
  using enum EventKind;
  TraceEvent event;
  event.kind = static_cast<EventKind>(1 + chance() % 11);
  event.thread = chance() % 3;
  event.time = std::uint64_t{chance()} << (chance() % 32);
  const bool has_block = event.kind == kFree || event.kind == kRecordStream;
  if (names_stream(event.kind)) event.stream = chance() % 200;
  if (event.kind == kAllocate || event.kind == kFailure) event.line = chance() % 2 == 0 ? 0 : chance();
  if (has_block) event.block = next_block == 0 ? 0 : chance() % next_block;
  if (event.kind == kScopeBegin || event.kind == kScopeEnd) event.block = chance() % 5;
  if (event.kind == kAllocate) event.block = chance() % 50 == 0 ? next_block += 1000 : next_block;
  if (event.kind == kAllocate) ++next_block;
  if (!has_block && event.kind != kScopeEnd && event.kind != kTrim && event.kind != kCompact) {
    event.size = std::uint64_t{chance()} << (chance() % 33);
  }
  return event;
}

TEST(a_trace_is_read_as_it_was_written) {
  std::mt19937 chance(5);
  Trace trace;
  std::uint64_t next_block = 0;
  for (int i = 0; i < 50'000; ++i) trace.add(some_event(chance, next_block));
  Encoder encoder;
  Trace again;
  int chunks = 0;
  while (encoder.events() < trace.events().size()) {
    const Chunk chunk = trace.encode(encoder, encoder.events());
    CHECK(chunk.events > 0 && chunk.first_event == again.events().size());
    again.add_chunk(chunk.next_block, chunk.time, chunk.bytes.data(), chunk.bytes.size());
    ++chunks;
  }
  CHECK(chunks > 1 && again.events().size() == trace.events().size());
  for (std::size_t i = 0; i < trace.events().size(); ++i) CHECK(again.events()[i] == trace.events()[i]);
}

TEST(packed_events_are_lossless) {
  std::mt19937_64 chance(6);
  const std::uint64_t highest[] = {0, 1, 0xff, 0x100, 0xffff, 0x10000, 0xffffffff, 0x100000000, ~std::uint64_t{0}};
  std::vector<TraceEvent> events;
  EventStore store;
  for (std::size_t i = 0; i < 30'000; ++i) {
    // The range of values changes from page to page, and so does the width of every column.
    const auto number = [&](std::size_t field) {
      const std::uint64_t most = highest[(i / 4096 + field) % std::size(highest)];
      return most == ~std::uint64_t{0} ? chance() : chance() % (most + 1);
    };
    const auto small = [&](std::size_t field) { return static_cast<std::uint32_t>(number(field)); };
    events.push_back({.kind = static_cast<EventKind>(1 + number(0) % 11),
                      .thread = small(1),
                      .stream = small(2),
                      .line = small(3),
                      .time = number(4),
                      .block = number(5),
                      .size = number(6)});
    store.push_back(events.back());
  }
  CHECK(store.size() == events.size());
  std::size_t at = 0;
  for (const TraceEvent event : store) CHECK(event == events[at++]);
  CHECK(at == events.size() && store.at(29'999) == events.back());
}

// The format requires that every chunk describes its own streams.
TEST(the_streams_of_a_chunk_are_known_without_earlier_chunks) {
  Trace trace;
  trace.set_handle(0, 100);
  trace.set_handle(1, 200);
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    trace.add({.kind = EventKind::kAllocate,
               .stream = static_cast<std::uint32_t>(i % 2),
               .time = i,
               .block = i,
               .size = 512});
  }
  Encoder encoder;
  int chunks = 0;
  for (; encoder.events() < trace.events().size(); ++chunks) {
    const Chunk chunk = trace.encode(encoder, encoder.events());
    Trace alone;
    alone.add_chunk(chunk.next_block, chunk.time, chunk.bytes.data(), chunk.bytes.size());
    CHECK(alone.handle_of(0) == 100 && alone.handle_of(1) == 200);
  }
  CHECK(chunks > 1);
}

// Changing any byte gives another trace, or an error that says where; never more events than the bytes can hold.
TEST(a_corrupt_chunk_is_read_or_refused) {
  std::mt19937 chance(6);
  Trace trace;
  std::uint64_t next_block = 0;
  for (int i = 0; i < 300; ++i) trace.add(some_event(chance, next_block));
  Encoder encoder;
  const Chunk chunk = trace.encode(encoder, 0);
  int refused = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::vector<std::uint8_t> bytes = chunk.bytes;
    for (unsigned i = 0; i <= chance() % 4; ++i) bytes[chance() % bytes.size()] = static_cast<std::uint8_t>(chance());
    bytes.resize(chance() % 2 == 0 ? bytes.size() : chance() % bytes.size());
    Trace read;
    try {
      read.add_chunk(chunk.next_block, chunk.time, bytes.data(), bytes.size());
    } catch (const TraceError&) {
      ++refused;
    }
    CHECK(read.events().size() <= bytes.size());
    CHECK(read.streams() <= 1u << 20);
  }
  CHECK(refused > 100);
}

TEST(the_name_of_a_scope_must_be_utf8) {
  const auto read = [](const std::string& name) {
    const std::string bytes = std::string("\x0a\x00\x01\x00", 4) + static_cast<char>(name.size()) + name;
    Trace trace;
    trace.add_chunk(0, 0, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    return trace.scope_name(1);
  };
  for (const char* name : {"", "step", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) CHECK(read(name) == name);
  for (const char* name :
       {"\xff", "\xc0\x80", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xf0\x80\x80\x80"}) {
    CHECK_THROWS(TraceError, read(name));
  }
}

TEST(a_pickle_with_a_length_beyond_its_end_is_refused) {
  const auto check = [](const std::string& text) {
    check_pickle(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  check("\x80\x02}q\x01.");
  for (const char* bad :
       {"", "\x80", "}", "\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "T\xff\xff\xff\x7f.", "r\xff\xff\xff\x7f.",
        "p99999999999999999999\n.", "\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", "\xff."}) {
    CHECK_THROWS(TraceError, check(bad));
  }
}

TEST(threads_record_into_one_recorder) {
  constexpr int kThreads = 3, kEvents = 20'000;
  Recorder recorder;
  Trace trace;
  std::thread reader([&] {
    while (const auto chunk = recorder.next(std::chrono::milliseconds(200))) {
      CHECK(chunk->first_event == trace.events().size());
      trace.add_chunk(chunk->next_block, chunk->time, chunk->bytes.data(), chunk->bytes.size());
    }
  });
  std::atomic<std::uint64_t> blocks = 0;
  std::mutex arena;  // an arena emits one event at a time
  std::vector<std::thread> writers;
  for (int thread = 0; thread < kThreads; ++thread) {
    writers.emplace_back([&, thread] {
      for (int i = 0; i < kEvents; ++i) {
        const std::lock_guard held(arena);
        const std::uint64_t block = blocks++;
        recorder.on_event({.kind = EventKind::kAllocate,
                           .block = block,
                           .size = 512,
                           .stream = static_cast<StreamIndex>(thread),
                           .cu_stream = 7,
                           .line = 3});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(recorder.events() == kThreads * kEvents && !recorder.overflowed());
  recorder.end();
  reader.join();
  CHECK(trace.events().size() == kThreads * kEvents);
  for (std::size_t i = 0; i < trace.events().size(); ++i) CHECK(trace.events()[i].block == i);
}

TEST(a_recording_whose_chunks_are_not_taken_ends_by_itself) {
  Recorder recorder;
  const std::string name(1 << 18, 'x');
  for (std::uint64_t i = 0; i < 300; ++i) {
    recorder.on_event({.kind = EventKind::kScopeBegin, .scope = i, .name = name});
  }
  CHECK(recorder.overflowed() && recorder.events() < 300);
  int chunks = 0;
  while (recorder.next(std::chrono::milliseconds(0))) ++chunks;
  CHECK(chunks >= 256);
}

}  // namespace
}  // namespace arena
