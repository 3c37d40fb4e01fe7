// SPDX-License-Identifier: Apache-2.0
/// @file Weights and masks of whole sequences: the same for all tokens of one. Intervals are closed.
///
/// e = log(old / rollout) of a token; the ratio of a sequence is their product, or its geometric mean.
#pragma once

#include <asyncrl/correction/token/sequence.hpp>
#include <asyncrl/error.hpp>

#include <cmath>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE

/// Estimators of KL(rollout || old) from one token.
enum class estimator : std::uint8_t {
    k1,  ///< -e
    k2,  ///< e^2 / 2
    k3,  ///< exp(e) - 1 - e
};

namespace detail {

struct sum_of_mismatch {
    static constexpr bool maximum = false;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(token<Real> const& t) const {
        return t.log_mismatch;
    }
};

struct sequence_tis_op : sum_of_mismatch {
    double cap, log_cap;
    level of;

    [[nodiscard]] ASYNCRL_HOST_DEVICE sequence_factor decide(sequence_sums const& s) const {
        double const log_ratio = s.at(of);
        bool const over = log_ratio > log_cap;
        return {over ? cap : ::exp(log_ratio), true, over};
    }
};

struct sequence_gate_op : sum_of_mismatch {
    double log_low, log_high;
    level of;

    [[nodiscard]] ASYNCRL_HOST_DEVICE sequence_factor decide(sequence_sums const& s) const {
        double const log_ratio = s.at(of);
        return {1, log_ratio >= log_low && log_ratio <= log_high, false};
    }
};

template <typename Number>
struct band_veto_op {
    static constexpr bool maximum = false;
    Number log_low, log_high;
    double most_tokens, most_share;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(token<Real> const& t) const {
        mask_of<Real> const inside = (t.log_mismatch >= Real(log_low)) & (t.log_mismatch <= Real(log_high));
        return select(inside, Real(0), Real(1));
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE sequence_factor decide(sequence_sums const& s) const {
        return {1, s.statistic <= most_tokens && s.mean() <= most_share, false};
    }
};

template <bool Maximum>
struct divergence_gate_op {
    static constexpr bool maximum = Maximum;
    double limit;
    estimator by;
    bool per_token;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(token<Real> const& t) const {
        Real const e = t.log_mismatch;
        return by == estimator::k1 ? -e : by == estimator::k2 ? Real(0.5) * e * e : k3(e, t.mismatch);
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE sequence_factor decide(sequence_sums const& s) const {
        return {1, !(s.tokens > 0) || (per_token ? s.mean() : s.statistic) <= limit, false};
    }
};

struct opsm_op {
    static constexpr bool maximum = false;
    double delta;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real statistic(token<Real> const& t) const {
        return -t.log_off_policy;
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE sequence_factor decide(sequence_sums const& s) const {
        return {1, !(s.advantage < 0 && s.mean() > delta), false};
    }
};

}  // namespace detail

/// min(ratio of the sequence, cap): truncated importance sampling by sequences. By level::product unbiased up to the cap; by
/// level::geometric normalised by length. With token_batch::segments: of each turn, or each run of one policy version.
struct sequence_tis {
    double cap = 2;  ///< finite and > 0
    level of = level::product;

    static constexpr role kind = role::sequence_weight;
    static constexpr std::uint32_t needs = uses_mismatch | weighs_mismatch;

    void check() const { detail::require(cap > 0 && std::isfinite(cap), "sequence_tis.cap", cap, "finite and > 0"); }
    template <typename>
    [[nodiscard]] detail::sequence_tis_op bind() const {
        return {{}, cap, std::log(cap), of};
    }
};

/// Keeps a sequence where low <= ratio <= high. It does not bound single tokens: e = (+1000, -1000) has a ratio of 1; add a
/// weight or a gate that does. Geometric bounds of use are near 1, such as 0.999 and 1.002.
struct sequence_gate {
    double low;   ///< >= 0; 0 leaves that side open
    double high;  ///< > low; infinity leaves that side open
    level of = level::geometric;

    static constexpr role kind = role::sequence_weight;
    static constexpr std::uint32_t needs = uses_mismatch | may_reject;

    void check() const {
        detail::require(low >= 0 && std::isfinite(low), "sequence_gate.low", low, "finite and >= 0");
        detail::require(high > low, "sequence_gate.high", high, "greater than sequence_gate.low = " + detail::text(low));
    }
    template <typename>
    [[nodiscard]] detail::sequence_gate_op bind() const {
        return {{}, std::log(low), std::log(high), of};
    }
};

/// Rejects a sequence with too many tokens whose ratio is outside [low, high]: with more than `most_tokens` of them, or more
/// than `most_share` of its tokens. As it stands, one token outside is too many.
struct band_veto {
    double low = 1e-4;                                      ///< >= 0
    double high = std::numeric_limits<double>::infinity();  ///< > low
    double most_tokens = 0;                                 ///< >= 0; infinity: no such limit
    double most_share = 1;                                  ///< in [0, 1]; 1: no such limit

    static constexpr role kind = role::sequence_weight;
    static constexpr std::uint32_t needs = uses_mismatch | may_reject;

    void check() const {
        detail::require(low >= 0 && std::isfinite(low), "band_veto.low", low, "finite and >= 0");
        detail::require(high > low, "band_veto.high", high, "greater than band_veto.low = " + detail::text(low));
        detail::require(most_tokens >= 0, "band_veto.most_tokens", most_tokens, ">= 0");
        detail::require(most_share >= 0 && most_share <= 1, "band_veto.most_share", most_share, "in [0, 1]");
    }
    template <typename Number>
    [[nodiscard]] detail::band_veto_op<Number> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high)), most_tokens, most_share};
    }
};

/// Rejects a sequence whose divergence, the mean over its tokens or their sum, is above `limit`.
struct mean_divergence_gate {
    double limit;  ///< nats, not NaN
    estimator by = estimator::k3;
    bool per_token = true;  ///< false: the sum

    static constexpr role kind = role::sequence_weight;
    static constexpr std::uint32_t needs = uses_mismatch | may_reject;

    void check() const { detail::require(!std::isnan(limit), "mean_divergence_gate.limit", limit, "a number"); }
    template <typename>
    [[nodiscard]] detail::divergence_gate_op<false> bind() const {
        return {limit, by, per_token};
    }
};

/// Rejects a sequence one of whose tokens has a divergence above `limit`. Trust region masking (arXiv 2512.23075).
struct largest_divergence_gate {
    double limit;  ///< nats, not NaN
    estimator by = estimator::k3;

    static constexpr role kind = role::sequence_weight;
    static constexpr std::uint32_t needs = uses_mismatch | may_reject;

    void check() const { detail::require(!std::isnan(limit), "largest_divergence_gate.limit", limit, "a number"); }
    template <typename>
    [[nodiscard]] detail::divergence_gate_op<true> bind() const {
        return {limit, by, false};
    }
};

/// Off-policy sequence masking: rejects a sequence whose mean advantage is negative and for which mean(rollout - new), an
/// estimate of KL(rollout || new), is strictly above `delta`. A token without a rollout log-prob counts as new / old, or as 0
/// where old is not read. DeepSeek-V3.2 (arXiv 2512.02556).
struct opsm {
    double delta;  ///< nats per token, >= 0

    static constexpr role kind = role::sequence_weight;
    static constexpr std::uint32_t needs = reads_rollout | may_reject;

    void check() const { detail::require(delta >= 0, "opsm.delta", delta, ">= 0"); }
    template <typename>
    [[nodiscard]] detail::opsm_op bind() const {
        return {delta};
    }
};

ASYNCRL_END_NAMESPACE
