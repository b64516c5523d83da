// Signals that make arena write a report. Threads of their own handle them, so that it does not matter whether the program's
// threads wait for the device, run code that never returns to Python, or hold locks.
//
// The handler writes a byte into a pipe. The listener reads it and starts a worker, which takes the GIL and calls a Python
// function. The listener never takes the GIL, so it cannot block. If the worker does not get the GIL, does not finish, or the
// signal arrives a second time, a signal that ends the process still ends it.
#include <pybind11/pybind11.h>

#include "bindings/bindings.hpp"

#ifdef __linux__
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#endif

#include "base/errors.hpp"

namespace py = pybind11;

namespace arena {

#ifdef __linux__
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kToBegin{10},
    kToEnd{60};  // limits for a worker, after which the process ends without it
// Bytes in the pipe; all others are signal numbers.
constexpr unsigned char kBegun = 252, kDone = 253, kStop = 254;
constexpr const char* kName = "arena-signals";  // _pool/threads.py treats threads of this name as harmless

std::atomic<int> pipe_end{-1};
std::atomic<pid_t> owner{0};

void put(unsigned char byte) { [[maybe_unused]] const ssize_t written = ::write(pipe_end.load(), &byte, 1); }

// In a forked child the signal has its default effect.
void on_signal(int number) {
  const int saved = errno;
  if (::getpid() == owner.load() && pipe_end.load() >= 0) {
    put(static_cast<unsigned char>(number));
  } else {
    std::signal(number, SIG_DFL);
    ::raise(number);
  }
  errno = saved;
}

[[noreturn]] void end_by(int number) {
  std::signal(number, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::kill(::getpid(), number);
  while (true) ::pause();
}

class Listener {
 public:
  Listener(PyObject* function, int ending, int read_end) : function_(function), ending_(ending), read_end_(read_end) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by new threads: these get signals only through the pipe
    thread_ = std::thread([this] { listen(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void stop() {
    put(kStop);
    thread_.join();
  }

 private:
  void listen() {
    pthread_setname_np(pthread_self(), kName);
    while (!is_stopping_ || is_working_) {
      pollfd file{read_end_, POLLIN, 0};
      if (::poll(&file, 1, milliseconds_left()) == 0) end_by(ending_);
      unsigned char byte = 0;
      if (::read(read_end_, &byte, 1) == 1) hear(byte);
      if (!is_working_ && !waiting_.empty()) start_worker();
    }
  }
  void hear(unsigned char byte) {
    if (byte == kBegun) {
      if (deadline_) deadline_ = Clock::now() + kToEnd;
    } else if (byte == kDone) {
      is_working_ = false;
      if (working_on_ == ending_) end_by(ending_);
    } else if (byte == kStop) {
      is_stopping_ = true;
    } else if (byte == ending_) {
      if (deadline_) end_by(ending_);  // the user does not want to wait
      deadline_ = Clock::now() + kToBegin;
      waiting_.push_back(ending_);
    } else if (waiting_.empty()) {  // one pending signal is enough
      waiting_.push_back(byte);
    }
  }
  int milliseconds_left() const {
    if (!deadline_) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now()).count();
    return left > 0 ? static_cast<int>(left) : 0;
  }
  void start_worker() {
    working_on_ = waiting_.front();
    waiting_.pop_front();
    is_working_ = true;
    std::thread([number = working_on_, function = function_] {
      with_gil([&] {
        put(kBegun);
        PyObject* const result = PyObject_CallFunction(function, "i", number);
        if (result == nullptr) PyErr_WriteUnraisable(function);
        Py_XDECREF(result);
      });
      put(kDone);
    }).detach();
  }

  PyObject* const function_;
  const int ending_, read_end_;
  bool is_stopping_ = false, is_working_ = false;
  int working_on_ = 0;
  std::deque<int> waiting_;
  std::optional<Clock::time_point> deadline_;  // by then the process must have ended
  std::thread thread_;
};

Listener* listener = nullptr;  // used only by the main thread of its process, with the GIL

void listen(const py::function& function, int ending) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error("cannot create a pipe to listen for signals");
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  pipe_end = ends[1];
  owner = ::getpid();
  listener = new Listener(function.inc_ref().ptr(), ending, ends[0]);  // never dropped: its thread may still run
}

void handle(int number) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  if (::sigaction(number, &action, nullptr) != 0)
    throw UsageError("signal " + std::to_string(number) + " does not exist");
}

// Waits for a report that is being written.
void stop_listening() {
  Listener* const mine = std::exchange(listener, nullptr);
  if (mine == nullptr || ::getpid() != owner.load()) return;
  {
    const WithoutGil without_gil;
    mine->stop();
  }
  pipe_end = -1;
}

}  // namespace

void bind_signals(py::module_& module) {
  module.def("listen", &listen, py::arg("function"), py::arg("ending"),
             "Call a function with the number of every handled signal, in a thread of its own. After the signal "
             "`ending`, the process ends by it.");
  module.def("handle_signal", &handle, py::arg("number"), "Send a signal to the listener.");
  module.def(
      "announce_signal", [](int number) { on_signal(number); }, py::arg("number"), "Do what the signal handler does.");
  module.def("stop_listening", &stop_listening, "Stop listening. Waits for a call in progress.");
}

#else

void bind_signals(py::module_&) {}

#endif

}  // namespace arena
