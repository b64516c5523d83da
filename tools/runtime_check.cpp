// Proves that src/abi/runtime declares the CUDA runtime's binary interface as NVIDIA's headers do. Holds only compile-time
// checks and is never linked: tools/check_abi.py compiles it against each set of headers.

// Ours come first: the headers make macros of some of the names in functions.def.
#include "abi/runtime/types.hpp"

#include <cstddef>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>

// These two are in a header that NVIDIA ships apart.
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();

#define TEXT_OF(token) #token
#define TEXT_OF_VALUE(macro) TEXT_OF(macro)
#define HERE __FILE__ ":" TEXT_OF_VALUE(__LINE__) ": "

namespace runtime_check {

namespace cu = arena::cu;
namespace rt = arena::rt;

// Which type of theirs each named type of ours stands for.
template <typename Ours, typename Theirs>
inline constexpr bool kPaired = false;

#define PAIR(ours, theirs) \
  template <>              \
  inline constexpr bool kPaired<ours, theirs> = true;

PAIR(rt::Error, cudaError)
PAIR(rt::MemcpyKind, cudaMemcpyKind)
PAIR(rt::MemoryType, cudaMemoryType)
PAIR(cu::CaptureMode, cudaStreamCaptureMode)
PAIR(cu::CaptureStatus, cudaStreamCaptureStatus)
PAIR(cu::ProcAddressQuery, cudaDriverEntryPointQueryResult)
PAIR(cu::StreamTag, CUstream_st)
PAIR(cu::EventTag, CUevent_st)
PAIR(cu::GraphTag, CUgraph_st)
PAIR(cu::GraphExecTag, CUgraphExec_st)
PAIR(cu::GraphNodeTag, CUgraphNode_st)
PAIR(cu::MemPoolTag, CUmemPoolHandle_st)
PAIR(cu::FunctionTag, CUfunc_st)
PAIR(cu::KernelTag, CUkern_st)
PAIR(cu::LibraryTag, CUlib_st)
PAIR(cu::UserObjectTag, CUuserObject_st)
PAIR(cu::ArrayTag, cudaArray)
PAIR(cu::Uuid, CUuuid_st)
PAIR(cu::MemLocation, cudaMemLocation)
PAIR(cu::MemAccessDesc, cudaMemAccessDesc)
PAIR(cu::MemPoolProps, cudaMemPoolProps)
PAIR(cu::GraphEdgeData, cudaGraphEdgeData_st)
PAIR(rt::IpcMemHandle, cudaIpcMemHandle_st)
PAIR(rt::IpcEventHandle, cudaIpcEventHandle_st)

#define RT_STRUCT(ours, theirs) PAIR(rt::ours, theirs)
#define RT_FIELD(type, ours, theirs)
#define RT_ARRAY(type, ours, theirs, length)
#define RT_PAD(type, ours, length)
#define RT_END(ours)
#include "abi/runtime/structs.def"
#undef RT_STRUCT
#undef RT_FIELD
#undef RT_ARRAY
#undef RT_PAD
#undef RT_END
#undef PAIR

// Whether two types mean the same to a caller. Enums that the runtime passes on without looking are plain numbers here, and
// structs that it passes on are void.
template <typename Ours, typename Theirs>
inline constexpr bool kSame =
    kPaired<Ours, Theirs> || (std::is_same_v<Ours, Theirs> && (std::is_arithmetic_v<Ours> || std::is_void_v<Ours>)) ||
    (std::is_same_v<Ours, unsigned> && std::is_enum_v<Theirs>) || (std::is_same_v<Ours, int> && std::is_enum_v<Theirs>);
template <typename Ours, typename Theirs>
inline constexpr bool kSame<const Ours, const Theirs> = kSame<Ours, Theirs>;
template <typename Ours, typename Theirs>
inline constexpr bool kSame<Ours*, Theirs*> =
    kSame<Ours, Theirs> || (std::is_void_v<Ours> && std::is_union_v<std::remove_const_t<Theirs>>);
template <typename Ours, typename... OurParams, typename Theirs, typename... TheirParams>
  requires(sizeof...(OurParams) == sizeof...(TheirParams))
inline constexpr bool kSame<Ours(OurParams...), Theirs(TheirParams...)> =
    kSame<Ours, Theirs> && (kSame<OurParams, TheirParams> && ...);

static_assert(kSame<int, int> && !kSame<int, unsigned> && !kSame<void*, int*> && !kSame<int, float>);
static_assert(kSame<cu::Stream, cudaStream_t> && !kSame<cu::Stream, cudaEvent_t> && !kSame<const char*, char*>);
static_assert(kSame<rt::Error, cudaError_t> && !kSame<rt::Error, int> && kSame<unsigned, cudaLimit>);

template <typename Ours, typename Theirs>
inline constexpr bool kSameField = kSame<Ours, Theirs> || (std::is_same_v<Ours, void*> && std::is_pointer_v<Theirs>);

#define RT_ERROR(ours, theirs, value, text) \
  static_assert(static_cast<unsigned>(::theirs) == static_cast<unsigned>(rt::Error::ours), HERE #theirs ": value");
#if CUDART_VERSION < 13000
#define RT_ERROR_13(ours, theirs, value, text)
#endif
#include "abi/runtime/errors.def"
#undef RT_ERROR

namespace properties {
#define RT_PROPERTY(type, ours, theirs, attribute, number) \
  static_assert(::attribute == number, HERE #attribute ": value");
#define RT_PROPERTIES(ours, theirs, length, ...)
#include "abi/runtime/properties.def"
#undef RT_PROPERTY
#undef RT_PROPERTIES
}  // namespace properties

namespace layouts {
#define RT_STRUCT(ours, theirs)                                                       \
  namespace of_##ours {                                                               \
    using Ours = rt::ours;                                                            \
    using Theirs = ::theirs;                                                          \
    static_assert(sizeof(Ours) == sizeof(Theirs), HERE #ours " (" #theirs "): size"); \
    static_assert(alignof(Ours) == alignof(Theirs), HERE #ours " (" #theirs "): alignment");
#define RT_FIELD(type, ours, theirs)                                                                    \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs), HERE #ours " (" #theirs "): offset"); \
  static_assert(kSameField<decltype(Ours::ours), decltype(Theirs::theirs)>, HERE #ours " (" #theirs "): type");
#define RT_ARRAY(type, ours, theirs, length)                                                            \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs), HERE #ours " (" #theirs "): offset"); \
  static_assert(std::is_same_v<type[length], decltype(Theirs::theirs)>, HERE #ours " (" #theirs "): type");
#define RT_PAD(type, ours, length)
#define RT_END(ours) }
#include "abi/runtime/structs.def"
#undef RT_STRUCT
#undef RT_FIELD
#undef RT_ARRAY
#undef RT_PAD
#undef RT_END
}  // namespace layouts

namespace prototypes {
#define RT_FUNCTION(result, name, twin, params, arguments) \
  static_assert(kSame<rt::fn::name*, decltype(&::name)>, HERE #name ": missing, or another prototype");
#define RT_COMPILED(result, name, twin, params, arguments)
#include "abi/runtime/functions.def"
#undef RT_FUNCTION
}  // namespace prototypes

}  // namespace runtime_check
