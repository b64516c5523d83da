#include "lines.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python.hpp"

namespace arena::ledger {
namespace {

using python::Owned;

enum class Origin : std::uint8_t { kFramework, kInstalled, kOwn };

struct Code {
  Origin origin = Origin::kOwn;
  bool is_engine = false;  // where autograd was called: what is below is not part of a node
  bool is_step = false, is_init = false;
  std::string file, function;
};

struct Place {
  ArenaPyObject* code;
  int line;
  bool operator==(const Place&) const = default;
};
struct PlaceHash {
  std::size_t operator()(const Place& one) const {
    return std::hash<void*>()(one.code) * 31 + static_cast<std::size_t>(one.line);
  }
};

// Never destroyed: threads of autograd outlive the program. Code objects in it are kept, so that their addresses stay theirs.
struct Lines {
  std::mutex mutex;
  std::vector<std::string> frameworks, installed, python, optimizers;
  std::size_t depth = 1;
  std::unordered_map<ArenaPyObject*, Code> codes;
  std::unordered_map<Place, int, PlaceHash> numbers;  // of lines, by instruction: Python looks for them one by one
  std::unordered_map<Place, std::uint32_t, PlaceHash> single;  // stacks of one line
  std::map<std::vector<std::pair<ArenaPyObject*, int>>, std::uint32_t> deep;
  std::vector<std::vector<Place>> stacks{{}};  // by id
};
Lines& lines() {
  static Lines& only = *new Lines;
  return only;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) found.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

bool is_in(const std::string& file, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    if (file.compare(0, folder.size(), folder) == 0) return true;
  }
  return false;
}

std::string text_of(ArenaPyObject* object, const char* name) {
  const Owned value(PyObject_GetAttrString(object, name));
  const char* const text = value ? PyUnicode_AsUTF8(value.get()) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? "" : text;
}

const Code& code_of(Lines& known, ArenaPyObject* object) {
  const auto it = known.codes.find(object);
  if (it != known.codes.end()) return it->second;
  Py_IncRef(object);
  Code& made = known.codes[object];
  made.file = text_of(object, "co_filename");
  made.function = text_of(object, "co_qualname");  // since Python 3.11
  if (made.function.empty()) made.function = text_of(object, "co_name");
  made.is_step = is_in(made.file, known.optimizers);
  made.is_init = made.is_step && made.function.find("_init_group") != std::string::npos;
  made.is_engine = made.function == "_engine_run_backward";
  if (is_in(made.file, known.frameworks))
    made.origin = Origin::kFramework;
  else if (is_in(made.file, known.installed))
    made.origin = Origin::kInstalled;
  else if (is_in(made.file, known.python))
    made.origin = Origin::kFramework;
  return made;
}

int line_of(Lines& known, ArenaPyObject* code, ArenaPyObject* frame, int instruction) {
  if (instruction < 0) return PyFrame_GetLineNumber(frame);
  const auto [it, is_new] = known.numbers.try_emplace(Place{code, instruction}, 0);
  if (is_new) it->second = PyFrame_GetLineNumber(frame);
  return it->second;
}

std::uint32_t id_of(Lines& known, const std::vector<Place>& stack) {
  if (stack.empty()) return 0;
  const auto next = static_cast<std::uint32_t>(known.stacks.size());
  std::uint32_t id = next;
  if (stack.size() == 1) {
    id = known.single.try_emplace(stack[0], next).first->second;
  } else {
    std::vector<std::pair<ArenaPyObject*, int>> key;
    for (const Place& one : stack) key.emplace_back(one.code, one.line);
    id = known.deep.try_emplace(std::move(key), next).first->second;
  }
  if (id == next) known.stacks.push_back(stack);
  return id;
}

// Of the frames that are no framework's, the innermost ones. One of them is the program's own, if there is one at all.
class Chosen {
 public:
  explicit Chosen(std::size_t depth) : depth_(depth) {}
  bool is_done() const { return has_own_ && stack_.size() >= depth_; }
  void add(const Code& code, Place place) {
    const bool is_own = code.origin == Origin::kOwn;
    const bool is_wanted = is_own || depth_ > 1 || stack_.empty();
    if (stack_.size() < depth_ && is_wanted) {
      stack_.push_back(place);
    } else if (is_own && !has_own_) {
      stack_.back() = place;
    }
    has_own_ = has_own_ || is_own;
  }
  const std::vector<Place>& stack() const { return stack_; }

 private:
  const std::size_t depth_;
  std::vector<Place> stack_;
  bool has_own_ = false;
};

}  // namespace

void set_lines(const Folders& folders, int depth) {
  Lines& known = lines();
  const std::lock_guard lock(known.mutex);
  known.frameworks = split(folders.frameworks);
  known.installed = split(folders.installed);
  known.python = split(folders.python);
  known.optimizers = split(folders.optimizers);
  known.depth = static_cast<std::size_t>(std::max(depth, 0));
}

Where where(bool in_node) {
  Where found;
  Lines& known = lines();
  if (known.depth == 0) return found;
  const std::lock_guard lock(known.mutex);
  Chosen chosen(known.depth);
  Owned frame(PyThreadState_GetFrame(PyGILState_GetThisThreadState()));
  while (frame && !chosen.is_done()) {
    const Owned code(PyFrame_GetCode(frame.get()));
    const Code& seen = code_of(known, code.get());
    const int at = PyFrame_GetLasti != nullptr ? PyFrame_GetLasti(frame.get()) : -1;
    if (found.instruction == 0) found.instruction = reinterpret_cast<std::uintptr_t>(code.get()) + at;
    if (in_node && seen.is_engine) break;
    found.is_step = found.is_step || seen.is_step;
    found.is_init = found.is_init || seen.is_init;
    if (seen.origin != Origin::kFramework) chosen.add(seen, {code.get(), line_of(known, code.get(), frame.get(), at)});
    frame = Owned(PyFrame_GetBack(frame.get()));
  }
  found.line = id_of(known, chosen.stack());
  return found;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string lines_as_json() {
  Lines& known = lines();
  const std::lock_guard lock(known.mutex);
  std::string out = "[";
  for (const std::vector<Place>& stack : known.stacks) {
    if (out.size() > 1) out += ',';
    out += '[';
    for (const Place& one : stack) {
      const Code& code = known.codes[one.code];
      if (out.back() == ']') out += ',';
      out += '[' + quoted(code.file) + ',' + std::to_string(one.line) + ',' + quoted(code.function) + ']';
    }
    out += ']';
  }
  return out + ']';
}

}  // namespace arena::ledger
