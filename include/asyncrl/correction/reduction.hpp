// SPDX-License-Identifier: Apache-2.0
/// @file Reductions: how the losses of tokens become one number, and so what weight each token's gradient carries.
///
/// Denominators come from `totals`, the caller's counts over all micro-batches and ranks of the optimizer step. A reduction
/// is run-time data of the host, not part of a kernel's type.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/error.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

/// Which tokens and sequences a denominator counts.
enum class counted : std::uint8_t {
    active,  ///< all with a loss mask, rejected or not: a rejection never raises the weight of the rest
    kept,    ///< only those that no mask rejected
};

namespace detail {

/// The weight of a token is scale / (denominator * divisor), divided by its row's count where `per_row` holds.
struct reduction_rule {
    enum class unit : std::uint8_t { one, tokens, sequences };

    unit denominator;
    bool per_row;
    counted over;
    double divisor;

    [[nodiscard]] bool operator==(reduction_rule const&) const = default;
    [[nodiscard]] double scale(totals const& sums) const {
        bool const kept = over == counted::kept;
        double count = 1;
        if (denominator == unit::tokens) {
            count = static_cast<double>(kept ? sums.counts.kept_tokens : sums.counts.tokens);
        } else if (denominator == unit::sequences) {
            count = static_cast<double>(kept ? sums.counts.kept_sequences : sums.counts.sequences);
        }
        return count > 0 ? 1 / (count * divisor) : 0;
    }
};

}  // namespace detail

/// The sum over tokens by the number of tokens: long sequences weigh more (DAPO).
struct token_mean {
    counted over = counted::active;

    static constexpr role kind = role::reduction;
    static constexpr std::uint32_t needs = 0;

    [[nodiscard]] detail::reduction_rule rule() const { return {detail::reduction_rule::unit::tokens, false, over, 1}; }
};

/// The sum over tokens by a constant of the caller's, such as batch size times horizon (Dr. GRPO); by 1 unless said.
struct token_sum {
    double divisor = 1;

    static constexpr role kind = role::reduction;
    static constexpr std::uint32_t needs = 0;

    void check() const {
        detail::require(divisor > 0 && std::isfinite(divisor), "token_sum.divisor", divisor, "finite and > 0");
    }
    [[nodiscard]] detail::reduction_rule rule() const {
        return {detail::reduction_rule::unit::one, false, counted::active, divisor};
    }
};

/// The mean over sequences of each sequence's token mean: every sequence weighs the same (GRPO). A sequence without a
/// counted token is not counted.
struct sequence_mean_token_mean {
    counted over = counted::active;

    static constexpr role kind = role::reduction;
    static constexpr std::uint32_t needs = 0;

    [[nodiscard]] detail::reduction_rule rule() const { return {detail::reduction_rule::unit::sequences, true, over, 1}; }
};

/// The mean over sequences of each sequence's token sum, by a constant horizon in tokens; by 1 unless said.
struct sequence_mean_token_sum {
    double horizon = 1;  ///< tokens

    static constexpr role kind = role::reduction;
    static constexpr std::uint32_t needs = 0;

    void check() const {
        detail::require(horizon > 0 && std::isfinite(horizon), "sequence_mean_token_sum.horizon", horizon, "finite and > 0");
    }
    [[nodiscard]] detail::reduction_rule rule() const {
        return {detail::reduction_rule::unit::sequences, false, counted::active, horizon};
    }
};

ASYNCRL_END_NAMESPACE
