// SPDX-License-Identifier: Apache-2.0
/// @file A part that the library does not have, written as CONTRIBUTING.md shows.
#pragma once

#include <asyncrl/correction/objective.hpp>

#include <cmath>
#include <cstdint>

// [snippet: part]
namespace mine {

using asyncrl::mark, asyncrl::select;  // by name for float and double; a SIMD register's are found by its type

template <typename Number>
struct clamped_weight_op {
    Number log_low, log_high, low, high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE asyncrl::factor<Real> operator()(asyncrl::token<Real> const& t) const {
        auto const over = t.log_mismatch > Real(log_high);
        auto const under = t.log_mismatch < Real(log_low);
        return {select(over, Real(high), select(under, Real(low), t.mismatch)), asyncrl::always<Real>(),
                mark(over | under, asyncrl::capped)};
    }
};

/// old / rollout held inside the closed interval [low, high]. Bounded both ways, so that no token is forgotten.
struct clamped_weight {
    double low = 0.5;  ///< > 0
    double high = 2;   ///< finite, >= low

    static constexpr asyncrl::role kind = asyncrl::role::weight;
    static constexpr std::uint32_t needs = asyncrl::uses_mismatch | asyncrl::weighs_mismatch;

    template <typename Number>
    [[nodiscard]] clamped_weight_op<Number> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high)), static_cast<Number>(low),
                static_cast<Number>(high)};
    }
};

}  // namespace mine
// [snippet: end]

// [snippet: sequence]
namespace mine {

struct length_gate_op {
    static constexpr bool maximum = false;  // the statistic is a sum over the tokens; true: their largest
    double fewest;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(asyncrl::token<Real> const&) const {
        return Real(1);
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE asyncrl::sequence_factor decide(asyncrl::sequence_sums const& s) const {
        return {1, s.statistic >= fewest, false};
    }
};

/// Rejects sequences of fewer than `fewest` tokens.
struct length_gate {
    double fewest;

    static constexpr asyncrl::role kind = asyncrl::role::sequence_weight;
    static constexpr std::uint32_t needs = asyncrl::may_reject;

    template <typename Number>
    [[nodiscard]] length_gate_op bind() const {
        return {fewest};
    }
};

}  // namespace mine
// [snippet: end]
