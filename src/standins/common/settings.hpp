// How much workspace the libraries ask for. What the real ones want depends on kernels that are not here, so it is an
// assumption: an estimate from the sizes of the problem, or what the environment says.
//
//   CUDASIM_WORKSPACE_CUDNN=64MiB    each workspace query of cuDNN is answered with this; likewise _CUBLASLT, _CUFFT, _CUSOLVER,
//                                    _CUSPARSE, _CUSPARSELT
//
// A value that is no size is reported on standard error once, and the estimate is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace standins {

// What CUDASIM_WORKSPACE_<library> says, if it is set and valid.
std::optional<std::uint64_t> workspace_setting(std::string_view library);

// The setting, or else the estimate.
std::uint64_t workspace(std::string_view library, std::uint64_t estimate);

// A size as text: "67108864", "64MiB", "1.5 GiB". Empty if it is none.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace standins
