// SPDX-License-Identifier: Apache-2.0
/// @file What the log_prob calls are told, where they write and what they report.
#pragma once

#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// The tokens that truncated sampling (top-k, top-p, min-p) could have drawn, as a list for each row: the softmax is over them
/// alone, as in the keep-sampling mask of DeepSeek-V3.2. The chosen token belongs to them whether it is listed or not. A row
/// whose list is empty keeps the whole vocabulary.
struct sampling_support {
    row_offsets offsets{};  ///< rows + 1 numbers: row i has ids[offsets[i]] up to ids[offsets[i + 1]]. Absent: no lists
    token_ids ids{};        ///< ascending within a row, none twice
};

/// What both calls must be told alike.
struct log_prob_options {
    double temperature = 1;  ///< of the sampler: logits are divided by it
    column mask{};           ///< u8, zero: the row is left out, and its target and support are not read; absent: none is
    sampling_support support{};
};

/// One number a row each, float or double whatever the logits are; row i's stands at data[i * token_stride].
struct log_prob_outputs {
    output_column log_prob{};
    output_column log_sum_exp{};  ///< of logits / temperature. As doubles it gives the gradient of logits beyond 100 its digits
    output_column entropy{};      ///< in nats
};

/// What the loss says about each row, addressed like log_prob_outputs; absent: 0. A stride of 0 gives all rows the same.
struct log_prob_slopes {
    column log_prob{};  ///< g = d loss / d log-prob
    column entropy{};   ///< h = d loss / d entropy
};

struct log_prob_report {
    std::int64_t rows = 0;              ///< that were computed: not masked, and in the gradient not both slopes 0
    std::int64_t nonfinite = 0;         ///< of these, rows that have no softmax: their outputs are NaN
    std::int64_t first_nonfinite = -1;  ///< the first such row; -1: none
};

namespace detail {

/// Which elements of a row the softmax is over: those that `ids` names from its place `first` on, or the first `count`.
struct row_part {
    std::int64_t count;
    token_ids ids{};
    std::int64_t first = 0;

    [[nodiscard]] ASYNCRL_HOST_DEVICE bool listed() const { return static_cast<bool>(ids); }
    [[nodiscard]] ASYNCRL_HOST_DEVICE std::int64_t operator[](std::int64_t i) const { return listed() ? ids[first + i] : i; }
    /// Of a list, which ascends: its first place whose element is not below `element`; `count` if there is none.
    [[nodiscard]] ASYNCRL_HOST_DEVICE std::int64_t first_from(std::int64_t element) const {
        std::int64_t low = 0;
        std::int64_t high = count;
        while (low < high) {
            std::int64_t const middle = low + (high - low) / 2;
            if (ids[first + middle] < element) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE bool names(std::int64_t element) const {
        std::int64_t const at = first_from(element);
        return at < count && ids[first + at] == element;
    }
};

[[nodiscard]] ASYNCRL_HOST_DEVICE bool is_masked(column const& mask, std::int64_t row) {
    return mask && static_cast<std::uint8_t const*>(mask.data)[row * mask.token_stride] == 0;
}

[[nodiscard]] ASYNCRL_HOST_DEVICE row_part part_of_row(matrix const& logits, sampling_support const& support,
                                                       std::int64_t row) {
    if (support.offsets) {
        std::int64_t const first = support.offsets[row];
        std::int64_t const count = support.offsets[row + 1] - first;
        if (count > 0) {
            return {count, support.ids, first};
        }
    }
    return {logits.columns};
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
