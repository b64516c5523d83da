// Reads the state of each thread from /proc. On other systems no thread is known to sleep.
#include "bindings/standstill.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/stack.hpp"

#ifdef __linux__
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace py = pybind11;

namespace arena {

#ifdef __linux__
namespace {

constexpr const char* kTasks = "/proc/self/task";

ThreadId this_thread() { return static_cast<ThreadId>(syscall(SYS_gettid)); }

// Without C++ streams, which allocate and lock.
std::string text_of(ThreadId thread, const char* name) {
  const std::string path = std::string(kTasks) + "/" + std::to_string(thread) + "/" + name;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text(8192, '\0');
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

std::optional<std::set<ThreadId>> all_threads() {
  DIR* folder = opendir(kTasks);
  if (folder == nullptr) return std::nullopt;
  std::set<ThreadId> found;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    ThreadId thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc{}) found.insert(thread);
  }
  closedir(folder);
  return found;
}

// How often a thread was switched off the processor, voluntarily or not.
std::optional<std::uint64_t> switches_of(ThreadId thread) {
  const std::string status = text_of(thread, "status");
  std::uint64_t sum = 0;
  for (const std::string_view name : {"\nvoluntary_ctxt_switches:\t", "\nnonvoluntary_ctxt_switches:\t"}) {
    const std::size_t at = status.find(name);
    if (at == std::string::npos) return std::nullopt;
    std::uint64_t count = 0;
    const char* const begin = status.data() + at + name.size();
    if (std::from_chars(begin, status.data() + status.size(), count).ec != std::errc{}) return std::nullopt;
    sum += count;
  }
  return sum;
}

bool is_wait(long call, std::uint64_t first_argument) {
  switch (call) {
    case SYS_futex:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
    case SYS_ppoll:
    case SYS_pselect6:
    case SYS_epoll_pwait:
    case SYS_accept:
    case SYS_accept4:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_wait4:
    case SYS_waitid:
#ifdef SYS_poll  // newer processors have only the others
    case SYS_poll:
    case SYS_select:
    case SYS_epoll_wait:
#endif
      return true;
    case SYS_read:
      return first_argument != STDIN_FILENO;  // a hook of a user interface may run during that, without the GIL
    default:
      return false;
  }
}

// The system call is read first: a thread that slept then, and was switched off as often as before, has slept all the time.
std::optional<Sleep> sleep_of(ThreadId thread) {
  Sleep sleep{.call = text_of(thread, "syscall")};
  const std::optional<std::uint64_t> switches = switches_of(thread);
  if (!switches) return std::nullopt;
  sleep.switches = *switches;
  long call = 0;
  unsigned long long arguments[6]{}, stack_pointer = 0, address = 0;
  const int fields =
      std::sscanf(sleep.call.c_str(), "%ld %llx %llx %llx %llx %llx %llx %llx %llx", &call, &arguments[0],
                  &arguments[1], &arguments[2], &arguments[3], &arguments[4], &arguments[5], &stack_pointer, &address);
  if (fields != 9) return std::nullopt;  // it runs, or does not sleep in a system call
  sleep.is_wait = is_wait(call, arguments[0]);
  sleep.stack_pointer = stack_pointer;
  sleep.address = address;
  return sleep;
}

}  // namespace

Standstill::Standstill(std::set<ThreadId> ignored) : ignored_(std::move(ignored)), caller_(this_thread()) {
  const std::optional<std::set<ThreadId>> all = all_threads();
  if (!all) {
    threads_[0] = std::nullopt;  // there may be some
    return;
  }
  for (const ThreadId thread : *all) {
    if (thread != caller_ && !ignored_.contains(thread)) threads_[thread] = sleep_of(thread);
  }
}

bool Standstill::holds() const {
  const std::optional<std::set<ThreadId>> all = all_threads();
  if (!all || this_thread() != caller_) return false;
  const auto is_known = [this](ThreadId thread) {
    return thread == caller_ || ignored_.contains(thread) || threads_.contains(thread);
  };
  if (!std::all_of(all->begin(), all->end(), is_known)) return false;
  return std::all_of(threads_.begin(), threads_.end(), [](const auto& entry) {
    const auto& [thread, before] = entry;
    return before && sleep_of(thread) == before;
  });
}

#else

Standstill::Standstill(std::set<ThreadId> ignored) : ignored_(std::move(ignored)), caller_(0) {
  threads_[0] = std::nullopt;
}
bool Standstill::holds() const { return false; }

#endif

namespace {

// Addresses of functions that return with the GIL: those that run Python code, and those by which other code takes the GIL.
std::vector<std::uint64_t> entries_of_python() {
  std::vector<std::uint64_t> found;
#ifdef __linux__
  for (const char* name : {"_PyEval_EvalFrameDefault", "_PyFunction_Vectorcall", "PyGILState_Ensure",
                           "PyEval_RestoreThread", "PyEval_AcquireThread"}) {
    if (void* function = dlsym(RTLD_DEFAULT, name)) found.push_back(reinterpret_cast<std::uint64_t>(function));
  }
#endif
  return found;
}

// The name under which a library exports the function that begins at an address; empty if it exports none.
std::string exported_name(std::uint64_t function) {
#ifdef __linux__
  Dl_info found{};
  const auto* const address = reinterpret_cast<const void*>(function);
  if (dladdr(address, &found) != 0 && found.dli_sname != nullptr && found.dli_saddr == address) return found.dli_sname;
#else
  (void)function;
#endif
  return {};
}

// A sub-interpreter may have its own GIL, and does not wait for ours.
bool is_only_interpreter() { return PyInterpreterState_Next(PyInterpreterState_Head()) == nullptr; }

py::tuple walk(const Sleep& sleep) {
  const Walk walk = walk_stack(sleep.stack_pointer, sleep.address);
  py::list frames;
  for (const Frame& frame : walk.frames) frames.append(py::make_tuple(frame.address, frame.function));
  return py::make_tuple(frames, walk.reached_bottom);
}

}  // namespace

// A folder has two links, and one more for each folder in it.
int thread_count() {
#ifdef __linux__
  struct stat tasks{};
  if (stat(kTasks, &tasks) == 0) return std::max(static_cast<int>(tasks.st_nlink) - 2, 0);
#endif
  return 0;
}

// Far cheaper than sys._current_frames(). Without a GIL the list may change while it is read, so the answer is no.
bool is_only_thread() {
#ifdef Py_GIL_DISABLED
  return false;
#else
  PyThreadState* const first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  return PyThreadState_Next(first) == nullptr;
#endif
}

void bind_threads(py::module_& module) {
  module.def("is_only_thread", &is_only_thread, "Whether this is certainly the only thread that runs Python.");
  module.def("is_only_interpreter", &is_only_interpreter, "Whether there are no sub-interpreters.");
  module.def("entries_of_python", &entries_of_python, "Addresses of functions that return with the GIL.");
  module.def("exported_name", &exported_name, py::arg("function"),
             "The name under which a library exports the function that begins there; empty if it exports none.");
  py::class_<Sleep>(module, "Sleep", "Where another thread sleeps.")
      .def_readonly("is_wait", &Sleep::is_wait, "Whether it is in a system call that only waits.")
      .def_readonly("stack_pointer", &Sleep::stack_pointer, "The end of its stack.")
      .def("walk", &walk, "Return addresses, each with the address of its function, and whether the list is complete.");
  py::class_<Standstill, std::shared_ptr<Standstill>>(module, "Standstill", "Other threads that were found asleep.")
      .def(py::init<std::set<ThreadId>>(), py::arg("ignored"))
      .def_property_readonly("threads", &Standstill::threads, "Where each sleeps; None if it runs.")
      .def("holds", &Standstill::holds, "Whether the same threads are there, and none has run since.");
}

}  // namespace arena
