# What arena needs to compile. An install without it prints one message that says what is missing, and what to type.

set(ARENA_COMPILERS "  Debian, Ubuntu: apt install g++
  Fedora, RHEL:   dnf install gcc-c++
  conda:          conda install -c conda-forge cxx-compiler")

include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  if(DEFINED ENV{CXX})
    set(ARENA_CHOSEN " (the environment says CXX=$ENV{CXX})")
  endif()
  message(FATAL_ERROR "arena is compiled when it is installed, and there is no C++ compiler that works${ARENA_CHOSEN}. "
    "Install GCC 11, Clang 14, or a later one:\n${ARENA_COMPILERS}")
endif()
enable_language(CXX)

# Not by the compiler's version: what counts is what is used here.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
  #include <bit>
  #include <concepts>
  #include <string>
  enum class Kind { kOne, kTwo };
  struct Named { int first = 0; std::string second = {}; bool operator==(const Named&) const = default; };
  int main() {
    using enum Kind;
    const Named named{.first = std::countr_zero(8u), .second = \"x\"};
    return kOne == Kind::kTwo || named == Named{} ? 1 : 0;
  }" ARENA_HAS_CXX20)
if(NOT ARENA_HAS_CXX20)
  message(FATAL_ERROR "arena needs C++20, and ${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) "
    "does not know enough of it. Install GCC 11, Clang 14, or a later one, and choose it with CXX=...:\n${ARENA_COMPILERS}")
endif()

# After find_package(Python).
function(require_python_headers)
  if(NOT Python_FOUND)
    set(asked "import sys; print('{}.{}'.format(*sys.version_info))")
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${asked}" OUTPUT_VARIABLE ARENA_PYTHON
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "arena is an extension of Python, and no Python was found; say which with "
        "-DPython_EXECUTABLE=/path/to/python.")
    endif()
    message(FATAL_ERROR "arena is compiled when it is installed, and the headers of Python ${ARENA_PYTHON} (Python.h) are missing. "
      "Install them:\n"
      "  Debian, Ubuntu: apt install python${ARENA_PYTHON}-dev\n"
      "  Fedora, RHEL:   dnf install python${ARENA_PYTHON}-devel (python3-devel for the system's own)\n"
      "  Pythons of uv, conda and pyenv have them.")
  endif()
endfunction()
