// SPDX-License-Identifier: Apache-2.0
/// @file How far apart two policies are on a batch: the statistics alone, when no correction is on or before one is chosen.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/host_loop.hpp>
#include <asyncrl/correction/measure.hpp>
#include <asyncrl/correction/mismatch_report.hpp>
#include <asyncrl/correction/token/mismatch_tally.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Sums of one chunk; writes |e| of each counted token to `magnitudes`, and -1 for the others.
template <typename Real>
[[nodiscard]] mismatch_partial mismatch_of_chunk(chunk_inputs<typename packing<Real>::element> const& in, std::int64_t padded,
                                                 mismatch_bounds<Real> const& bounds, double missing_number,
                                                 typename packing<Real>::element* magnitudes) {
    using pack = packing<Real>;
    sentinel<Real> const missing(missing_number);
    mismatch_tally<Real> t;
    for (std::int64_t i = 0; i < padded; i += pack::width) {
        observed<Real> token = load_tokens<mismatch_needs, Real>(in, i, missing);
        screen(token);
        pack::store(magnitudes + i, t.add(token, bounds));
    }
    return {{pack::sum(t.log_ratio), pack::sum(t.absolute_log_ratio), pack::sum(t.k3_sum), pack::sum(t.total_variation),
             pack::sum(t.raw), pack::sum(t.raw_squared), pack::sum(t.truncated), pack::sum(t.truncated_squared),
             pack::sum(t.masked), pack::sum(t.masked_squared)},
            {pack::sum(t.tokens), 0, pack::sum(t.below_one), pack::sum(t.at_cap), pack::sum(t.out_of_band),
             pack::sum(t.unscored), pack::sum(t.nonfinite), pack::sum(t.overflow)},
            {pack::maximum(t.largest), pack::maximum(t.largest_negated), -INFINITY, -INFINITY}};
}

/// The sum of e over a row's counted tokens, or NaN where it has none.
[[nodiscard]] inline double sequence_log_ratio(token_batch const& batch, std::int64_t row) {
    double sum = 0;
    bool any = false;
    for_each_piece(row_range(batch, row), [&](chunk_range piece) {
        input_buffers<double, mismatch_needs> buffers;
        auto const in = stage_inputs<mismatch_needs>(batch, piece, piece.count, buffers);
        sentinel<double> const missing(stored_sentinel(batch));
        for (std::int64_t i = 0; i < piece.count; ++i) {
            observed<double> token = load_tokens<mismatch_needs, double>(in, i, missing);
            screen(token);
            if (token.live && !token.unscored) {
                sum += token.t.log_mismatch;
                any = true;
            }
        }
    });
    return any ? sum : std::numeric_limits<double>::quiet_NaN();
}

template <typename Real, typename Executor>
void mismatch_over_chunks(token_batch const& batch, mismatch_options const& options, mismatch_report& report,
                          workspace& scratch, Executor const& execute) {
    using element = typename packing<Real>::element;
    auto* partials = scratch.partials<mismatch_partial>();
    mismatch_bounds<Real> const bounds(options);
    auto const task = [&](std::int64_t chunk) {
        input_buffers<element, mismatch_needs> buffers;
        alignas(64) element magnitudes[chunk_size];
        chunk_range const range = chunk_at(batch, chunk);
        std::int64_t const padded = padded_to(range.count, packing<Real>::width);
        auto const in = stage_inputs<mismatch_needs>(batch, range, padded, buffers);
        partials[chunk] = mismatch_of_chunk<Real>(in, padded, bounds, stored_sentinel(batch), magnitudes);
        report.histogram.add(magnitudes, range.count);
    };
    std::int64_t const chunks = chunk_count(batch.size());
    execute(chunks, task_ref(task));
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        mismatch_report part;
        part.sums = partials[chunk].sums;
        part.counts = partials[chunk].counts;
        part.maxima = partials[chunk].maxima;
        report += part;
    }
}

}  // namespace detail

/// Measures the pair on one batch. Needs the two log-prob columns alone; two passes over them.
///
/// A token without a rollout log-prob (token_batch::unscored) or with a non-finite one is counted and left out of the rest.
/// @throws std::invalid_argument naming what is wrong with batch or options, or if the batch does not fit the workspace.
template <typename Executor = serial>
[[nodiscard]] mismatch_report mismatch(token_batch const& batch, workspace& scratch, mismatch_options const& options = {},
                                       Executor const& execute = {}) {
    detail::require(options.cap > 0 && std::isfinite(options.cap), "mismatch_options.cap", options.cap, "finite and > 0");
    detail::require(options.low >= 0, "mismatch_options.low", options.low, ">= 0");
    detail::require(options.high > options.low, "mismatch_options.high", options.high, "greater than mismatch_options.low");
    token_batch const pair = detail::with_pair(batch, options.pair);
    detail::check_shape(pair);
    detail::check_column(pair.old_log_prob,
                         options.pair == policy_pair::old_rollout ? "token_batch.old_log_prob" : "token_batch.log_prob", pair);
    detail::check_column(pair.rollout_log_prob,
                         options.pair == policy_pair::new_old ? "token_batch.old_log_prob" : "token_batch.rollout_log_prob",
                         pair);
    detail::check_batch(pair, detail::mismatch_needs);
    scratch.require_room(pair);

    mismatch_report report;
    if (pair.log_prob.type == dtype::f64) {
        detail::mismatch_over_chunks<double>(pair, options, report, scratch, execute);
    } else {
        detail::mismatch_over_chunks<detail::native_lanes>(pair, options, report, scratch, execute);
    }
    double* row_sums = scratch.rows();
    auto const task = [&](std::int64_t row) { row_sums[row] = detail::sequence_log_ratio(pair, row); };
    execute(pair.rows, task_ref(task));
    for (std::int64_t row = 0; row < pair.rows; ++row) {
        if (!is_nan(row_sums[row])) {
            ++report.counts.sequences;
            report.maxima.sequence_log_ratio = std::max(report.maxima.sequence_log_ratio, row_sums[row]);
            report.maxima.negated_sequence_log_ratio = std::max(report.maxima.negated_sequence_log_ratio, -row_sums[row]);
        }
    }
    return report;
}

ASYNCRL_END_NAMESPACE
