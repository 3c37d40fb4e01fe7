// SPDX-License-Identifier: Apache-2.0
/// @file What a call wrote against what the oracle says, as a sentence: empty where both agree.
#pragma once

#include "batches.hpp"

#include <cmath>
#include <sstream>
#include <string>

namespace support {

struct tolerance {
    double relative;
    double absolute;

    [[nodiscard]] bool holds(double got, double want, double size) const {
        return std::abs(got - want) <= relative * size + absolute;
    }
    [[nodiscard]] bool holds(double got, double want) const { return holds(got, want, std::abs(want)); }
};

/// Of per-token values that a loop over floats or doubles computed and a column of `type` holds.
inline tolerance tolerance_of(dtype type) {
    switch (type) {
        case dtype::f64:
            return {1e-12, 1e-14};
        case dtype::bf16:
            return {0x1p-8, 1e-7};
        case dtype::f16:
            return {0x1p-10, 1e-7};
        default:
            return {4e-6, 1e-7};
    }
}

/// Of sums in a report, relative to the sum of absolute values.
inline tolerance tolerance_of_sums(bool single) {
    return single ? tolerance{4e-6, 1e-7} : tolerance{1e-12, 1e-14};
}

class differences {
  public:
    template <typename... Words>
    void check(bool agrees, Words const&... words) {
        if (!agrees && text_.empty()) {
            std::ostringstream line;
            line.precision(17);
            (line << ... << words);
            text_ = line.str();
        }
    }
    void number(char const* name, double got, double want, double size, tolerance t) {
        check(t.holds(got, want, size), name, " is ", got, ", expected ", want);
    }
    void number(char const* name, double got, double want, tolerance t) { number(name, got, want, std::abs(want), t); }
    void count(char const* name, std::int64_t got, std::int64_t want) {
        check(got == want, name, " is ", got, ", expected ", want);
    }
    [[nodiscard]] std::string const& text() const { return text_; }

  private:
    std::string text_;
};

/// The outputs of a call with nonfinite::drop.
inline void compare_outputs(differences& found, oracle::answers const& want, oracle::reduced const& whole, laid_out const& b,
                            outputs const& out) {
    tolerance const fits = tolerance_of(out.gradient.type());
    std::size_t at = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        oracle::answer const& a = want[r][t];
        auto const number = [&](char const* name, double got, double expected) {
            found.check(fits.holds(got, expected), name, "[", r, "][", t, "] is ", got, ", expected ", expected);
        };
        number("loss", out.loss.get(r, t), a.loss);
        number("gradient", out.gradient.get(r, t), whole.gradient[r][t]);
        number("weight", out.weight.get(r, t), a.weight);
        found.check(out.flags(at) == a.flags, "flags[", r, "][", t, "] are ", out.flags(at), ", expected ", a.flags);
        if (!b.values[r][t].active) {
            found.check(out.gradient.bits(r, t) == 0 && out.loss.bits(r, t) == 0 && out.weight.bits(r, t) == 0, "[", r, "][", t,
                        "] is masked, but an output is not +0");
        }
        ++at;
    });
    found.check(out.guards_hold(), "something beside the outputs was written");
}

inline void compare_report(differences& found, oracle::method const& m, oracle::answers const& want,
                           oracle::reduced const& whole, laid_out const& b, asyncrl::loss_report const& got) {
    oracle::statistics const s = oracle::describe(m, b.values, want);
    tolerance const fits = tolerance_of_sums(b.kinds().single());
    found.number("loss", got.sums.loss, whole.loss, whole.absolute_loss, fits);
    found.number("absolute_loss", got.sums.absolute_loss, whole.absolute_loss, fits);
    found.number("weight", got.sums.weight, s.weight, fits);
    found.number("weight_squared", got.sums.weight_squared, s.weight_squared, fits);
    found.number("mismatch", got.sums.mismatch, s.mismatch, fits);
    found.number("mismatch_squared", got.sums.mismatch_squared, s.mismatch_squared, fits);
    found.number("log_mismatch", got.sums.log_mismatch, s.log_mismatch, s.absolute_log_mismatch, fits);
    found.number("absolute_log_mismatch", got.sums.absolute_log_mismatch, s.absolute_log_mismatch, fits);
    found.number("k3_mismatch", got.sums.k3_mismatch, s.k3_mismatch, fits);
    found.number("absolute_log_ratio", got.sums.absolute_log_ratio, s.absolute_log_ratio, fits);
    found.number("largest log_mismatch", got.maxima.absolute_log_mismatch, s.largest_log_mismatch, {0, 0});
    found.number("largest log_ratio", got.maxima.absolute_log_ratio, s.largest_log_ratio, {0, 0});
    found.count("tokens", got.counts.tokens, s.tokens);
    found.count("sequences", got.counts.sequences, b.where.rows());
    found.count("kept", got.counts.kept, s.kept);
    found.count("clipped_high", got.counts.clipped_high, s.high);
    found.count("clipped_low", got.counts.clipped_low, s.low);
    found.count("capped", got.counts.capped, s.capped);
    found.count("gated", got.counts.gated, s.rejected);
    found.count("nonfinite", got.counts.nonfinite, s.bad);
    found.count("unscored", got.counts.unscored, s.unscored);
    found.count("tail", got.counts.tail, 0);
}

/// Runs the method on the batch, and says where anything differs from the oracle.
inline std::string difference_from_oracle(oracle::method const& m, laid_out const& b, outputs& out,
                                          asyncrl::loss_options const& options = {.on_nonfinite = asyncrl::nonfinite::drop},
                                          library::executor const& execute = asyncrl::serial{}) {
    oracle::answers const want = oracle::judge(m, b.values, b.kinds().single());
    oracle::counts const counts = oracle::count(b.values, want);
    asyncrl::totals const sums = library::measure(m, b.batch, out.scratch, execute);
    asyncrl::loss_report const report = library::policy_loss(m, b.batch, sums, out.to(), out.scratch, options, execute);
    oracle::reduced const whole = oracle::reduce(m, b.values, want, counts, options.scale);

    differences found;
    found.count("totals.tokens", sums.counts.tokens, counts.tokens);
    found.count("totals.sequences", sums.counts.sequences, counts.sequences);
    found.count("totals.batches", sums.counts.batches, 1);
    if (m.over_kept) {
        found.count("totals.kept_tokens", sums.counts.kept_tokens, counts.kept_tokens);
        found.count("totals.kept_sequences", sums.counts.kept_sequences, counts.kept_sequences);
    }
    compare_outputs(found, want, whole, b, out);
    compare_report(found, m, want, whole, b, report);
    return found.text();
}

}  // namespace support
