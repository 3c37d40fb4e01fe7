// SPDX-License-Identifier: Apache-2.0
/// @file What a part of an objective sees of one token, what it answers, and how it declares what it needs.
#pragma once

#include <asyncrl/correction/token/real.hpp>

ASYNCRL_BEGIN_NAMESPACE

/// One token, with every exponential taken already. Fields that no part of the objective needs are not set.
/// Log-probabilities are in nats. Ratios to the anchor saturate at e^88 (double: e^709), so that their product with 0 is 0, and
/// the mismatch at 2^30.
template <typename Real>
struct token {
    Real log_prob{};   ///< of the sampled token under the new policy
    Real log_ratio{};  ///< new - anchor; of the whole sequence where the objective couples its tokens
    Real ratio{};      ///< exp(log_ratio)
    Real
        own_log_ratio{};  ///< new - anchor of this token alone; the anchor is the old policy unless the objective names another
    Real own_ratio{};
    Real log_mismatch{};    ///< old - rollout
    Real mismatch{};        ///< exp(log_mismatch)
    Real log_off_policy{};  ///< new - rollout
    Real advantage{};
    Real log_reference{};       ///< new - reference
    Real reference_ratio{};     ///< exp(reference - new)
    Real staleness{};           ///< versions between the policy that sampled the token and the new one; 0 where not known
    Real log_lag{};             ///< old - sync: what updates of the policy changed
    Real log_engine{};          ///< sync - rollout: what the engine's numerics changed
    Real probability{};         ///< exp(log_prob), at most 1
    Real anchor_probability{};  ///< exp(anchor), at most 1
    Real anchor_kl{};           ///< binary KL(anchor || new): the token against all others
    Real mismatch_kl{};         ///< the larger of the binary KLs between old and rollout, both ways
    Real given_weight{};        ///< columns of the caller's
    Real divergence{};
    Real score{};
    mask_of<Real> given_keep{};
};

/// What happened to a token, as written to loss_outputs::flags. Set for active tokens only; all but `unscored` and
/// `nonfinite_input` only where the advantage is not zero.
enum token_flag : std::uint16_t {
    clipped_high = 1U << 0,     ///< beyond the upper bound: the gradient is gone, or with spo and drpo turned round
    clipped_low = 1U << 1,      ///< beyond the lower bound
    capped = 1U << 2,           ///< a weight was truncated, or the dual bound of a clip removed the gradient
    gated = 1U << 3,            ///< a mask rejected the token
    gated_sequence = 1U << 4,   ///< together with `gated`: its whole sequence was rejected
    tail = 1U << 5,             ///< SAT narrowed this token's interval
    clamped = 1U << 6,          ///< a clamp of a log-ratio or of a penalty removed its gradient
    nonfinite_input = 1U << 7,  ///< a needed input or the result is NaN or infinite
    unscored = 1U << 8,         ///< the rollout engine gave no log-prob
};

namespace detail {

/// Events of a token within a loop: three bits apart, five from bit 0 on and five from bit 16 on, so that the words of up to
/// seven tokens add up to ten small counts. The last bit is not counted: its carries leave the word.
enum class event : std::uint32_t {
    clipped_high = 1U << 0,
    capped = 1U << 3,
    unscored = 1U << 6,
    active = 1U << 9,
    tail = 1U << 12,
    clipped_low = 1U << 16,
    gated = 1U << 19,
    nonfinite = 1U << 22,
    kept = 1U << 25,
    clamped = 1U << 28,
    gated_sequence = 1U << 31,
};

[[nodiscard]] ASYNCRL_HOST_DEVICE constexpr event event_of(token_flag flag) {
    return flag == clipped_high      ? event::clipped_high
           : flag == clipped_low     ? event::clipped_low
           : flag == capped          ? event::capped
           : flag == gated           ? event::gated
           : flag == gated_sequence  ? event::gated_sequence
           : flag == tail            ? event::tail
           : flag == clamped         ? event::clamped
           : flag == nonfinite_input ? event::nonfinite
                                     : event::unscored;
}

/// The events of one token as they are written to memory.
[[nodiscard]] ASYNCRL_HOST_DEVICE std::uint16_t stored_flags(std::uint32_t events) {
    std::uint32_t stored = 0;
    auto const move = [&](token_flag flag) {
        stored |= (events & static_cast<std::uint32_t>(event_of(flag))) != 0 ? std::uint32_t{flag} : 0U;
    };
    move(clipped_high);
    move(clipped_low);
    move(capped);
    move(gated);
    move(gated_sequence);
    move(tail);
    move(clamped);
    move(nonfinite_input);
    move(unscored);
    return static_cast<std::uint16_t>(stored);
}

}  // namespace detail

/// What a part answers for a flag: set where the condition holds. `|` joins several.
template <typename Mask>
[[nodiscard]] ASYNCRL_HOST_DEVICE auto mark(Mask condition, token_flag flag) {
    return mark(condition, static_cast<std::uint32_t>(detail::event_of(flag)));
}
template <typename Mask>
[[nodiscard]] ASYNCRL_HOST_DEVICE auto mark(Mask condition, detail::event what) {
    return mark(condition, static_cast<std::uint32_t>(what));
}

/// Whether a part's answer has a flag.
[[nodiscard]] ASYNCRL_HOST_DEVICE bool has(std::uint32_t bits, token_flag flag) {
    return (bits & static_cast<std::uint32_t>(detail::event_of(flag))) != 0;
}

/// A loss and its derivative with respect to the log_ratio or, where the part `scores`, to the log_prob.
template <typename Real>
struct term {
    Real value;
    Real slope;
    bits_of<Real> flags;
};

/// A detached weight: `value` multiplies the surrogate where `keep` holds, and the token is rejected elsewhere.
template <typename Real>
struct factor {
    Real value;
    mask_of<Real> keep;
    bits_of<Real> flags;
};

/// Numbers of a whole batch that parts wait for: an op with `prepare(batch_numbers const&)` gets them before the loss.
struct batch_numbers {
    double quantile = 0;     ///< the order statistic of |log_ratio|
    double mean_weight = 1;  ///< mean effective weight over kept tokens
};

/// The role of a part within an objective. Parts with a functor (all but anchors, reductions and options) bind to one that
/// is called with a token, and with the loop's `math` too if it takes it:
///   surrogate        term: the loss, multiplied by all weights
///   weight           factor: a detached weight, or a mask (a weight of 1 that can reject)
///   penalty          term: added for every active token, whatever weights and masks say
///   sequence_weight  a factor of whole sequences, see token/sequence.hpp
///   coupling         the ratio of whole sequences in the place of each token's, see token/sequence.hpp
///   clamp            bounds the log-ratio that the surrogate sees
enum class role : std::uint8_t { anchor, surrogate, weight, penalty, sequence_weight, coupling, clamp, reduction, option };

/// What a part reads or asks for. The union over the parts decides, at compile time, which columns are loaded, which
/// exponentials are taken and which passes run.
enum need : std::uint32_t {
    reads_old = 1U << 0,
    reads_rollout = 1U << 1,
    uses_ratio = 1U << 2,           ///< the log-ratios and ratios
    uses_mismatch = 1U << 3,        ///< log_mismatch and mismatch
    may_reject = 1U << 4,           ///< `keep` can be false
    weighs_mismatch = 1U << 5,      ///< counts old / rollout once
    anchors_rollout = 1U << 6,      ///< the ratio is new / rollout
    batch_quantile = 1U << 7,       ///< an order statistic of |log_ratio| over the whole batch
    reads_reference = 1U << 8,      ///< log_reference and reference_ratio
    reads_anchor = 1U << 9,         ///< the ratio is new / anchor column
    reads_version = 1U << 10,       ///< staleness
    anchors_between = 1U << 11,     ///< the old policy is interpolated between rollout and new by staleness
    reads_weight = 1U << 12,        ///< given_weight
    reads_keep = 1U << 13,          ///< given_keep
    reads_divergence = 1U << 14,    ///< divergence
    reads_score = 1U << 15,         ///< score
    reads_kept_mass = 1U << 16,     ///< rollout log-probs are of what the sampler kept, and are brought back
    reads_sync = 1U << 17,          ///< log_lag and log_engine
    uses_probability = 1U << 18,    ///< probability and anchor_probability
    uses_anchor_kl = 1U << 19,      ///< anchor_kl
    uses_mismatch_kl = 1U << 20,    ///< mismatch_kl
    scores = 1U << 21,              ///< the slope is with respect to the token's own log_prob, not through the ratio
    of_one_token = 1U << 22,        ///< makes no sense for the ratio of a whole sequence
    averages_advantage = 1U << 23,  ///< all tokens of a sequence get its mean advantage
    shares_slope = 1U << 24,        ///< all tokens of a sequence get its mean slope
    batch_weight = 1U << 25,        ///< the mean weight of the whole batch
    allows_double = 1U << 26,       ///< counting the rollout policy twice is meant
    // What follows from the roles of the parts.
    has_weights = 1U << 27,
    has_penalties = 1U << 28,
    has_sequences = 1U << 29,
    has_coupling = 1U << 30,
    has_clamp = 1U << 31,
};

ASYNCRL_END_NAMESPACE
