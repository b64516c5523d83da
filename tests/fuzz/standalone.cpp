// Replaces libFuzzer where there is no clang, with the part of its command line that `make fuzz` uses:
//
//     TARGET [-max_total_time=SECONDS] [-artifact_prefix=PREFIX] [-seed=N] FILE_OR_FOLDER ...
//
// Runs every file, and then random mutations of them for the given time. It is not guided by coverage, so it finds
// less. Writes each input to a file before it runs, so that it is there after a crash.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kLongest = 4096;

struct Options {
  double seconds = 0;
  unsigned seed = 1;
  std::string prefix = "./";
  std::vector<fs::path> files;
};

Options read_options(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    const auto value = [&](const std::string& name) { return word.substr(name.size()); };
    if (word.starts_with("-max_total_time=")) {
      options.seconds = std::stod(value("-max_total_time="));
    } else if (word.starts_with("-seed=")) {
      options.seed = static_cast<unsigned>(std::stoul(value("-seed=")));
    } else if (word.starts_with("-artifact_prefix=")) {
      options.prefix = value("-artifact_prefix=");
    } else if (fs::is_directory(word)) {
      for (const auto& entry : fs::directory_iterator(word)) options.files.push_back(entry.path());
    } else if (!word.starts_with("-")) {
      options.files.emplace_back(word);
    }
  }
  std::sort(options.files.begin(), options.files.end());
  return options;
}

Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(const Bytes& input, const std::string& note) {
  {
    std::ofstream file(note, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  }
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

Bytes changed(Bytes input, const Bytes& other, std::mt19937& chance) {
  for (unsigned i = 0; i <= chance() % 8; ++i) {
    const std::size_t at = chance() % (input.size() + 1);
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    const auto length = static_cast<std::ptrdiff_t>(chance() % 16);
    switch (chance() % 4) {
      case 0:
        if (at < input.size()) *place = static_cast<std::uint8_t>(chance());
        break;
      case 1:
        input.insert(place, static_cast<std::uint8_t>(chance()));
        break;
      case 2:
        input.erase(place, place + std::min(length, input.end() - place));
        break;
      default:  // a piece of another one
        const std::size_t from = chance() % (other.size() + 1);
        const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
        input.insert(place, first, first + std::min(length, other.end() - first));
    }
  }
  input.resize(std::min(input.size(), kLongest));
  return input;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  const std::string note = options.prefix + "crash-standalone";
  std::vector<Bytes> inputs = {{}};
  for (const fs::path& path : options.files) {
    inputs.push_back(read_file(path));
    run(inputs.back(), note);
  }
  std::mt19937 chance(options.seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t runs = options.files.size();
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    run(changed(inputs[chance() % inputs.size()], inputs[chance() % inputs.size()], chance), note);
  }
  fs::remove(note);
  std::fprintf(stderr, "%llu inputs, without libFuzzer\n", static_cast<unsigned long long>(runs));
}
