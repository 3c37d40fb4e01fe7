// SPDX-License-Identifier: Apache-2.0
/// @file What the totals of a step say to the parts that wait for numbers of the whole batch.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/correction/totals.hpp>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

[[nodiscard]] ASYNCRL_HOST_DEVICE batch_numbers batch_numbers_of(totals const& sums) {
    batch_numbers numbers;
    numbers.quantile = is_nan(sums.quantile) ? 0 : sums.quantile;
    auto const kept = static_cast<double>(sums.counts.kept_tokens);
    numbers.mean_weight = kept > 0 && sums.weight > 0 ? sums.weight / kept : 1;
    return numbers;
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
