#include "cudasim/images/image.hpp"

#include <algorithm>
#include <cstring>

namespace cudasim {
namespace {

constexpr std::uint32_t kFatMagic = 0xba55ed50;
constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::string_view kElfMagic =
    "\x7f"
    "ELF";
constexpr std::uint64_t kCompressed = 0x2000 | 0x8000;  // LZ4, Zstandard
constexpr std::uint16_t kPtxEntry = 1, kCubinEntry = 2;

template <typename Value>
Value read_as(const unsigned char* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Byte by byte, because memory may end behind the first one that differs.
bool starts_with(const unsigned char* image, std::string_view prefix) {
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    if (image[i] != static_cast<unsigned char>(prefix[i])) return false;
  }
  return true;
}

std::string_view bytes_of(const std::uint32_t& magic) { return {reinterpret_cast<const char*>(&magic), sizeof magic}; }

// The text of PTX begins with .version, after blanks and comments.
bool is_ptx(const unsigned char* image) {
  std::size_t at = 0;
  while (true) {
    while (image[at] == ' ' || (image[at] >= '\t' && image[at] <= '\r')) ++at;
    if (image[at] != '/') break;
    if (image[at + 1] == '/') {
      while (image[at] != '\0' && image[at] != '\n') ++at;
    } else if (image[at + 1] == '*') {
      for (at += 2; image[at] != '\0' && !(image[at] == '*' && image[at + 1] == '/');) ++at;
      if (image[at] != '\0') at += 2;
    } else {
      return false;
    }
  }
  return starts_with(image + at, ".version");
}

// One image of a fat binary.
struct FatEntry {
  std::uint16_t kind = 0;
  int architecture = 0;
  bool compressed = false;
  const unsigned char* data = nullptr;
  std::uint64_t size = 0;
};

std::vector<FatEntry> entries_of(const unsigned char* fat) {
  constexpr std::uint64_t kEntryHeader = 64;
  const auto header = read_as<std::uint16_t>(fat + 6);
  const auto size = read_as<std::uint64_t>(fat + 8);
  if (header < 16) throw BadImage{cu::Result::kInvalidImage};
  std::vector<FatEntry> entries;
  const unsigned char* at = fat + header;
  for (std::uint64_t left = size; left >= kEntryHeader;) {
    FatEntry entry{.kind = read_as<std::uint16_t>(at),
                   .architecture = static_cast<int>(read_as<std::uint32_t>(at + 28)),
                   .compressed = (read_as<std::uint64_t>(at + 40) & kCompressed) != 0,
                   .data = nullptr,
                   .size = read_as<std::uint64_t>(at + 8)};
    const auto entry_header = read_as<std::uint32_t>(at + 4);
    if (entry_header < kEntryHeader || entry_header > left || entry.size > left - entry_header) {
      throw BadImage{cu::Result::kInvalidImage};
    }
    entry.data = at + entry_header;
    at += entry_header + entry.size;
    left -= entry_header + entry.size;
    entries.push_back(entry);
  }
  return entries;
}

// A fat binary takes its best cubin, and without one its newest PTX that the device can have.
const FatEntry* choose(const std::vector<FatEntry>& entries, int capability) {
  const FatEntry* best = nullptr;
  for (const FatEntry& entry : entries) {
    const bool cubin = entry.kind == kCubinEntry && cubin_runs_on(entry.architecture, capability);
    const bool ptx = entry.kind == kPtxEntry && entry.architecture <= capability;
    if (!cubin && !ptx) continue;
    const bool better = best == nullptr || entry.kind > best->kind ||
                        (entry.kind == best->kind && entry.architecture > best->architecture);
    if (better) best = &entry;
  }
  return best;
}

Image opaque_image(int architecture) {
  Image image;
  image.opaque = true;
  image.architecture = architecture;
  return image;
}

Image read_entries(const unsigned char* fat, int capability) {
  const std::vector<FatEntry> entries = entries_of(fat);
  const FatEntry* entry = choose(entries, capability);
  if (entry == nullptr) throw BadImage{cu::Result::kNoBinaryForGpu};
  if (entry->compressed) return opaque_image(entry->architecture);
  if (entry->kind == kPtxEntry) {
    std::string_view text(reinterpret_cast<const char*>(entry->data), entry->size);
    return ptx::read(text.substr(0, text.find('\0')));
  }
  if (entry->size < 64 || !starts_with(entry->data, kElfMagic)) throw BadImage{cu::Result::kInvalidImage};
  return cubin::read(entry->data);
}

const unsigned char* fat_binary_at(const unsigned char* image) {
  if (starts_with(image, bytes_of(kFatMagic))) return image;
  if (!starts_with(image, bytes_of(kWrapperMagic))) return nullptr;
  const auto* data = read_as<const unsigned char*>(image + 8);
  return data != nullptr && starts_with(data, bytes_of(kFatMagic)) ? data : nullptr;
}

template <typename Named>
const Named* find_named(const std::vector<Named>& all, std::string_view name) {
  const auto it = std::lower_bound(all.begin(), all.end(), name,
                                   [](const Named& one, std::string_view other) { return one.name < other; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

ImageRef sorted(Image image) {
  const auto by_name = [](const auto& one, const auto& other) { return one.name < other.name; };
  std::sort(image.kernels.begin(), image.kernels.end(), by_name);
  std::sort(image.variables.begin(), image.variables.end(), by_name);
  return std::make_shared<const Image>(std::move(image));
}

}  // namespace

const KernelInfo* Image::kernel(std::string_view name) const { return find_named(kernels, name); }
const VariableInfo* Image::variable(std::string_view name) const { return find_named(variables, name); }

ImageRef read_fat_binary(const void* image, int capability) {
  const unsigned char* fat = fat_binary_at(static_cast<const unsigned char*>(image));
  if (fat == nullptr) throw BadImage{cu::Result::kInvalidImage};
  return sorted(read_entries(fat, capability));
}

ImageRef read_image(const void* given, int capability) {
  const auto* image = static_cast<const unsigned char*>(given);
  if (fat_binary_at(image) != nullptr) return read_fat_binary(image, capability);
  if (starts_with(image, kElfMagic)) {
    if (!cubin_runs_on(cubin::architecture(image), capability)) throw BadImage{cu::Result::kNoBinaryForGpu};
    return sorted(cubin::read(image));
  }
  if (starts_with(image, kSkippedMark)) return sorted(opaque_image(capability));
  if (!is_ptx(image)) throw BadImage{cu::Result::kInvalidImage};
  Image text = ptx::read(reinterpret_cast<const char*>(image));
  if (text.architecture > capability) throw BadImage{cu::Result::kInvalidPtx};  // for newer devices only
  return sorted(std::move(text));
}

}  // namespace cudasim
