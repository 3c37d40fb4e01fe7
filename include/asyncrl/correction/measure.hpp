// SPDX-License-Identifier: Apache-2.0
/// @file The pre-pass over a batch: the counts by which losses are divided, and the order statistic that SAT asks for.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/host_loop.hpp>
#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/quantile.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Positions of one row, counted over the whole batch.
[[nodiscard]] inline chunk_range row_range(token_batch const& batch, std::int64_t row) {
    if (batch.packed()) {
        return {batch.offsets[row], batch.offsets[row + 1] - batch.offsets[row]};
    }
    return {row * batch.tokens, batch.tokens};
}

/// Calls visit(part) for the pieces of a range of at most chunk_size positions.
template <typename Visit>
void for_each_piece(chunk_range range, Visit visit) {
    for (std::int64_t done = 0; done < range.count; done += chunk_size) {
        visit(chunk_range{range.begin + done, std::min(chunk_size, range.count - done)});
    }
}

[[nodiscard]] inline std::int64_t active_in_row(token_batch const& batch, std::int64_t row) {
    chunk_range const range = row_range(batch, row);
    if (!batch.mask) {
        return range.count;
    }
    std::int64_t active = 0;
    for_each_piece(range, [&](chunk_range piece) {
        alignas(64) std::uint8_t buffer[chunk_size];
        std::int64_t const padded = padded_to(piece.count, packing<native_lanes>::width);
        std::uint8_t const* mask = staged_mask(batch, piece, padded, buffer);
        bits_of<native_lanes> set{};
        for (std::int64_t i = 0; i < padded; i += packing<native_lanes>::width) {
            tick_low(set, packing<native_lanes>::load_mask(mask + i));
        }
        active += packing<native_lanes>::sum(set);
    });
    return active;
}

template <typename Real, typename Bound>
[[nodiscard]] std::int64_t kept_in_row(Bound const& objective, token_batch const& batch, std::int64_t row) {
    std::int64_t kept = 0;
    for_each_piece(row_range(batch, row), [&](chunk_range piece) {
        input_buffers<typename packing<Real>::element> buffers;
        std::int64_t const padded = padded_to(piece.count, packing<Real>::width);
        auto const in = stage_inputs<Bound::needs>(batch, piece, padded, buffers);
        kept += kept_in_chunk<Real>(objective, in, padded, stored_sentinel(batch));
    });
    return kept;
}

/// Writes each row's count of active or kept tokens to `counts`.
template <typename Objective, typename Executor>
void count_rows(Objective const& objective, token_batch const& batch, counted which, double* counts, Executor const& execute) {
    constexpr std::int64_t rows_per_task = 64;
    auto const each_row = [&](auto const& count) {
        auto const task = [&](std::int64_t block) {
            std::int64_t const end = std::min(batch.rows, (block + 1) * rows_per_task);
            for (std::int64_t row = block * rows_per_task; row < end; ++row) {
                counts[row] = static_cast<double>(count(row));
            }
        };
        execute((batch.rows + rows_per_task - 1) / rows_per_task, task_ref(task));
    };
    if constexpr ((Objective::needs & may_reject) != 0) {
        if (which == counted::kept && batch.log_prob.type == dtype::f64) {
            auto const bound = objective.template bind<double>();
            return each_row([&](std::int64_t row) { return kept_in_row<double>(bound, batch, row); });
        }
        if (which == counted::kept) {
            auto const bound = objective.template bind<float>();
            return each_row([&](std::int64_t row) { return kept_in_row<native_lanes>(bound, batch, row); });
        }
    }
    each_row([&](std::int64_t row) { return active_in_row(batch, row); });
}

}  // namespace detail

/// Counts one batch. Add up the results of all micro-batches and ranks of the optimizer step, then call `policy_loss`.
///
/// Reads the mask alone (1 byte a position), or nothing without one; the log-probs too where the reduction counts kept
/// tokens and the objective has a mask. For SAT it finds the order statistic of this batch, exactly, by one pass over the
/// log-probs beside a small sample; massive ties and unlucky samples cost three more.
/// @throws std::invalid_argument naming what is wrong with the batch, or if it does not fit the workspace.
template <typename Objective, typename Executor = serial>
[[nodiscard]] totals measure(Objective const& objective, token_batch const& batch, workspace& scratch,
                             Executor const& execute = {}) {
    detail::check_batch(batch, Objective::needs);
    scratch.require_room(batch);
    double* counts = scratch.rows();
    auto const add_up = [&](std::int64_t& tokens, std::int64_t& sequences) {
        for (std::int64_t row = 0; row < batch.rows; ++row) {
            tokens += static_cast<std::int64_t>(counts[row]);
            sequences += counts[row] > 0 ? 1 : 0;
        }
    };
    totals result;
    result.counts.batches = 1;
    detail::count_rows(objective, batch, counted::active, counts, execute);
    add_up(result.counts.tokens, result.counts.sequences);
    if ((Objective::needs & may_reject) != 0 && objective.rule().over == counted::kept) {
        detail::count_rows(objective, batch, counted::kept, counts, execute);
        add_up(result.counts.kept_tokens, result.counts.kept_sequences);
    } else {
        result.counts.kept_tokens = result.counts.tokens;
        result.counts.kept_sequences = result.counts.sequences;
    }
    if constexpr ((Objective::needs & batch_quantile) != 0) {
        fraction const share = objective.quantile();
        result.quantile =
            batch.log_prob.type == dtype::f64
                ? detail::quantile_of_batch<Objective::needs, double>(batch, share, scratch, execute)
                : detail::quantile_of_batch<Objective::needs, detail::native_lanes>(batch, share, scratch, execute);
    }
    return result;
}

ASYNCRL_END_NAMESPACE
