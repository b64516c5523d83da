#include "cudasim/prices.hpp"

#include <array>

namespace cudasim {
namespace {

struct Row {
  std::string_view function;
  double base;      // for memory of up to `included` MiB
  double per_mib;   // for each MiB above that
  double included;  // MiB
};

using Table = std::array<Row, 10>;

constexpr Table kA100{{{"cuMemCreate", 193, 0.4, 2},
                       {"cuMemMap", 1.5, 0, 0},
                       {"cuMemSetAccess", 36, 0, 0},
                       {"cuMemUnmap", 26, 0, 0},
                       {"cuMemRelease", 30, 0, 0},
                       {"cuMemAddressReserve", 19, 0, 0},
                       {"cuMemAlloc", 100, 0.4, 0},
                       {"cuEventRecord", 1, 0, 0},
                       {"cuEventQuery", 0.5, 0, 0},
                       {"cuMemGetInfo", 10, 0, 0}}};

constexpr Table kSmall{{{"cuMemCreate", 7.6, 0.4, 2},
                        {"cuMemMap", 1.1, 0, 0},
                        {"cuMemSetAccess", 21, 0, 0},
                        {"cuMemUnmap", 11, 0, 0},
                        {"cuMemRelease", 5, 0, 0},
                        {"cuMemAddressReserve", 9, 0, 0},
                        {"cuMemAlloc", 60, 0.2, 0},
                        {"cuEventRecord", 1, 0, 0},
                        {"cuEventQuery", 0.5, 0, 0},
                        {"cuMemGetInfo", 10, 0, 0}}};

}  // namespace

double price(Prices table, std::string_view function, std::uint64_t bytes) {
  if (table == Prices::kFree) return 0;
  if (function == "cuEventRecordWithFlags" || function == "cuCtxRecordEvent") function = "cuEventRecord";
  for (const Row& row : table == Prices::kA100 ? kA100 : kSmall) {
    if (row.function != function) continue;
    const double mib = static_cast<double>(bytes) / (1 << 20);
    return row.base + row.per_mib * (mib > row.included ? mib - row.included : 0);
  }
  return 0;
}

}  // namespace cudasim
