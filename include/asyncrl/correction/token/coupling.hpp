// SPDX-License-Identifier: Apache-2.0
/// @file The ratio of a whole sequence in the place of each token's own. The surrogate, whichever it is, then sees the
/// sequence.
///
/// d = log(new / anchor) of a token, T the number of live tokens, s = exp(mean d) the geometric ratio or exp(sum d) the
/// product. The loss of a token is S(s, A), so that with sequence_mean_token_mean a sequence's loss is S(s, A) once. Three
/// couplings are in use; where the advantage is the same for all tokens of a sequence they agree.
#pragma once

#include <asyncrl/correction/token/sequence.hpp>
#include <asyncrl/error.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

/// What a coupling decides of a sequence.
struct coupled_ratio {
    double log_ratio;
    double spread;  ///< d(log_ratio) / d(own log-prob) * T
};

struct sequence_ratio_op {
    static constexpr bool maximum = false;
    level of;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(token<Real> const& t) const {
        return t.own_log_ratio;
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE coupled_ratio decide(sequence_sums const& s) const {
        return {s.at(of), of == level::product ? s.tokens : 1};
    }
};

template <typename Number>
struct clipped_geometric_ratio_op {
    static constexpr bool maximum = false;
    Number limit;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(token<Real> const& t) const {
        Real const d = t.own_log_ratio;
        return select(t.advantage > Real(0), smaller(d, Real(limit)), larger(d, -Real(limit)));
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE coupled_ratio decide(sequence_sums const& s) const { return {s.mean(), 1}; }

    /// How the statistic moves with the token's own log-ratio, and the flags where it does not.
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> inner(token<Real> const& t) const {
        mask_of<Real> const above = (t.advantage > Real(0)) & (t.own_log_ratio > Real(limit));
        mask_of<Real> const below = (!(t.advantage > Real(0))) & (t.own_log_ratio < -Real(limit));
        return {Real(0), select(above | below, Real(0), Real(1)),
                mark(above, clipped_high) | mark(below & (t.advantage < Real(0)), clipped_low)};
    }
};

}  // namespace detail

/// S(s, mean A of the sequence), differentiated through every token. GSPO (arXiv 2507.18071); with level::product a clip on the
/// probability of the whole sequence.
struct sequence_ratio {
    level of = level::geometric;

    static constexpr role kind = role::coupling;
    static constexpr std::uint32_t needs = uses_ratio | averages_advantage;

    template <typename>
    [[nodiscard]] detail::sequence_ratio_op bind() const {
        return {of};
    }
};

/// S(s, A_t), differentiated through the token itself alone: its slope is T times the derivative of its own term, as GSPO-token
/// (arXiv 2507.18071) has it, so that the three couplings agree where the advantage is one for all.
struct sequence_ratio_own_slope {
    level of = level::geometric;

    static constexpr role kind = role::coupling;
    static constexpr std::uint32_t needs = uses_ratio;

    template <typename>
    [[nodiscard]] detail::sequence_ratio_op bind() const {
        return {of};
    }
};

/// S(s, A_t), differentiated through every token: each gets the sequence's mean slope. The live broadcast of slime.
struct sequence_ratio_shared_slope {
    level of = level::geometric;

    static constexpr role kind = role::coupling;
    static constexpr std::uint32_t needs = uses_ratio | shares_slope;

    template <typename>
    [[nodiscard]] detail::sequence_ratio_op bind() const {
        return {of};
    }
};

/// The geometric ratio of log-ratios that are clipped one by one, each on the side to which its advantage pushes: a clipped
/// token has no gradient and still scales the others. With importance_gradient: GMPO (arXiv 2507.20673).
struct clipped_geometric_ratio {
    double limit = 0.4;  ///< of a token's log-ratio, finite and > 0

    static constexpr role kind = role::coupling;
    static constexpr std::uint32_t needs = uses_ratio | averages_advantage;

    void check() const {
        detail::require(limit > 0 && std::isfinite(limit), "clipped_geometric_ratio.limit", limit, "finite and > 0");
    }
    template <typename Number>
    [[nodiscard]] detail::clipped_geometric_ratio_op<Number> bind() const {
        return {static_cast<Number>(limit)};
    }
};

ASYNCRL_END_NAMESPACE
