// SPDX-License-Identifier: Apache-2.0
/// @file The pre-pass over a batch: the counts by which losses are divided, and the order statistic that SAT asks for.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/sequence_loop.hpp>
#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/quantile.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

[[nodiscard]] inline std::int64_t active_in_row(token_batch const& batch, std::int64_t row) {
    chunk_range const range = row_range(batch, row);
    if (!batch.mask) {
        return range.count;
    }
    std::int64_t active = 0;
    for_each_piece(range, [&](chunk_range piece) {
        alignas(64) std::uint8_t buffer[chunk_size];
        std::int64_t const padded = padded_to(piece.count, packing<native_lanes>::width);
        std::uint8_t const* mask = staged_flags(batch.mask, batch, piece, padded, buffer);
        bits_of<native_lanes> set{};
        for (std::int64_t i = 0; i < padded; i += packing<native_lanes>::width) {
            tick_low(set, packing<native_lanes>::load_mask(mask + i));
        }
        active += packing<native_lanes>::sum(set);
    });
    return active;
}

template <typename Real, typename Bound>
[[nodiscard]] kept_weight kept_in_row(Bound const& objective, token_batch const& batch, sequence_values const* values,
                                      std::int64_t row) {
    using element = typename packing<Real>::element;
    kept_weight sum{};
    for_each_piece(row_range(batch, row), [&](chunk_range piece) {
        input_buffers<element, Bound::needs> buffers;
        staged_sequences<Bound::needs, element> stage;
        std::int64_t const padded = padded_to(piece.count, packing<Real>::width);
        auto const in = stage_inputs<Bound::needs>(batch, piece, padded, buffers);
        kept_weight const part =
            kept_in_chunk<Real>(objective, in, stage(batch, values, piece, padded), padded, stored_sentinel(batch));
        sum = {sum.tokens + part.tokens, sum.weight + part.weight};
    });
    return sum;
}

/// Writes each row's count of active tokens to `counts`.
template <typename Executor>
void count_active(token_batch const& batch, double* counts, Executor const& execute) {
    for_each_row(batch.rows, execute, [&](std::int64_t row) { counts[row] = static_cast<double>(active_in_row(batch, row)); });
}

/// Writes each row's count of kept tokens to `counts`, and their effective weight to `weights` if there is need of it.
template <typename Real, typename Bound, typename Executor>
void count_kept(Bound const& objective, token_batch const& batch, sequence_values const* values, double* counts,
                double* weights, Executor const& execute) {
    for_each_row(batch.rows, execute, [&](std::int64_t row) {
        kept_weight const kept = kept_in_row<Real>(objective, batch, values, row);
        counts[row] = static_cast<double>(kept.tokens);
        if (weights != nullptr) {
            weights[row] = kept.weight;
        }
    });
}

inline void add_up(double const* counts, std::int64_t rows, std::int64_t& tokens, std::int64_t& sequences) {
    for (std::int64_t row = 0; row < rows; ++row) {
        tokens += static_cast<std::int64_t>(counts[row]);
        sequences += counts[row] > 0 ? 1 : 0;
    }
}

/// What of the totals depends on more than the mask.
template <typename Real, typename Objective, typename Executor>
void measure_tokens(Objective const& objective, token_batch const& batch, totals& result, workspace& scratch,
                    Executor const& execute) {
    constexpr std::uint32_t needs = Objective::needs;
    auto const bound = objective.template bind<typename packing<Real>::element>();
    bool const count = (needs & may_reject) != 0 && objective.rule().over == counted::kept;
    bool const weigh = (needs & batch_weight) != 0;
    if (count || weigh || (needs & batch_quantile) != 0) {
        decide_sequences<Real>(bound, batch, scratch.sequences(), execute);
    }
    if constexpr ((needs & (may_reject | batch_weight)) != 0) {
        if (count || weigh) {
            count_kept<Real>(bound, batch, scratch.sequences(), scratch.rows(), weigh ? scratch.row_weights() : nullptr,
                             execute);
            result.counts.kept_tokens = result.counts.kept_sequences = 0;
            add_up(scratch.rows(), batch.rows, result.counts.kept_tokens, result.counts.kept_sequences);
        }
        result.weight = weigh ? 0 : result.weight;
        for (std::int64_t row = 0; weigh && row < batch.rows; ++row) {
            result.weight += scratch.row_weights()[row];
        }
    }
    if constexpr ((needs & batch_quantile) != 0) {
        result.quantile = quantile_of_batch<Real>(objective, batch, scratch, execute);
    }
}

}  // namespace detail

/// Counts one batch. Add up the results of all micro-batches and ranks of the optimizer step, then call `policy_loss`.
///
/// Reads the mask alone (1 byte a position), or nothing without one; the log-probs too where the reduction counts kept
/// tokens and the objective has a mask, and for normalised_weights. For SAT it finds the order statistic of this batch,
/// exactly, by one pass over the log-probs beside a small sample; massive ties and unlucky samples cost three more, and
/// interpolation twice as much. One pass more where any of these speaks of sequences.
/// @throws std::invalid_argument naming what is wrong with the batch, or if it does not fit the workspace.
template <typename Objective, typename Executor = serial>
[[nodiscard]] totals measure(Objective const& objective, token_batch const& batch, workspace& scratch,
                             Executor const& execute = {}) {
    detail::check_batch(batch, Objective::needs);
    scratch.require_room(batch);
    totals result;
    result.counts.batches = 1;
    detail::count_active(batch, scratch.rows(), execute);
    detail::add_up(scratch.rows(), batch.rows, result.counts.tokens, result.counts.sequences);
    result.counts.kept_tokens = result.counts.tokens;
    result.counts.kept_sequences = result.counts.sequences;
    if constexpr ((Objective::needs & (may_reject | batch_quantile | batch_weight)) != 0) {
        if (batch.log_prob.type == dtype::f64) {
            detail::measure_tokens<double>(objective, batch, result, scratch, execute);
        } else {
            detail::measure_tokens<detail::native_lanes>(objective, batch, result, scratch, execute);
        }
    }
    return result;
}

ASYNCRL_END_NAMESPACE
