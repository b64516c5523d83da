// How much workspace the libraries ask for. What the real ones want depends on kernels that are not here, so it is an
// estimate (catalogue.hpp), or what the environment says.
//
//   CUDASIM_WORKSPACE_CUDNN=64MiB        each workspace query of cuDNN is answered with this; likewise _CUBLASLT, _CUFFT,
//                                        _CUSOLVER, _CUSPARSE, _CUSPARSELT
//   CUDASIM_WORKSPACE_ESTIMATES=most     estimates are answered with the most that they may be, or the `least`; otherwise with
//                                        what is likely
//   CUDASIM_WORKSPACE_LOG=<file>         a line is added to it for each estimate that is less certain than those of its library
//                                        before: "CUFFT 0 8192 8192", from the least to the most
//
// A value that is no size is reported on standard error once, and the estimate is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "standins/common/catalogue.hpp"

namespace standins {

// What CUDASIM_WORKSPACE_<library> says, if it is set and valid.
std::optional<std::uint64_t> workspace_setting(std::string_view library);

// The setting, or else the estimate.
std::uint64_t workspace(std::string_view library, const Estimate& estimate);

// The estimate, whatever is set: of memory that is no workspace.
std::uint64_t estimated(std::string_view library, const Estimate& estimate);

// The setting, or else this size, which is certain.
std::uint64_t workspace(std::string_view library, std::uint64_t size);

// A size as text: "67108864", "64MiB", "1.5 GiB". Empty if it is none.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace standins
