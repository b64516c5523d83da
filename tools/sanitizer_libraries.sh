#!/bin/sh
# Prints what a Python without sanitizers has to load first for a module that a tree (the argument) was built with: the
# compiler's sanitizers, and the C++ library, for what raises through C++ needs it from the beginning.
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$1/CMakeCache.txt")
find_one() {
  path=$("$compiler" -print-file-name="$1")
  case $path in /*) printf '%s ' "$path" ;; *) return 1 ;; esac
}
case $(sed -n 's/^ARENA_SANITIZE:[A-Z]*=//p' "$1/CMakeCache.txt") in
  thread) find_one libtsan.so ;;  # clang's cannot be loaded so
  *) find_one "libclang_rt.asan-$(uname -m).so" || { find_one libasan.so && find_one libubsan.so; } ;;
esac
find_one libstdc++.so
