// SPDX-License-Identifier: Apache-2.0
/// @file How far apart two policies are on a batch: the statistics alone, when no correction is on or before one is chosen.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/host_loop.hpp>
#include <asyncrl/correction/magnitude_histogram.hpp>
#include <asyncrl/correction/measure.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <cmath>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// The two policies of a log ratio, numerator first.
enum class policy_pair : std::uint8_t { old_rollout, new_rollout, new_old };

struct mismatch_options {
    policy_pair pair = policy_pair::old_rollout;
    double cap = 2;    ///< of the truncated weights
    double low = 0.5;  ///< of the masked weights: kept inside the closed band
    double high = 5;
};

/// Statistics of e = the log ratio of the pair and w = exp(e) over active, scored, finite tokens. Merge by `+=`.
///
/// Weights beyond 2^30 enter the sums as 2^30 and are counted in `overflow`.
struct mismatch_report {
    struct sum_range {
        double log_ratio;
        double absolute_log_ratio;
        double k3;               ///< w - 1 - e
        double total_variation;  ///< |w - 1| / 2
        double raw;              ///< w
        double raw_squared;
        double truncated;  ///< min(w, cap)
        double truncated_squared;
        double masked;  ///< w inside the band, 0 outside
        double masked_squared;
    };
    struct count_range {
        std::int64_t tokens;     ///< active, scored and finite: what the sums are over
        std::int64_t sequences;  ///< rows with at least one such token
        std::int64_t below_one;
        std::int64_t at_cap;       ///< w > cap
        std::int64_t out_of_band;  ///< w < low or w > high
        std::int64_t unscored;
        std::int64_t nonfinite;
        std::int64_t overflow;
    };
    /// Extremes as maxima, so that one rule merges all; the accessors below turn them round. -infinity where there is none.
    struct maximum_range {
        double log_ratio = -INFINITY;
        double negated_log_ratio = -INFINITY;
        double sequence_log_ratio = -INFINITY;
        double negated_sequence_log_ratio = -INFINITY;
    };

    sum_range sums{};
    count_range counts{};
    maximum_range maxima{};
    magnitude_histogram histogram{};  ///< of |e|

    /// Mean over the counted tokens; 0 where there is none.
    [[nodiscard]] double mean(double sum_range::*sum) const {
        return counts.tokens > 0 ? sums.*sum / static_cast<double>(counts.tokens) : 0;
    }
    [[nodiscard]] double share(std::int64_t count_range::*count) const {
        return counts.tokens > 0 ? static_cast<double>(counts.*count) / static_cast<double>(counts.tokens) : 0;
    }
    /// Effective sample size as a share of the tokens: (sum)^2 / (n * sum of squares); 0 where all weights are 0.
    [[nodiscard]] double effective_sample_share(double sum_range::*sum, double sum_range::*squares) const {
        double const n = static_cast<double>(counts.tokens);
        return n > 0 && sums.*squares > 0 ? sums.*sum * sums.*sum / (n * sums.*squares) : 0;
    }
    /// Minus the mean of e: the k1 estimate of KL(denominator || numerator).
    [[nodiscard]] double k1() const { return -mean(&sum_range::log_ratio); }
    [[nodiscard]] double largest_ratio() const { return std::exp(maxima.log_ratio); }
    [[nodiscard]] double smallest_ratio() const { return std::exp(-maxima.negated_log_ratio); }
    [[nodiscard]] double largest_absolute_log_ratio() const {
        return std::max({0.0, maxima.log_ratio, maxima.negated_log_ratio});
    }
    /// Ratios of whole sequences: products over their counted tokens.
    [[nodiscard]] double largest_sequence_ratio() const { return std::exp(maxima.sequence_log_ratio); }
    [[nodiscard]] double smallest_sequence_ratio() const { return std::exp(-maxima.negated_sequence_log_ratio); }
    [[nodiscard]] double largest_absolute_sequence_log_ratio() const {
        return std::max({0.0, maxima.sequence_log_ratio, maxima.negated_sequence_log_ratio});
    }
    /// The quantile of |e| at `share` in [0, 1], at most 1/16 too large and never too small; 0 without tokens.
    [[nodiscard]] double absolute_log_ratio_quantile(double share) const { return histogram.quantile(share); }

    mismatch_report& operator+=(mismatch_report const& other) {
        auto const add = [](auto a, auto b) { return a + b; };
        sums = detail::merged<double>(sums, other.sums, add);
        counts = detail::merged<std::int64_t>(counts, other.counts, add);
        maxima = detail::merged<double>(maxima, other.maxima, [](double a, double b) { return std::max(a, b); });
        histogram += other.histogram;
        return *this;
    }
};

namespace detail {

/// The part of a mismatch_report that one chunk yields.
struct mismatch_partial {
    mismatch_report::sum_range sums;
    mismatch_report::count_range counts;
    mismatch_report::maximum_range maxima;
};

/// Points the loader's `old` and `rollout` columns at the pair.
[[nodiscard]] inline token_batch with_pair(token_batch batch, policy_pair pair) {
    if (pair != policy_pair::old_rollout) {
        column const old = batch.old_log_prob;
        batch.old_log_prob = batch.log_prob;
        if (pair == policy_pair::new_old) {
            batch.rollout_log_prob = old;
            batch.unscored = 1e30;  // no log-prob: the sentinel is one of the rollout column
        }
    }
    return batch;
}

inline constexpr std::uint32_t mismatch_needs = uses_mismatch | reads_old | reads_rollout;

template <typename Real>
struct mismatch_bounds {
    Real log_cap, cap, log_low, log_high;

    explicit mismatch_bounds(mismatch_options const& o)
        : log_cap(std::log(o.cap)), cap(o.cap), log_low(std::log(o.low)), log_high(std::log(o.high)) {}
};

/// Sums of one chunk; writes |e| of each counted token to `magnitudes`, and -1 for the others.
template <typename Real>
[[nodiscard]] mismatch_partial mismatch_of_chunk(chunk_inputs<typename packing<Real>::element> const& in, std::int64_t padded,
                                                 mismatch_bounds<Real> const& bounds, double missing_number,
                                                 typename packing<Real>::element* magnitudes) {
    using pack = packing<Real>;
    sentinel<Real> const missing(missing_number);
    Real log_ratio{}, absolute_log{}, k3_sum{}, variation{}, raw{}, raw2{}, truncated{}, truncated2{}, masked{}, masked2{};
    Real highest(-INFINITY), negated(-INFINITY);
    bits_of<Real> tokens{}, below{}, at_cap{}, outside{}, unscored_count{}, bad{}, overflow{};
    for (std::int64_t i = 0; i < padded; i += pack::width) {
        observed<Real> token = load_tokens<mismatch_needs, Real>(in, i, missing);
        screen(token);
        mask_of<Real> const counts = token.live & !token.unscored;
        Real const e = token.t.log_mismatch;
        mask_of<Real> const over = e > Real(log_mismatch_ceiling);
        Real const w = select(counts, token.t.mismatch, Real(0));
        mask_of<Real> const capped_here = counts & (e > bounds.log_cap);
        mask_of<Real> const inside = (e >= bounds.log_low) & (e <= bounds.log_high);
        Real const t = select(capped_here, bounds.cap, w);
        Real const m = select(inside, w, Real(0));
        log_ratio = log_ratio + e;
        absolute_log = absolute_log + absolute(e);
        k3_sum = k3_sum + select(counts, k3(e, w), Real(0));
        variation = variation + select(counts, absolute(w - Real(1)) * Real(0.5), Real(0));
        raw = raw + w;
        raw2 = raw2 + w * w;
        truncated = truncated + t;
        truncated2 = truncated2 + t * t;
        masked = masked + m;
        masked2 = masked2 + m * m;
        highest = larger(highest, select(counts, e, Real(-INFINITY)));
        negated = larger(negated, select(counts, -e, Real(-INFINITY)));
        tick_low(tokens, counts);
        tick_low(below, counts & (e < Real(0)));
        tick_low(at_cap, capped_here);
        tick_low(outside, counts & !inside);
        tick_low(unscored_count, token.active & token.unscored);
        tick_low(bad, token.active & !token.live);
        tick_low(overflow, over);
        pack::store(magnitudes + i, select(counts, absolute(e), Real(-1)));
    }
    return {{pack::sum(log_ratio), pack::sum(absolute_log), pack::sum(k3_sum), pack::sum(variation), pack::sum(raw),
             pack::sum(raw2), pack::sum(truncated), pack::sum(truncated2), pack::sum(masked), pack::sum(masked2)},
            {pack::sum(tokens), 0, pack::sum(below), pack::sum(at_cap), pack::sum(outside), pack::sum(unscored_count),
             pack::sum(bad), pack::sum(overflow)},
            {pack::maximum(highest), pack::maximum(negated), -INFINITY, -INFINITY}};
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
    token_batch pair = detail::with_pair(batch, options.pair);
    pair.log_prob = pair.old_log_prob;  // the loader reads these two in any case; here they carry nothing of their own
    pair.advantage = pair.old_log_prob;
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
