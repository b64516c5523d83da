#!/bin/sh
# Installs clang with libFuzzer if they are missing, and prints the C++ compiler for the fuzzing targets. It is no error if
# they cannot be installed: any compiler works, and a message says what it lacks.
has_fuzzer() {
  command -v "$1" >/dev/null || return 1
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$1" -x c++ -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null
}
find_clang() {
  for name in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
    has_fuzzer "$name" && echo "$name" && exit 0
  done
}
find_clang
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing clang with libFuzzer" >&2
  export DEBIAN_FRONTEND=noninteractive
  install() {
    apt-get -qq install -y --no-install-recommends clang >/dev/null &&
      version=$(clang -dumpversion | cut -d. -f1) &&
      apt-get -qq install -y --no-install-recommends "libclang-rt-$version-dev" >/dev/null
  }
  install 2>/dev/null || { apt-get -qq update && install; } || true
  find_clang
fi
echo "no clang with libFuzzer (Debian: clang and libclang-rt-*-dev): inputs are generated at random instead, which finds less" >&2
echo "${CXX:-c++}"
