// NVRTC: nothing is compiled. Whether the source is right is not looked at.
#include <cctype>
#include <cstring>
#include <iterator>
#include <map>
#include <string>

#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kBadArgument = 3;   // NVRTC_ERROR_INVALID_INPUT
constexpr int kNoHandle = 4;      // NVRTC_ERROR_INVALID_PROGRAM
constexpr int kTooLate = 8;       // NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION
constexpr int kNotCompiled = 9;   // NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION
constexpr int kUnknownName = 10;  // NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID
constexpr int kArchitectures[] = {75, 80, 86, 87, 89, 90, 100, 103, 120, 121};
constexpr const char* kMark = "arena-skipped-kernel";  // how the simulated driver knows such an image

struct Program : Object {
  std::string name;
  std::string image;
  std::map<std::string, std::string> lowered;  // by name expression
  bool is_compiled = false;
};

// A name as a C++ compiler might give it: one identifier, different for different expressions.
std::string lowered_name(const std::string& expression) {
  bool is_identifier = true;
  std::string name;
  for (const char c : expression) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    is_identifier = is_identifier && fits;
    static constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    name += fits ? std::string(1, c) : std::string{'_', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return is_identifier ? expression : "_Z" + std::to_string(name.size()) + name;
}

int image_size(Word program, Word size) {
  const auto* const object = find<Program>(program);
  if (object == nullptr) return kNoHandle;
  return write<std::size_t>(size, object->image.size() + 1) ? 0 : kBadArgument;
}

int image(Word program, Word buffer) {
  const auto* const object = find<Program>(program);
  if (object == nullptr) return kNoHandle;
  if (buffer == 0) return kBadArgument;
  std::memcpy(reinterpret_cast<void*>(buffer), object->image.c_str(), object->image.size() + 1);
  return 0;
}

const char* error_text(Word result) {
  switch (static_cast<int>(result)) {
    case 0:
      return "NVRTC_SUCCESS";
    case kBadArgument:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kNoHandle:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case kTooLate:
      return "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case kNotCompiled:
      return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case kUnknownName:
      return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    default:
      return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}

}  // namespace

#define IMAGE_SIZE(name) \
  STANDIN_FUNCTION(name) { return image_size(a0, a1); }
#define IMAGE(name) \
  STANDIN_FUNCTION(name) { return image(a0, a1); }

#include "standins/nvrtc/nvrtc.def"

STANDIN_FUNCTION(nvrtcVersion) {
  const bool is_written = write<int>(a0, kCudartVersion / 1000) && write<int>(a1, kCudartVersion % 1000 / 10);
  return is_written ? 0 : kBadArgument;
}

STANDIN_FUNCTION(nvrtcGetSupportedArchs) {
  if (a0 == 0) return kBadArgument;
  std::memcpy(reinterpret_cast<void*>(a0), kArchitectures, sizeof kArchitectures);
  return 0;
}

// (program, source, name, headers...)
STANDIN_FUNCTION(nvrtcCreateProgram) {
  if (a0 == 0 || a1 == 0) return kBadArgument;
  auto program = std::make_unique<Program>();
  program->name = a2 == 0 ? "default_program" : reinterpret_cast<const char*>(a2);
  write(a0, add_object(std::move(program)));
  return 0;
}

STANDIN_FUNCTION(nvrtcDestroyProgram) {
  if (a0 == 0) return kNoHandle;
  auto& program = *reinterpret_cast<Word*>(a0);
  if (!remove_object(program)) return kNoHandle;
  program = 0;
  return 0;
}

STANDIN_FUNCTION(nvrtcCompileProgram) {
  auto* const program = find<Program>(a0);
  if (program == nullptr) return kNoHandle;
  program->image = std::string(kMark) + " " + program->name + "\n";
  program->is_compiled = true;
  return 0;
}

STANDIN_FUNCTION(nvrtcAddNameExpression) {
  auto* const program = find<Program>(a0);
  if (program == nullptr) return kNoHandle;
  if (a1 == 0) return kBadArgument;
  if (program->is_compiled) return kTooLate;
  const std::string expression = reinterpret_cast<const char*>(a1);
  program->lowered.emplace(expression, lowered_name(expression));
  return 0;
}

STANDIN_FUNCTION(nvrtcGetLoweredName) {
  const auto* const program = find<Program>(a0);
  if (program == nullptr) return kNoHandle;
  if (a1 == 0 || a2 == 0) return kBadArgument;
  if (!program->is_compiled) return kNotCompiled;
  const auto found = program->lowered.find(reinterpret_cast<const char*>(a1));
  if (found == program->lowered.end()) return kUnknownName;
  write(a2, found->second.c_str());
  return 0;
}
