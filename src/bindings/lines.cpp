#include "bindings/lines.hpp"

#include <frameobject.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/errors.hpp"
#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace arena::lines {

std::atomic<int> depth{0};

namespace {

constexpr int kDeepest = 64;
constexpr Id kRecorded = Id{1} << 31;  // set in the ids of lines from recorded runs

// Where a frame is: the code, which the table keeps alive, and the instruction. Its line is looked up when it is shown.
struct Spot {
  PyCodeObject* code = nullptr;
  int instruction = 0;
  bool operator==(const Spot&) const = default;
};
// Everything that an id stands for.
struct Place {
  std::vector<Spot> spots;
  Framework framework = Framework::kNone;
  bool operator==(const Place&) const = default;
};
struct Hash {
  std::size_t operator()(const Place& place) const {
    auto hash = static_cast<std::size_t>(place.framework);
    for (const Spot& spot : place.spots) {
      hash = (hash ^ reinterpret_cast<std::size_t>(spot.code) ^ static_cast<std::size_t>(spot.instruction)) *
             0x9E3779B97F4A7C15u;
    }
    return hash;
  }
};

enum class Kind : std::uint8_t {
  kOwn,     // code of the program
  kPassed,  // skipped: its callers are named instead
  kFirst,   // where the program began: called by the interpreter, a notebook's kernel, or the command line
  kBelow,   // arena's command line, below a program that it runs
};

// The same of a recorded run.
struct Recorded {
  PyObject* lines = nullptr;  // a tuple
  Framework framework = Framework::kNone;
};

// Never destroyed: blocks refer to their lines until the process ends. Guarded by its own mutex, because there may be no GIL.
struct Table {
  std::mutex mutex;
  std::vector<std::string> skipped;               // folders whose frames are skipped
  std::unordered_map<PyCodeObject*, Kind> kinds;  // by code, which it keeps alive
  PyCodeObject* end = nullptr;                    // frames below it are not named
  std::unordered_map<Place, Id, Hash> ids;
  std::vector<const Place*> places;  // by id - kFirstLine
  std::vector<Recorded> recorded;    // by id - kRecorded
};

Table& table() {
  static Table& only = *new Table;
  return only;
}

bool begins_with(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

std::string text_of(PyObject* object) {
  const char* text = object != nullptr && PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? "" : text;
}

// Whether a frame is the top level of __main__: a script, a module run by -m, or a cell, but not a string passed to exec().
bool is_top_level(PyFrameObject* frame, PyCodeObject* code, const std::string& file) {
  const std::string name = text_of(code->co_name);
  if ((name != "<module>" && !begins_with(name, "<cell line:")) || file == "<string>") return false;
#if PY_VERSION_HEX >= 0x030B0000
  const py::object globals = py::reinterpret_steal<py::object>(PyFrame_GetGlobals(frame));
#else
  const py::object globals = py::reinterpret_borrow<py::object>(frame->f_globals);
#endif
  if (!globals || !PyDict_Check(globals.ptr())) return false;
  return text_of(PyDict_GetItemString(globals.ptr(), "__name__")) == "__main__";
}

// No Python function is called with the mutex held: it may collect garbage, and so run anything, including this.
Kind kind_of(Table& t, PyFrameObject* frame, PyCodeObject* code) {
  {
    const std::lock_guard lock(t.mutex);
    if (code == t.end) return Kind::kBelow;
    const auto it = t.kinds.find(code);
    if (it != t.kinds.end()) return it->second;
  }
  const std::string file = text_of(code->co_filename);
  const bool is_first = is_top_level(frame, code, file);
  const std::lock_guard lock(t.mutex);
  const bool is_passed = std::any_of(t.skipped.begin(), t.skipped.end(),
                                     [&](const std::string& folder) { return begins_with(file, folder); });
  const Kind kind = is_passed ? Kind::kPassed : is_first ? Kind::kFirst : Kind::kOwn;
  if (t.kinds.emplace(code, kind).second) Py_INCREF(code);
  return kind;
}

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti * 2;
#endif
}

Id number_of(Table& t, const Place& place) {
  const std::lock_guard lock(t.mutex);
  const auto [it, is_new] = t.ids.try_emplace(place, kFirstLine + static_cast<Id>(t.places.size()));
  if (is_new) t.places.push_back(&it->first);
  return it->second;
}

}  // namespace

namespace {

// Spots of the calling thread, `wanted` at most. The caller owns a reference to each code.
std::vector<Spot> walk(Table& t, std::size_t wanted) {
  std::vector<Spot> spots;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && spots.size() < wanted) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const Kind kind = kind_of(t, frame, code);
    if (kind == Kind::kOwn || kind == Kind::kFirst) {
      spots.push_back({code, instruction_of(frame)});
    } else {
      Py_DECREF(code);
    }
    if (kind == Kind::kFirst || kind == Kind::kBelow) break;
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return spots;
}

}  // namespace

Id find(std::size_t wanted, Framework framework) {
  Table& t = table();
  const Place place{.spots = walk(t, wanted), .framework = framework};
  const Id id = place.spots.empty() ? static_cast<Id>(framework) : number_of(t, place);
  for (const Spot& spot : place.spots) Py_DECREF(spot.code);  // the table holds its own references
  return id;
}

Framework framework_named(std::string_view name) {
  const auto* const found = std::find(std::begin(kFrameworks), std::end(kFrameworks), name);
  if (found == std::end(kFrameworks)) throw UsageError("there is no framework " + std::string(name));
  return static_cast<Framework>(found - std::begin(kFrameworks));
}

std::string_view framework_of(Id id) {
  if (id < std::size(kFrameworks)) return kFrameworks[id];
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const Framework framework =
      id >= kRecorded ? t.recorded.at(id - kRecorded).framework : t.places.at(id - kFirstLine)->framework;
  return kFrameworks[static_cast<std::size_t>(framework)];
}

// The same lines get the same id, however often a trace is replayed. Entries are never removed, so borrowed references stay
// valid. If two threads add the same new lines at once, the second id stays unused.
Id number_of(const py::tuple& lines, Framework framework) {
  if (lines.empty()) return static_cast<Id>(framework);
  static PyObject* const known = PyDict_New();
  Table& t = table();
  const py::tuple key = py::make_tuple(static_cast<int>(framework), lines);
  const py::object found = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(known, key.ptr()));
  if (found) return found.cast<Id>();
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  const Id id = [&] {
    const std::lock_guard lock(t.mutex);
    t.recorded.push_back({.lines = lines.inc_ref().ptr(), .framework = framework});
    return kRecorded + static_cast<Id>(t.recorded.size() - 1);
  }();
  PyObject* const first = PyDict_SetDefault(known, key.ptr(), py::int_(id).ptr());
  if (first == nullptr) throw py::error_already_set();
  return py::handle(first).cast<Id>();
}

// arena._inspect.snapshot registers them when it is imported: nothing can be imported while the interpreter shuts down. Never
// dropped.
namespace {
struct Classes {
  py::handle piece, line;
};
Classes classes;
}  // namespace

py::handle piece_class() { return classes.piece; }

py::tuple frames(Id id) {
  if (id < kFirstLine) return py::tuple();
  std::vector<Spot> spots;
  {
    Table& t = table();
    const std::lock_guard lock(t.mutex);
    if (id >= kRecorded) return py::reinterpret_borrow<py::tuple>(t.recorded.at(id - kRecorded).lines);
    spots = t.places.at(id - kFirstLine)->spots;
  }
  const py::handle line = classes.line;
  py::tuple rows(spots.size());
  for (std::size_t i = 0; i < spots.size(); ++i) {
    PyCodeObject* code = spots[i].code;
#if PY_VERSION_HEX >= 0x030B0000
    const py::handle name = code->co_qualname;
#else
    const py::handle name = code->co_name;
#endif
    rows[i] = line(py::handle(code->co_filename), PyCode_Addr2Line(code, spots[i].instruction), name);
  }
  return rows;
}

}  // namespace arena::lines

namespace arena {

void bind_lines(py::module_& module) {
  module.def(
      "trace_lines", [](int depth) { lines::depth = std::clamp(depth, 0, lines::kDeepest); }, py::arg("depth"),
      "How many lines of Python an allocation remembers; 0 for none.");
  module.def(
      "number_of_lines",
      [](const py::tuple& lines, const std::string& framework) {
        return lines::number_of(lines, lines::framework_named(framework));
      },
      py::arg("lines"), py::arg("framework") = "",
      "The id of lines and a framework of a recorded run, for allocations.");
  module.attr("FRAMEWORKS") = [] {
    py::tuple names(std::size(lines::kFrameworks) - 1);
    for (std::size_t i = 1; i < std::size(lines::kFrameworks); ++i)
      names[i - 1] = py::str(std::string(lines::kFrameworks[i]));
    return names;
  }();
  module.def(
      "set_snapshot_classes",
      [](py::object piece, py::object line) { lines::classes = {piece.release(), line.release()}; }, py::arg("piece"),
      py::arg("line"), "Register the classes of snapshots. Called when they are imported.");
  module.def("traced_depth", [] { return lines::depth.load(); }, "How many lines an allocation remembers.");
  module.def(
      "pass_over_lines_in",
      [](const std::string& folder) {
        lines::Table& t = lines::table();
        const std::lock_guard lock(t.mutex);
        t.skipped.push_back(folder);
        t.kinds.clear();
      },
      py::arg("folder"), "Name callers instead of lines in files of that folder.");
  module.def(
      "end_lines_at",
      [](py::object code) {
        if (!PyCode_Check(code.ptr())) throw py::type_error("end_lines_at() takes the code of a function");
        lines::Table& t = lines::table();
        const std::lock_guard lock(t.mutex);
        t.end = reinterpret_cast<PyCodeObject*>(code.release().ptr());  // never dropped
      },
      py::arg("code"), "Name neither the function with this code nor its callers.");
  module.def(
      "current_lines",
      [] {
        const int depth = std::max(1, lines::depth.load());
        return lines::frames(lines::find(static_cast<std::size_t>(depth), lines::Framework::kNone));
      },
      "The program's lines that led to this call, at least one, whether or not lines are traced.");
}

}  // namespace arena
