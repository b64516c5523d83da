// Proves that src/abi declares the CUDA driver's binary interface as NVIDIA's headers do. Holds only compile-time
// checks and is never linked: tools/check_abi.py compiles it against each set of headers.

// Ours come first: cuda.h makes macros of some of the names in functions.def.
#include "abi/types.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// Lets cuda.h declare each function under every name the library exports: the superseded versions, which are otherwise
// hidden behind macros, and the per-thread twins.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

// Of the profiler. The packages lack its header, which declares two functions that we have, both without parameters.
extern "C" CUresult CUDAAPI cuProfilerStart(void);
extern "C" CUresult CUDAAPI cuProfilerStop(void);
typedef CUresult(CUDAAPI* PFN_cuProfilerStart_v4000)(void);
typedef CUresult(CUDAAPI* PFN_cuProfilerStop_v4000)(void);

// Where a declaration stands, for messages. Compilers differ in how they report places inside of macros.
#define TEXT_OF(token) #token
#define TEXT_OF_VALUE(macro) TEXT_OF(macro)
#define HERE __FILE__ ":" TEXT_OF_VALUE(__LINE__) ": "

// A second meaning for every function name we look for, so that one the headers lack fails a static_assert like any
// other difference. `::name` finds what is declared in the global namespace itself, and only without such a declaration
// what a using-directive brings there.
struct Absent {};
namespace absent {
#define CU_FUNCTION(name, version, symbol, stream, params) \
  using PFN_##name##_v##version = Absent;                  \
  inline constexpr Absent symbol{};                        \
  inline constexpr Absent symbol##_ptsz{};                 \
  inline constexpr Absent symbol##_ptds{};
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
}  // namespace absent
using namespace absent;

namespace abi_check {

namespace cu = arena::cu;

// Which type of theirs each named type of ours stands for. Equal size is not enough: two enums have that, and any two
// handles.
template <typename Ours, typename Theirs>
inline constexpr bool kPaired = false;

#define PAIR(ours, theirs) \
  template <>              \
  inline constexpr bool kPaired<ours, theirs> = true;

PAIR(cu::Result, CUresult)
PAIR(cu::ContextTag, CUctx_st)
PAIR(cu::GreenContextTag, CUgreenCtx_st)
PAIR(cu::StreamTag, CUstream_st)
PAIR(cu::EventTag, CUevent_st)
PAIR(cu::GraphTag, CUgraph_st)
PAIR(cu::GraphExecTag, CUgraphExec_st)
PAIR(cu::GraphNodeTag, CUgraphNode_st)
PAIR(cu::MemPoolTag, CUmemPoolHandle_st)
PAIR(cu::ArrayTag, CUarray_st)
PAIR(cu::ModuleTag, CUmod_st)
PAIR(cu::FunctionTag, CUfunc_st)
PAIR(cu::LibraryTag, CUlib_st)
PAIR(cu::KernelTag, CUkern_st)
PAIR(cu::UserObjectTag, CUuserObject_st)
PAIR(cu::ExecAffinityParam, CUexecAffinityParam)

#define CU_STRUCT(ours, theirs) PAIR(cu::ours, theirs)
#define CU_UNION CU_STRUCT
#define CU_FIELD(type, ours, theirs)
#define CU_PAD(type, ours)
#define CU_END(ours)
#include "abi/structs.def"
#undef CU_STRUCT
#undef CU_UNION
#undef CU_FIELD
#undef CU_PAD
#undef CU_END

// Some of our enums gather what the header has as macros. Those stand for no type, and where the interface takes such a
// number it takes an integer.
#define CU_ENUM(ours, theirs) \
  template <>                 \
  inline constexpr bool kPaired<cu::ours, theirs> = std::is_enum_v<theirs>;
#define CU_VALUE(ours, theirs, value)
#define CU_END_ENUM(ours)
#include "abi/constants.def"
#undef CU_ENUM
#undef CU_VALUE
#undef CU_END_ENUM
#undef PAIR

// Whether two types mean the same to a caller. Arithmetic types must be identical, though a compiler may have two of
// one size: that tells a size from a device address. Typedefs such as cuuint64_t do not get in the way, since the
// header makes them of the same standard typedefs as we do.
template <typename Ours, typename Theirs>
inline constexpr bool kSame =
    kPaired<Ours, Theirs> || (std::is_same_v<Ours, Theirs> && (std::is_arithmetic_v<Ours> || std::is_void_v<Ours>));
template <typename Ours, typename Theirs>
inline constexpr bool kSame<const Ours, const Theirs> = kSame<Ours, Theirs>;
template <typename Ours, typename Theirs>
inline constexpr bool kSame<Ours*, Theirs*> = kSame<Ours, Theirs>;
template <typename Ours, typename... OurParams, typename Theirs, typename... TheirParams>
  requires(sizeof...(OurParams) == sizeof...(TheirParams))
inline constexpr bool kSame<Ours(OurParams...), Theirs(TheirParams...)> =
    kSame<Ours, Theirs> && (kSame<OurParams, TheirParams> && ...);

static_assert(kSame<int, int> && !kSame<int, unsigned> && !kSame<int*, unsigned*> && !kSame<int, float>);
static_assert(!kSame<unsigned long, unsigned long long> && !kSame<unsigned long*, unsigned long long*>);
static_assert(kSame<const char**, const char**> && !kSame<const char*, char*> && !kSame<char*, const char*>);
static_assert(!kSame<const char**, char* const*> && !kSame<void*, void**> && !kSame<void*, char*>);
static_assert(kSame<cu::Stream, CUstream> && kSame<const cu::GraphNode**, const CUgraphNode**>);
static_assert(!kSame<cu::Stream, CUevent> && !kSame<cu::Stream, void*> && !kSame<cu::Stream, CUstream*>);
static_assert(kSame<cu::Result, CUresult> && !kSame<cu::Result, unsigned> && !kSame<unsigned, CUresult>);
static_assert(!kSame<cu::CaptureMode, CUstreamCaptureStatus> && !kSame<cu::HostAllocFlag, unsigned>);
static_assert(kSame<const cu::Uuid*, const CUuuid*> && !kSame<cu::Uuid*, CUmemLocation*>);
static_assert(kSame<cu::Result(int, char), CUresult(const int, char)> && !kSame<void(int), void()>);
static_assert(!kSame<void(int, char), void(char, int)> && !kSame<void(), int()>);
static_assert(kSame<cu::StreamCallback, CUstreamCallback> && !kSame<cu::HostFunction, CUstreamCallback>);

// Fields may differ further where we only pass bytes on: pointers that we keep as void*, arrays of any kind of char.
template <typename Ours, typename Theirs>
inline constexpr bool kSameField = kSame<Ours, Theirs> || (std::is_same_v<Ours, void*> && std::is_pointer_v<Theirs>);
template <typename Ours, typename Theirs, std::size_t kLength>
inline constexpr bool kSameField<Ours[kLength], Theirs[kLength]> =
    kSame<Ours, Theirs> || (sizeof(Ours) == 1 && sizeof(Theirs) == 1);

namespace values {

// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are numbers cast to CUstream, and a number cast to a pointer is no constant
// expression. In this namespace their macros cast to an integer instead.
using CUstream = std::uintptr_t;

// An enumerator has to be in the right enum, too. What is a macro in the header has no enum to be in.
template <typename Value, typename Enum>
inline constexpr bool kBelongs = std::is_same_v<Value, Enum> || !std::is_enum_v<Enum>;

#define CU_ENUM(ours, theirs) \
  namespace of_##ours {       \
    using Ours = cu::ours;    \
    using Theirs = theirs;    \
    static_assert(sizeof(Ours) == sizeof(Theirs), HERE #ours " (" #theirs "): size");
#define CU_VALUE(ours, theirs, value)                                                                     \
  static_assert(static_cast<unsigned long long>(theirs) == cu::bits(Ours::ours), HERE #theirs ": value"); \
  static_assert(kBelongs<decltype(theirs), Theirs>, HERE #theirs ": is in another enum");
#define CU_END_ENUM(ours) }
#if CUDA_VERSION < 13000
#define CU_VALUE_13(ours, theirs, value)
#endif
#include "abi/constants.def"

#define CU_RESULT(ours, theirs, value, text) CU_VALUE(ours, theirs, value)
#if CUDA_VERSION < 13000
#define CU_RESULT_13(ours, theirs, value, text)
#endif
CU_ENUM(Result, CUresult)
#include "abi/results.def"
CU_END_ENUM(Result)
#undef CU_RESULT
#undef CU_ENUM
#undef CU_VALUE
#undef CU_END_ENUM

}  // namespace values

namespace layouts {

#define CU_STRUCT(ours, theirs)                                                              \
  namespace of_##ours {                                                                      \
    using Ours = cu::ours;                                                                   \
    using Theirs = ::theirs;                                                                 \
    static_assert(sizeof(Ours) == sizeof(Theirs), HERE #ours " (" #theirs "): size");        \
    static_assert(alignof(Ours) == alignof(Theirs), HERE #ours " (" #theirs "): alignment"); \
    static_assert(std::is_standard_layout_v<Ours> && std::is_standard_layout_v<Theirs>,      \
                  HERE #ours " (" #theirs "): is no plain C struct");
#define CU_UNION CU_STRUCT
#define CU_FIELD(type, ours, theirs)                                                                              \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs), HERE #ours " (" #theirs "): offset");           \
  static_assert(sizeof(Ours::ours) == sizeof(std::declval<Theirs&>().theirs), HERE #ours " (" #theirs "): size"); \
  static_assert(kSameField<decltype(Ours::ours), decltype(std::declval<Theirs&>().theirs)>,                       \
                HERE #ours " (" #theirs "): type");
#define CU_PAD(type, ours)
#define CU_END(ours) }
#include "abi/structs.def"
#undef CU_STRUCT
#undef CU_UNION
#undef CU_FIELD
#undef CU_PAD
#undef CU_END

}  // namespace layouts

namespace prototypes {

enum NullStream : bool { kStreamless, kDefaultStream };

// Whether the header has the function a second time, for the per-thread default stream, if and only if it should.
// `Ptsz` and `Ptds` are the two names such a twin can have.
template <NullStream kStream, typename Ours, typename Ptsz, typename Ptds>
inline constexpr bool kTwinAsDeclared = kSame<Ours, Ptsz> || kSame<Ours, Ptds>;
template <typename Ours, typename Ptsz, typename Ptds>
inline constexpr bool kTwinAsDeclared<kStreamless, Ours, Ptsz, Ptds> =
    std::is_same_v<Ptsz, const Absent*> && std::is_same_v<Ptds, const Absent*>;

// The typedef proves what cuGetProcAddress returns for the name and version, the function what is exported.
#define CU_FUNCTION(name, version, symbol, stream, params)                                                        \
  static_assert(kSame<cu::fn::symbol*, ::PFN_##name##_v##version>,                                                \
                HERE #name " version " #version ": missing, or another prototype");                               \
  static_assert(kSame<cu::fn::symbol*, decltype(&::symbol)>, HERE #symbol ": missing, or another prototype");     \
  static_assert(kTwinAsDeclared<stream, cu::fn::symbol*, decltype(&::symbol##_ptsz), decltype(&::symbol##_ptds)>, \
                HERE #symbol ": is not " #stream);
#if CUDA_VERSION >= 13000
#define CU_FUNCTION_13 CU_FUNCTION
#else
#define CU_FUNCTION_13(name, version, symbol, stream, params) \
  static_assert(std::is_same_v<decltype(&::symbol), const Absent*>, HERE #symbol ": is in CUDA 12, too");
#endif
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION

}  // namespace prototypes

}  // namespace abi_check
