#include "cudasim/settings/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace cudasim {
namespace {

constexpr std::size_t kWholeMiB = 1 << 20;
constexpr std::size_t kShownPath = 200;  // characters

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void cannot_read(std::string_view path, int error) {
  throw std::invalid_argument(shown_path(path) + " cannot be read: " + std::strerror(error));
}

}  // namespace

std::string shown_path(std::string_view path) {
  if (path.size() <= kShownPath) return std::string(path);
  return "..." + std::string(path.substr(path.size() - kShownPath));
}

// The content of a regular file. Nothing else is opened for long: a pipe would be waited for, a device has no end.
std::string read_small_file(const std::string& path, std::size_t largest, std::string_view what) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) cannot_read(path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw std::invalid_argument(shown_path(path) + " is not a regular file; give the path of " + std::string(what));
  }
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_read(path, errno);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > largest) {
      throw std::invalid_argument(
          shown_path(path) + " is not " + std::string(what) + ": it is larger than " +
          (largest < kWholeMiB ? std::to_string(largest >> 10) + " KiB" : std::to_string(largest >> 20) + " MiB"));
    }
  }
}

}  // namespace cudasim
