// SPDX-License-Identifier: Apache-2.0
/// @file Both calls with an objective whose numbers lie in device memory, and with the same one by value.
#pragma once

#include "device_calls.hpp"

namespace device {

/// The numbers that a schedule changes.
struct schedule {
    double low;
    double high;
    double cap;
    double coefficient;
};

/// Parts that weigh by staleness; that speak of sequences and reject; that wait for an order statistic.
enum class stored_kind { staleness, sequences, order_statistic };
inline constexpr stored_kind every_stored_kind[] = {stored_kind::staleness, stored_kind::sequences,
                                                    stored_kind::order_statistic};

[[nodiscard]] std::size_t numbers_bytes(stored_kind kind);

/// `another_reduction`: of an objective that the calls would read differently on the host.
[[nodiscard]] cudaError_t store(stored_kind kind, schedule const& numbers, void* at, bool another_reduction,
                                cudaStream_t stream);

/// With the numbers that stand at `stored` when the kernels run.
[[nodiscard]] cudaError_t both_stored(stored_kind kind, void* stored, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                                      asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                                      asyncrl::loss_options const& options, cudaStream_t stream);

/// With these numbers, by value.
[[nodiscard]] cudaError_t both_by_value(stored_kind kind, schedule const& numbers, asyncrl::token_batch const& batch,
                                        asyncrl::totals* sums, asyncrl::loss_outputs const& to, asyncrl::loss_report* report,
                                        scratch room, cudaStream_t stream);

}  // namespace device
