// SPDX-License-Identifier: Apache-2.0
/// @file The eight-slot batch of the reference tables, and a helper that runs an objective on a small packed batch and holds
/// its outputs against a table.
#pragma once

#include <asyncrl/correction/policy_loss.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <string>
#include <vector>

namespace support {

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double inf = std::numeric_limits<double>::infinity();

/// A packed batch of a few tokens, in double. Empty columns are absent.
struct tokens {
    std::vector<std::int64_t> offsets;
    std::vector<double> log_prob, old_log_prob, rollout_log_prob, advantage;
    std::vector<double> anchor_log_prob{}, reference_log_prob{}, log_kept_mass{}, divergence{}, score{};
    std::vector<std::uint8_t> mask{}, keep{};
    std::vector<std::int32_t> version{};
    std::int64_t policy_version = 0;

    /// One row, from new and old log-prob, which is also the rollout's.
    [[nodiscard]] static tokens row(std::vector<double> new_, std::vector<double> old, std::vector<double> advantage) {
        return {{0, static_cast<std::int64_t>(new_.size())}, new_, old, old, advantage};
    }
};

/// Two rows of five and three slots, slot 4 under the mask. Every number is exact in bfloat16. `garbage` stands under the mask
/// in every column, an infinite one with its sign turned in some.
inline tokens eight_slots(double garbage = nan) {
    double const x = garbage;
    tokens t{{0, 5, 8},
             {-1.125, -0.03125, -2.5, -1.0625, x, -2.4375, -0.1875, -2.5},
             {-1.21875, -0.09375, -2.875, -0.6875, x, -1.9375, -0.28125, -3.25},
             {-1.25, -0.0625, -3, -0.625, -x, -2, -0.3125, -4},
             {1, 1, 1, 1, -x, -0.5, -0.5, -0.5}};
    t.mask = {1, 1, 1, 1, 0, 1, 1, 1};
    t.keep = {1, 1, 1, 1, 1, 1, 1, 1};
    t.version = {6, 6, 7, 8, -1, 4, 4, 5};
    t.policy_version = 8;
    t.anchor_log_prob = t.old_log_prob;
    t.reference_log_prob = t.rollout_log_prob;
    t.log_kept_mass = {0, 0, 0, 0, x, 0, 0, 0};
    t.divergence = t.log_kept_mass;
    t.score = t.advantage;
    return t;
}

/// A batch's columns in one number type.
class stored {
  public:
    stored(tokens const& t, asyncrl::dtype type) : tokens_(t), single_(type == asyncrl::dtype::f32) {
        asyncrl::token_batch& b = batch;
        b.rows = static_cast<std::int64_t>(tokens_.offsets.size()) - 1;
        b.tokens = tokens_.offsets.back();
        b.offsets = tokens_.offsets.data();
        b.log_prob = column_of(tokens_.log_prob);
        b.old_log_prob = column_of(tokens_.old_log_prob);
        b.rollout_log_prob = column_of(tokens_.rollout_log_prob);
        b.advantage = column_of(tokens_.advantage);
        b.anchor_log_prob = column_of(tokens_.anchor_log_prob);
        b.reference_log_prob = column_of(tokens_.reference_log_prob);
        b.log_kept_mass = column_of(tokens_.log_kept_mass);
        b.divergence = column_of(tokens_.divergence);
        b.score = column_of(tokens_.score);
        b.mask = flags_of(tokens_.mask);
        b.keep = flags_of(tokens_.keep);
        b.version = tokens_.version.empty() ? asyncrl::column{} : asyncrl::per_token(tokens_.version.data());
        b.policy_version = single_ ? tokens_.policy_version : -1;
        b.policy_version_at = single_ ? nullptr : &tokens_.policy_version;  // either way of handing it over
    }
    stored(stored const&) = delete;
    stored& operator=(stored const&) = delete;

    asyncrl::token_batch batch;

  private:
    [[nodiscard]] asyncrl::column column_of(std::vector<double> const& numbers) {
        if (numbers.empty()) {
            return {};
        }
        if (!single_) {
            return asyncrl::per_token(numbers.data());
        }
        std::vector<float>& narrow = singles_.emplace_back(numbers.size());
        std::transform(numbers.begin(), numbers.end(), narrow.begin(), [](double x) { return static_cast<float>(x); });
        return asyncrl::per_token(static_cast<float const*>(narrow.data()));
    }
    [[nodiscard]] static asyncrl::column flags_of(std::vector<std::uint8_t> const& flags) {
        return flags.empty() ? asyncrl::column{} : asyncrl::per_token(flags.data());
    }

    tokens tokens_;
    bool single_;
    std::list<std::vector<float>> singles_;
};

/// What a call wrote, as doubles.
struct answer {
    std::vector<double> loss, gradient, weight;
    std::vector<std::uint16_t> flags;
    asyncrl::loss_report report;
    asyncrl::totals sums;
};

struct outputs {
    explicit outputs(std::size_t size)
        : doubles(3, std::vector<double>(size, 7.0)), singles(3, std::vector<float>(size, 7.0F)), flags(size, 0xffff) {}

    [[nodiscard]] asyncrl::loss_outputs in(asyncrl::dtype type) {
        auto const to = [&](std::size_t i) {
            return type == asyncrl::dtype::f64 ? asyncrl::per_token(doubles[i].data()) : asyncrl::per_token(singles[i].data());
        };
        return {to(0), to(1), to(2), flags.data()};
    }
    [[nodiscard]] std::vector<double> read(asyncrl::dtype type, std::size_t i) const {
        return type == asyncrl::dtype::f64 ? doubles[i] : std::vector<double>(singles[i].begin(), singles[i].end());
    }

    std::vector<std::vector<double>> doubles;
    std::vector<std::vector<float>> singles;
    std::vector<std::uint16_t> flags;
};

/// Runs an objective in one number type. A `quantile` that is a number takes the place of the batch's own.
template <typename Objective>
[[nodiscard]] answer run(Objective const& objective, tokens const& t, asyncrl::dtype type, asyncrl::loss_options options = {},
                         double quantile = nan) {
    stored const s(t, type);
    asyncrl::workspace scratch(s.batch);
    outputs out(t.log_prob.size());
    answer a;
    a.sums = asyncrl::measure(objective, s.batch, scratch);
    a.sums.quantile = std::isnan(quantile) ? a.sums.quantile : quantile;
    a.report = asyncrl::policy_loss(objective, s.batch, a.sums, out.in(type), scratch, options);
    a.gradient = out.read(type, 0);
    a.loss = out.read(type, 1);
    a.weight = out.read(type, 2);
    a.flags = out.flags;
    return a;
}

/// Relative to `size`, or to the expected number itself. The tables print twelve digits.
inline bool near(double got, double want, asyncrl::dtype type, double size = 0) {
    double const scale = std::max(std::abs(want), size);
    return type == asyncrl::dtype::f64 ? std::abs(got - want) <= 1e-11 * scale : std::abs(got - want) <= 4e-6 * scale + 1e-7;
}

inline constexpr asyncrl::dtype precisions[] = {asyncrl::dtype::f64, asyncrl::dtype::f32};

/// A line of a table: slot, L, dL / d(log_prob), flags. `size` is the largest term where terms of other sizes cancel.
struct row {
    std::size_t slot;
    double loss, gradient;
    unsigned flags = 0;
    double size = 0;
};

inline void check_rows(answer const& a, std::vector<row> const& rows, asyncrl::dtype type) {
    for (row const& r : rows) {
        INFO("slot " << r.slot << (type == asyncrl::dtype::f64 ? " in double" : " in float"));
        INFO("loss " << a.loss[r.slot] << " of " << r.loss << ", gradient " << a.gradient[r.slot] << " of " << r.gradient);
        CHECK(near(a.loss[r.slot], r.loss, type, r.size));
        CHECK(near(a.gradient[r.slot], r.gradient, type, r.size));
        CHECK((r.gradient != 0 || a.gradient[r.slot] == 0));
        CHECK(a.flags[r.slot] == r.flags);
    }
}

inline bool is_plus_zero(double x) {
    return x == 0 && !std::signbit(x);
}

/// Every output has the same bits.
inline bool same_bits(answer const& a, answer const& b) {
    auto const same = [](std::vector<double> const& x, std::vector<double> const& y) {
        return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                          [](double p, double q) { return p == q && std::signbit(p) == std::signbit(q); });
    };
    return same(a.loss, b.loss) && same(a.gradient, b.gradient) && same(a.weight, b.weight) && a.flags == b.flags &&
           a.report.sums.loss == b.report.sums.loss;
}

/// Holds an objective on the eight slots against a table, in both number types; and no bit may depend on what stands under the
/// mask.
template <typename Objective>
void check_table(Objective const& objective, std::vector<row> const& rows, asyncrl::loss_options options = {}) {
    for (asyncrl::dtype const type : precisions) {
        answer const a = run(objective, eight_slots(), type, options);
        check_rows(a, rows, type);
        CHECK(is_plus_zero(a.loss[4]));
        CHECK(is_plus_zero(a.gradient[4]));
        CHECK(is_plus_zero(a.weight[4]));
        CHECK(a.flags[4] == 0);
        for (double const garbage : {0.0, inf, -inf, 200.0, -1000.0}) {
            INFO(garbage << " under the mask");
            CHECK(same_bits(run(objective, eight_slots(garbage), type, options), a));
        }
    }
}

}  // namespace support
