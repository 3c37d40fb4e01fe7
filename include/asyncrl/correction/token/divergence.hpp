// SPDX-License-Identifier: Apache-2.0
/// @file Divergences of two policies at one position: of the sampled token against all others, or over a few of the largest.
#pragma once

#include <asyncrl/correction/token/real.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// One token against all others under one policy.
template <typename Real>
struct binary {
    Real log_p, p, rest, log_rest;  ///< rest = 1 - p

    /// log(1 - p) without cancellation on either side: -infinity where p is 1.
    template <typename Math>
    ASYNCRL_HOST_DEVICE binary(Real log_prob, Math const& math)
        : log_p(smaller(log_prob, Real(0))), p(math.exp(log_p)), rest(-math.expm1(log_p)) {
        log_rest = select(log_p > Real(-0.69314718055994530942), math.log(rest), math.log1p(-p));
    }
};

/// KL(P || Q) of the two outcomes; infinite where q is 1 and p is not.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real binary_kl(binary<Real> const& p, binary<Real> const& q) {
    return p.p * (p.log_p - q.log_p) + select(p.rest > Real(0), p.rest * (p.log_rest - q.log_rest), Real(0));
}

}  // namespace detail

/// Total variation and KL(Q || P) over K tokens and the rest, from the tokens' log-probs under both policies.
struct top_k_divergence {
    double total_variation = 0;
    double kl = 0;  ///< infinite where P gives 0 to what Q does not
};

/// For token_batch::divergence and `divergence_gate`: Q the rollout policy, P the new one, on the K tokens that Q finds
/// likeliest. Dividing less finely, it is at most the divergence over all tokens. In double, O(K). DPPO's top-K variant (arXiv
/// 2602.04879).
template <typename Number>
[[nodiscard]] ASYNCRL_HOST_DEVICE top_k_divergence divergence_over_top_k(Number const* log_q, Number const* log_p, int k) {
    top_k_divergence d;
    double rest_q = 1;
    double rest_p = 1;
    auto const add = [&d](double q, double p) {
        double const off = q > p ? q - p : p - q;
        d.total_variation += off / 2;
        d.kl += q > 0 ? q * ::log(q / p) : 0;
    };
    for (int i = 0; i < k; ++i) {
        double const q = ::exp(static_cast<double>(log_q[i]));
        double const p = ::exp(static_cast<double>(log_p[i]));
        rest_q -= q;
        rest_p -= p;
        add(q, p);
    }
    add(rest_q > 0 ? rest_q : 0, rest_p > 0 ? rest_p : 0);
    return d;
}

ASYNCRL_END_NAMESPACE
