// SPDX-License-Identifier: Apache-2.0
/// @file What a call on the device left against what the host's call gives, as a sentence: empty where both agree.
#pragma once

#include "correction/support/compare.hpp"
#include "on_device.hpp"

#include <cmath>
#include <cstring>
#include <string>

namespace device {

using support::differences;
using support::tolerance;

/// The host's outcome for the same batch.
inline outcome on_host(method const& m, laid_out const& b, loss_options const& options = {}) {
    outputs out(b);
    totals const sums = host::measure(m, b.batch, out.scratch);
    loss_options lenient = options;
    if (options.on_nonfinite == asyncrl::nonfinite::error) {
        lenient.on_nonfinite = asyncrl::nonfinite::drop;  // the device cannot throw
    }
    loss_report const report = host::policy_loss(m, b.batch, sums, out.to(), out.scratch, lenient);
    return {sums, report, std::move(out)};
}

inline void compare_totals(differences& found, totals const& got, totals const& want) {
    found.count("totals.batches", got.counts.batches, want.counts.batches);
    found.count("totals.tokens", got.counts.tokens, want.counts.tokens);
    found.count("totals.sequences", got.counts.sequences, want.counts.sequences);
    found.count("totals.kept_tokens", got.counts.kept_tokens, want.counts.kept_tokens);
    found.count("totals.kept_sequences", got.counts.kept_sequences, want.counts.kept_sequences);
    bool const unknown = std::isnan(got.quantile) && std::isnan(want.quantile);
    found.check(unknown || got.quantile == want.quantile, "totals.quantile is ", got.quantile, ", expected ", want.quantile);
    found.check(std::isnan(got.weight) == std::isnan(want.weight) &&
                    (std::isnan(want.weight) || std::abs(got.weight - want.weight) <= 4e-6 * want.weight),
                "totals.weight is ", got.weight, ", expected ", want.weight);
}

inline void compare_reports(differences& found, loss_report const& got, loss_report const& want) {
    tolerance const fits{4e-6, 0};
    auto const sum = [&](char const* name, double a, double b, double size) {
        if (!(std::isnan(a) && std::isnan(b))) {
            found.number(name, a, b, size, fits);
        }
    };
    sum("loss", got.sums.loss, want.sums.loss, want.sums.absolute_loss);
    sum("absolute_loss", got.sums.absolute_loss, want.sums.absolute_loss, want.sums.absolute_loss);
    sum("weight", got.sums.weight, want.sums.weight, want.sums.weight);
    sum("weight_squared", got.sums.weight_squared, want.sums.weight_squared, want.sums.weight_squared);
    sum("mismatch", got.sums.mismatch, want.sums.mismatch, want.sums.mismatch);
    sum("mismatch_squared", got.sums.mismatch_squared, want.sums.mismatch_squared, want.sums.mismatch_squared);
    sum("log_mismatch", got.sums.log_mismatch, want.sums.log_mismatch, want.sums.absolute_log_mismatch);
    sum("absolute_log_mismatch", got.sums.absolute_log_mismatch, want.sums.absolute_log_mismatch,
        want.sums.absolute_log_mismatch);
    sum("k3_mismatch", got.sums.k3_mismatch, want.sums.k3_mismatch, want.sums.k3_mismatch);
    sum("absolute_log_ratio", got.sums.absolute_log_ratio, want.sums.absolute_log_ratio, want.sums.absolute_log_ratio);
    found.number("largest log_mismatch", got.maxima.absolute_log_mismatch, want.maxima.absolute_log_mismatch, {0, 0});
    found.number("largest log_ratio", got.maxima.absolute_log_ratio, want.maxima.absolute_log_ratio, {0, 0});
    found.count("tokens", got.counts.tokens, want.counts.tokens);
    found.count("sequences", got.counts.sequences, want.counts.sequences);
    found.count("kept", got.counts.kept, want.counts.kept);
    found.count("clipped_high", got.counts.clipped_high, want.counts.clipped_high);
    found.count("clipped_low", got.counts.clipped_low, want.counts.clipped_low);
    found.count("capped", got.counts.capped, want.counts.capped);
    found.count("gated", got.counts.gated, want.counts.gated);
    found.count("tail", got.counts.tail, want.counts.tail);
    found.count("nonfinite", got.counts.nonfinite, want.counts.nonfinite);
    found.count("unscored", got.counts.unscored, want.counts.unscored);
    found.count("first_nonfinite", got.first_nonfinite, want.first_nonfinite);
}

/// The factor by which a row's gradients are smaller than their losses' slopes, so that what is allowed shrinks with them.
inline double scale_of_row(method const& m, laid_out const& b, totals const& sums, double factor, std::size_t row) {
    asyncrl::detail::reduction_rule const rule = m.rule();
    double const scale = factor * rule.scale(sums);
    double active = 0;
    for (oracle::token const& t : b.values[row]) {
        active += t.active ? 1 : 0;
    }
    return rule.per_row && active > 0 ? scale / active : scale;
}

inline void compare_tokens(differences& found, method const& m, laid_out const& b, double factor, outcome const& got,
                           outcome const& want) {
    tolerance const fits = support::tolerance_of(want.out.gradient.type());
    std::vector<double> scales;
    for (std::size_t row = 0; row < b.values.size(); ++row) {
        scales.push_back(scale_of_row(m, b, want.sums, factor, row));
    }
    std::size_t at = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        auto const number = [&](char const* name, memory const& is, memory const& should_be, double unit) {
            double const x = is.get(r, t);
            double const y = should_be.get(r, t);
            bool const agrees =
                std::isnan(y) ? std::isnan(x) : std::abs(x - y) <= fits.relative * std::abs(y) + fits.absolute * unit;
            found.check(agrees, name, "[", r, "][", t, "] is ", x, ", expected ", y);
        };
        number("loss", got.out.loss, want.out.loss, 1);
        number("weight", got.out.weight, want.out.weight, 1);
        number("gradient", got.out.gradient, want.out.gradient, scales[r]);
        found.check(got.out.flags(at) == want.out.flags(at), "flags[", r, "][", t, "] are ", got.out.flags(at), ", expected ",
                    want.out.flags(at));
        if (!b.values[r][t].active) {
            found.check(got.out.gradient.bits(r, t) == 0 && got.out.loss.bits(r, t) == 0 && got.out.weight.bits(r, t) == 0, "[",
                        r, "][", t, "] is masked, but an output is not +0");
        }
        ++at;
    });
}

/// Where the device's outcome for the batch differs from the host's.
inline std::string difference_from_host(method const& m, laid_out const& b, loss_options const& options = {}) {
    outcome const got = run(m, b, options);
    outcome const want = on_host(m, b, options);
    differences found;
    compare_totals(found, got.sums, want.sums);
    compare_tokens(found, m, b, options.scale, got, want);
    compare_reports(found, got.report, want.report);
    return found.text();
}

/// What a failing test should say of its method.
inline std::string name_of(method const& m) {
    char const* const losses[] = {"clip",       "gradient", "clip, tis", "clip, mis", "clip, own part", "gradient, weighted",
                                  "normalised", "sat",      "sat, tis"};
    char const* const reductions[] = {"token mean", "token sum", "sequence mean, token mean", "sequence mean, token sum"};
    return std::string(losses[static_cast<int>(m.kind)]) + ", " + reductions[static_cast<int>(m.reduce)] +
           (m.over_kept ? ", kept" : "");
}

}  // namespace device
