// SPDX-License-Identifier: Apache-2.0
/// @file Where the mismatch between old and rollout comes from: from updates of the policy, or from the engine's numerics.
///
/// With token_batch::sync_log_prob, the trainer's log-probs of the weights that the rollout policy had, log(old / rollout)
/// splits into lag = log(old / sync) and engine = log(sync / rollout). Without, buckets by staleness tell: bucket 0 is the
/// engine alone.
#pragma once

#include <asyncrl/correction/mismatch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// Both parts over active, scored, finite tokens. Merge by `+=`.
struct mismatch_split_report {
    struct sum_range {
        double lag;
        double engine;
        double lag_squared;
        double engine_squared;
        double product;  ///< lag * engine
    };

    sum_range sums{};
    std::int64_t tokens = 0;
    magnitude_histogram lag{};     ///< of |lag|
    magnitude_histogram engine{};  ///< of |engine|

    [[nodiscard]] double mean(double sum_range::*sum) const { return tokens > 0 ? sums.*sum / static_cast<double>(tokens) : 0; }
    [[nodiscard]] double lag_variance() const { return variance(&sum_range::lag, &sum_range::lag_squared); }
    [[nodiscard]] double engine_variance() const { return variance(&sum_range::engine, &sum_range::engine_squared); }
    /// The variance of the mismatch is the two variances plus twice this.
    [[nodiscard]] double covariance() const {
        return mean(&sum_range::product) - mean(&sum_range::lag) * mean(&sum_range::engine);
    }

    mismatch_split_report& operator+=(mismatch_split_report const& other) {
        sums = detail::merged<double>(sums, other.sums, [](double a, double b) { return a + b; });
        tokens += other.tokens;
        lag += other.lag;
        engine += other.engine;
        return *this;
    }

  private:
    [[nodiscard]] double variance(double sum_range::*sum, double sum_range::*squares) const {
        return std::max(0.0, mean(squares) - mean(sum) * mean(sum));
    }
};

/// The mismatch of tokens of one staleness. Merge by `+=`.
struct staleness_bucket {
    std::int64_t tokens = 0;
    double log_ratio = 0;  ///< sums of e = log(old / rollout)
    double absolute_log_ratio = 0;
    double log_ratio_squared = 0;
    double k3 = 0;  ///< sum of exp(e) - 1 - e
    double largest_absolute_log_ratio = 0;

    staleness_bucket& operator+=(staleness_bucket const& other) {
        tokens += other.tokens;
        log_ratio += other.log_ratio;
        absolute_log_ratio += other.absolute_log_ratio;
        log_ratio_squared += other.log_ratio_squared;
        k3 += other.k3;
        largest_absolute_log_ratio = std::max(largest_absolute_log_ratio, other.largest_absolute_log_ratio);
        return *this;
    }
};

namespace detail {

inline constexpr std::uint32_t split_needs = reads_old | reads_rollout | reads_sync;
inline constexpr std::uint32_t bucket_needs = reads_old | reads_rollout | uses_mismatch | reads_version;

template <typename Real>
[[nodiscard]] mismatch_split_report split_of_chunk(token_batch const& batch, chunk_range range) {
    using pack = packing<Real>;
    using element = typename pack::element;
    input_buffers<element, split_needs> buffers;
    alignas(64) element lags[chunk_size];
    alignas(64) element engines[chunk_size];
    std::int64_t const padded = padded_to(range.count, pack::width);
    auto const in = stage_inputs<split_needs>(batch, range, padded, buffers);
    sentinel<Real> const missing(stored_sentinel(batch));
    Real lag{}, engine{}, lag2{}, engine2{}, product{};
    bits_of<Real> tokens{};
    for (std::int64_t i = 0; i < padded; i += pack::width) {
        observed<Real> token = load_tokens<split_needs, Real>(in, i, missing);
        screen(token);
        mask_of<Real> const counts = token.live & !token.unscored;
        Real const l = select(counts, token.t.log_lag, Real(0));
        Real const e = select(counts, token.t.log_engine, Real(0));
        lag = lag + l;
        engine = engine + e;
        lag2 = lag2 + l * l;
        engine2 = engine2 + e * e;
        product = product + l * e;
        tick_low(tokens, counts);
        pack::store(lags + i, select(counts, absolute(l), Real(-1)));
        pack::store(engines + i, select(counts, absolute(e), Real(-1)));
    }
    mismatch_split_report report;
    report.sums = {pack::sum(lag), pack::sum(engine), pack::sum(lag2), pack::sum(engine2), pack::sum(product)};
    report.tokens = pack::sum(tokens);
    report.lag.add(lags, range.count);
    report.engine.add(engines, range.count);
    return report;
}

inline void stage_versions(token_batch const& batch, chunk_range range, double* to) {
    auto const convert = [](auto version) { return static_cast<double>(version); };
    if (batch.version.type == dtype::i32) {
        gather<std::int32_t>(batch.version, batch, range, to, convert);
    } else {
        gather<std::int64_t>(batch.version, batch, range, to, convert);
    }
}

}  // namespace detail

/// Splits the mismatch of one batch by token_batch::sync_log_prob. One pass over three columns of log-probs.
/// @throws std::invalid_argument naming what is wrong with the batch.
[[nodiscard]] inline mismatch_split_report mismatch_split(token_batch batch) {
    batch.advantage = batch.old_log_prob;  // loops read these two in any case; here they carry nothing of their own
    batch.log_prob = batch.old_log_prob;
    detail::check_shape(batch);
    detail::check_column(batch.old_log_prob, "token_batch.old_log_prob", batch);
    detail::check_batch(batch, detail::split_needs);
    mismatch_split_report report;
    for (std::int64_t chunk = 0; chunk < detail::chunk_count(batch.size()); ++chunk) {
        detail::chunk_range const range = detail::chunk_at(batch, chunk);
        report += batch.log_prob.type == dtype::f64 ? detail::split_of_chunk<double>(batch, range)
                                                    : detail::split_of_chunk<detail::native_lanes>(batch, range);
    }
    return report;
}

/// Adds the mismatch of one batch to `buckets`, by staleness: bucket s holds tokens that are s versions old, the last one all
/// that are older; tokens of an unknown version are left out. In double, one token after the other: for a look at the data, not
/// for every step.
/// @throws std::invalid_argument naming what is wrong with the batch or the count, before a bucket is changed.
inline void add_mismatch_by_staleness(token_batch batch, staleness_bucket* buckets, std::int64_t count) {
    detail::require(count >= 1, "count", count, ">= 1");
    batch.advantage = batch.old_log_prob;
    batch.log_prob = batch.old_log_prob;
    detail::check_shape(batch);
    detail::check_column(batch.old_log_prob, "token_batch.old_log_prob", batch);
    detail::check_batch(batch, detail::bucket_needs);
    detail::sentinel<double> const missing(detail::stored_sentinel(batch));
    for (std::int64_t chunk = 0; chunk < detail::chunk_count(batch.size()); ++chunk) {
        detail::chunk_range const range = detail::chunk_at(batch, chunk);
        detail::input_buffers<double, detail::bucket_needs> buffers;
        alignas(64) double versions[detail::chunk_size];
        auto const in = detail::stage_inputs<detail::bucket_needs>(batch, range, range.count, buffers);
        detail::stage_versions(batch, range, versions);
        for (std::int64_t i = 0; i < range.count; ++i) {
            detail::observed<double> token = detail::load_tokens<detail::bucket_needs, double>(in, i, missing);
            detail::screen(token);
            bool const known = versions[i] >= 0 && versions[i] <= static_cast<double>(batch.newest_version());
            if (token.live && !token.unscored && known) {
                double const e = token.t.log_mismatch;
                auto const age = static_cast<std::int64_t>(token.t.staleness);
                buckets[std::min(age, count - 1)] += {1, e, std::abs(e), e * e, k3(e, token.t.mismatch), std::abs(e)};
            }
        }
    }
}

ASYNCRL_END_NAMESPACE
