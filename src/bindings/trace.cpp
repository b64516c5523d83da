// Recording and replaying for Python. Python reads and writes the files; this handles chunks of bytes.
#include "trace/trace.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/failure.hpp"
#include "bindings/lines.hpp"
#include "trace/failures.hpp"
#include "trace/pickles.hpp"
#include "trace/recorder.hpp"
#include "trace/replay.hpp"
#include "trace/rmm_rows.hpp"
#include "trace/text_rows.hpp"
#include "trace/untrusted_map.hpp"

namespace py = pybind11;

namespace arena {
namespace {

py::tuple chunk_tuple(const Chunk& chunk, const py::object& lines) {
  const py::bytes bytes(reinterpret_cast<const char*>(chunk.bytes.data()), chunk.bytes.size());
  return py::make_tuple(chunk.first_event, chunk.events, chunk.next_block, chunk.time, lines, bytes);
}

py::object next_chunk(Recorder& recorder, int milliseconds) {
  std::optional<Chunk> chunk;
  {
    const WithoutGil without_gil;
    chunk = recorder.next(std::chrono::milliseconds(milliseconds));
  }
  if (!chunk) return py::none();
  py::dict lines;
  for (const Line line : chunk->lines) {
    lines[py::int_(line)] = py::make_tuple(lines::frames(line), lines::framework_of(line));
  }
  return chunk_tuple(*chunk, lines);
}

py::tuple encode(const Trace& trace, Encoder& encoder) {
  Chunk chunk;
  {
    const WithoutGil without_gil;
    chunk = trace.encode(encoder, encoder.events());
  }
  return chunk_tuple(chunk, py::cast(chunk.lines));
}

py::tuple event_tuple(const TraceEvent& e) {
  return py::make_tuple(static_cast<int>(e.kind), e.time, e.thread, e.block, e.size, e.stream, e.line);
}

py::object misfit_of(const Replay& replay) {
  if (!replay.misfit()) return py::none();
  return py::cast(RequestFailure{.failure = replay.misfit()->failure});
}

py::list failures_of(const Trace& trace) {
  std::vector<FailedRequest> found;
  {
    const WithoutGil without_gil;
    found = find_failures(trace);
  }
  py::list rows;
  for (const FailedRequest& failed : found) {
    rows.append(py::make_tuple(failed.event, failed.live, failed.retried, failed.is_last));
  }
  return rows;
}

py::tuple peak_of(const Replay& replay) {
  const Height& peak = replay.peak();
  return py::make_tuple(peak.event, peak.time, peak.live, peak.reserved);
}

py::list origins_of(const Replay& replay, const std::vector<std::uint64_t>& addresses) {
  py::list rows;
  for (const Origin& origin : replay.origins(addresses)) rows.append(py::make_tuple(origin.time, origin.stream));
  return rows;
}

py::list samples_of(const Replay& replay) {
  py::list rows;
  for (const Sample& sample : replay.samples()) {
    rows.append(py::make_tuple(sample.event, sample.time, sample.stats));
  }
  return rows;
}

py::list steps_of(TextRows& rows) {
  py::list found;
  for (const TextRows::Step& step : rows.take_steps()) found.append(py::make_tuple(step.event, step.label));
  return found;
}

constexpr const char* kReadText =
    "Append the events of whole rows, up to the first with another layout. Returns its position, and its row number "
    "less one.";

template <class Rows>
py::tuple read_text(Rows& rows, const py::bytes& data, std::size_t at, std::uint64_t number) {
  const std::string_view text = data;
  if (at > text.size()) throw UsageError("position " + std::to_string(at) + " is beyond the end of the text");
  const TextPlace place = [&] {
    const WithoutGil without_gil;
    return rows.read(text, {at, number});
  }();
  return py::make_tuple(place.at, place.number);
}

}  // namespace

void bind_trace(py::module_& module) {
  module.def(
      "check_pickle",
      [](const py::bytes& data) {
        const std::string_view bytes = data;
        const WithoutGil without_gil;
        check_pickle(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      },
      py::arg("data"), "Refuse a pickle that is truncated, or that claims more data than it has.");
  py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder", "Records what happens in an arena.")
      .def(py::init<>())
      .def("next", &next_chunk, py::arg("milliseconds"), "The next chunk, or None; waits.")
      .def("end", &Recorder::end, "Stop recording.")
      .def("events", &Recorder::events, "Events recorded so far.")
      .def("overflowed", &Recorder::overflowed, "Whether it ended because chunks were not taken fast enough.");
  py::class_<Encoder>(module, "Encoder", "Writes events as bytes.").def(py::init<>());
  py::class_<Trace, std::shared_ptr<Trace>>(module, "Trace", "Events in order.")
      .def(py::init<Bytes>(), py::arg("room") = ~Bytes{0})
      .def(
          "add_chunk",
          [](Trace& trace, std::uint64_t next_block, std::uint64_t time, const py::bytes& data) {
            const std::string_view bytes = data;
            const WithoutGil without_gil;
            trace.add_chunk(next_block, time, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
          },
          py::arg("next_block"), py::arg("time"), py::arg("data"), "Append the events of a chunk.")
      .def(
          "add",
          [](Trace& trace, int kind, std::uint64_t time, std::uint32_t thread, std::uint64_t block, Bytes size,
             std::uint32_t stream, Line line) {
            trace.add({.kind = static_cast<EventKind>(kind),
                       .thread = thread,
                       .stream = stream,
                       .line = line,
                       .time = time,
                       .block = block,
                       .size = size});
            trace.set_streams(stream + 1);
          },
          py::arg("kind"), py::arg("time"), py::arg("thread"), py::arg("block"), py::arg("size"), py::arg("stream"),
          py::arg("line"), "Append an event.")
      .def("__len__", [](const Trace& trace) { return trace.events().size(); })
      .def(
          "event", [](const Trace& trace, std::size_t index) { return event_tuple(trace.events().at(index)); },
          py::arg("index"), "An event, as a tuple.")
      .def("failures", &failures_of,
           "(event, live bytes, whether it was retried, whether nothing was allocated after it) of failed requests.")
      .def("encode", &encode, py::arg("encoder"), "The next chunk of events, with the numbers of its new lines.")
      .def("set_handle", &Trace::set_handle, py::arg("stream"), py::arg("handle"), "Set the handle that a stream had.")
      .def("handle_of", &Trace::handle_of, py::arg("stream"), "The handle that a stream had.")
      .def("scope_name", &Trace::scope_name, py::arg("scope"), "The name of a scope.")
      .def_property_readonly("streams", &Trace::streams, "The number of streams.");
  py::class_<TextRows>(module, "TextRows", "Reads the rows of an arena-trace 1 text.")
      .def(py::init<std::shared_ptr<Trace>>(), py::arg("trace"))
      .def("read", &read_text<TextRows>, py::arg("data"), py::arg("at"), py::arg("number"), kReadText)
      .def("allocate", &TextRows::allocate, py::arg("row"), py::arg("block"), py::arg("size"), py::arg("stream"),
           "Append an allocation.")
      .def("free", &TextRows::free, py::arg("row"), py::arg("block"), "Append a free.")
      .def("take_steps", &steps_of, "(next event, label) of the steps that were read since the last call.");
  py::class_<RmmRows>(module, "RmmRows", "Reads the rows of RMM's log.")
      .def(py::init<std::shared_ptr<Trace>>(), py::arg("trace"))
      .def("read", &read_text<RmmRows>, py::arg("data"), py::arg("at"), py::arg("number"), kReadText)
      .def(
          "add",
          [](RmmRows& rows, std::string thread, std::int64_t time, int action, std::uint64_t pointer, Bytes size,
             std::uint64_t stream) {
            rows.add({.thread = std::move(thread),
                      .time = time,
                      .action = static_cast<RmmRows::Action>(action),
                      .pointer = pointer,
                      .size = size,
                      .stream = stream});
          },
          py::arg("thread"), py::arg("time"), py::arg("action"), py::arg("pointer"), py::arg("size"), py::arg("stream"),
          "Append the events of a row: 0 allocates, 1 frees, 2 is a failure.");
  py::class_<Replay>(module, "Replay", "Runs a trace through an arena.")
      .def(py::init([](std::shared_ptr<const Trace> trace, std::shared_ptr<Arena> arena, std::uint64_t every,
                       UntrustedMap<Line> lines, bool compact, std::optional<std::uint64_t> ended_by) {
             const WithoutGil without_gil;
             const auto moving = compact ? Moving::kAllowed : Moving::kForbidden;
             return std::make_unique<Replay>(std::move(trace), std::move(arena), every, std::move(lines), moving,
                                             ended_by);
           }),
           py::arg("trace"), py::arg("arena"), py::arg("every"), py::arg("lines") = UntrustedMap<Line>(),
           py::arg("compact") = true, py::arg("ended_by") = py::none())
      .def("step", &Replay::step, py::arg("events"), py::call_guard<WithoutGil>(),
           "Play some events; False at the end.")
      .def("origins", &origins_of, py::arg("addresses"), "(nanoseconds, stream) of the allocations of live blocks.")
      .def_property_readonly("end", &Replay::end, "The number of events it plays if everything fits.")
      .def_property_readonly("done", &Replay::done, "Events played so far.")
      .def_property_readonly("highest", &Replay::highest, "The event after which the most is live, if everything fits.")
      .def_property_readonly("peak", &peak_of, "(event, nanoseconds, live, reserved) when the most was live so far.")
      .def_property_readonly("misfit", &misfit_of, "Why an allocation did not fit, or None.")
      .def_property_readonly("samples", &samples_of, "(event, nanoseconds, account) as the trace went on.");
}

}  // namespace arena
