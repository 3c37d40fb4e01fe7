// SPDX-License-Identifier: Apache-2.0
/// @file What the ratio is taken against, and how it is bounded. Without an anchor it is new / old.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/error.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

/// The ratio is new / rollout (bypass: no old log-probs are computed).
struct anchor_rollout {
    static constexpr role kind = role::anchor;
    static constexpr std::uint32_t needs = reads_rollout | anchors_rollout;
};

/// The ratio is new / the column token_batch::anchor_log_prob; the mismatch stays old / rollout.
struct anchor_given {
    static constexpr role kind = role::anchor;
    static constexpr std::uint32_t needs = reads_anchor;
};

/// The old policy is not computed but interpolated, log-linearly by the token's staleness s: log old = log rollout +
/// (1 - 1 / s) (log new - log rollout), detached, and log rollout itself for s <= 1. Then new / old = (new / rollout)^(1 / s),
/// and its product with the mismatch is new / rollout whatever s. A-3PO (arXiv 2512.06547).
struct anchor_between {
    static constexpr role kind = role::anchor;
    static constexpr std::uint32_t needs = reads_rollout | reads_version | anchors_between;
};

/// Rollout log-probs over the whole vocabulary are renormalised to what the sampler kept (top-p, top-k, min-p): log rollout
/// minus the column token_batch::log_kept_mass.
struct kept_mass {
    static constexpr role kind = role::option;
    static constexpr std::uint32_t needs = reads_rollout | reads_kept_mass;
};

/// For systems that count the rollout policy twice on purpose, such as a weight on old / rollout beside a ratio new / rollout.
struct count_twice {
    static constexpr role kind = role::option;
    static constexpr std::uint32_t needs = allows_double;
};

namespace detail {

template <typename Number>
struct log_ratio_clamp_op {
    Number limit, low, high;

    /// Clamps what the surrogate sees, and says where.
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> apply(token<Real>& t) const {
        mask_of<Real> const above = t.log_ratio > Real(limit);
        mask_of<Real> const below = t.log_ratio < -Real(limit);
        t.log_ratio = select(above, Real(limit), select(below, -Real(limit), t.log_ratio));
        t.ratio = select(above, Real(high), select(below, Real(low), t.ratio));
        return above | below;
    }
};

}  // namespace detail

/// Holds the log-ratio of the surrogate in [-limit, limit]; beyond, a slope through the ratio is 0 and the flag `clamped` is
/// set. In use with 20 (verl, SkyRL, OpenRLHF). Without it nothing is clamped; ratios only saturate at the end of their number
/// type.
struct log_ratio_clamp {
    double limit = 20;  ///< in (0, 80]

    static constexpr role kind = role::clamp;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const { detail::require(limit > 0 && limit <= 80, "log_ratio_clamp.limit", limit, "in (0, 80]"); }
    template <typename Number>
    [[nodiscard]] detail::log_ratio_clamp_op<Number> bind() const {
        return {static_cast<Number>(limit), static_cast<Number>(std::exp(-limit)), static_cast<Number>(std::exp(limit))};
    }
};

ASYNCRL_END_NAMESPACE
