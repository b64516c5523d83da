// Attributes of a descriptor as bytes, by number: what a program set is what it gets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "standins/common/objects.hpp"

namespace standins {

class Attributes {
 public:
  using Bytes = std::vector<unsigned char>;

  void set(int attribute, Word address, std::size_t size) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(address);
    values_[attribute] = size > 0 ? Bytes(bytes, bytes + size) : Bytes();
  }

  const Bytes* find(int attribute) const {
    const auto found = values_.find(attribute);
    return found == values_.end() ? nullptr : &found->second;
  }

  // As much of the attribute as fits in `size` bytes; the rest is cleared. Returns how many bytes the attribute has.
  std::size_t get(int attribute, Word address, std::size_t size) const {
    const Bytes* const bytes = find(attribute);
    const std::size_t known = bytes == nullptr ? 0 : bytes->size();
    if (address != 0 && size > 0) {
      std::memset(reinterpret_cast<void*>(address), 0, size);
      if (known > 0) std::memcpy(reinterpret_cast<void*>(address), bytes->data(), std::min(size, known));
    }
    return known;
  }

  template <class T>
  T value(int attribute, T otherwise) const {
    const Bytes* const bytes = find(attribute);
    if (bytes == nullptr || bytes->size() < sizeof(T)) return otherwise;
    T result;
    std::memcpy(&result, bytes->data(), sizeof(T));
    return result;
  }

 private:
  std::map<int, Bytes> values_;
};

}  // namespace standins
