// SPDX-License-Identifier: Apache-2.0
/// @file The calls of objectives.hpp's objectives on both backends.
#pragma once

#include "device_calls.hpp"
#include "objectives.hpp"

#include <string>
#include <vector>

#if !defined(__CUDACC__)
#include <asyncrl/correction/workspace.hpp>
#endif

namespace device {

cudaError_t both(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                 asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room, cudaStream_t stream);
cudaError_t measure(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                    scratch room);

/// The batches that each rank has.
using ranks = std::vector<std::vector<asyncrl::token_batch>>;

[[nodiscard]] std::size_t search_bytes();
/// A search for the order statistic of all ranks, each with a search and totals of its own, one behind the other.
cudaError_t search(int which, methods::any_reduction const& reduce, ranks const& batches, void* searches, asyncrl::totals* sums,
                   scratch room, cudaStream_t stream);
std::string count_refusal(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch,
                          void const* search, scratch room);

}  // namespace device

#if !defined(__CUDACC__)
namespace host {

asyncrl::loss_report both(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch,
                          asyncrl::totals& sums, asyncrl::loss_outputs const& to, asyncrl::workspace& scratch);
asyncrl::totals measure(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch,
                        asyncrl::workspace& scratch);

}  // namespace host
#endif
