// SPDX-License-Identifier: Apache-2.0
/// @file What a part of an objective sees of one token, what it answers, and how it declares what it needs.
#pragma once

#include <asyncrl/correction/token/real.hpp>

ASYNCRL_BEGIN_NAMESPACE

/// One token, with every exponential taken already. Fields that no part of the objective needs are not set.
/// Log-probabilities are in nats. The ratio saturates at e^88 (double: e^709), so that its
/// product with 0 is 0, and the mismatch at 2^30.
template <typename Real>
struct token {
    Real log_prob;      ///< of the sampled token under the new policy
    Real log_ratio;     ///< new - anchor; the anchor is the old policy unless the objective names another
    Real ratio;         ///< exp(log_ratio)
    Real log_mismatch;  ///< old - rollout
    Real mismatch;      ///< exp(log_mismatch)
    Real advantage;
};

/// What happened to a token, as written to loss_outputs::flags. Set for active tokens only; all but `unscored` and
/// `nonfinite_input` only where the advantage is not zero.
enum token_flag : std::uint16_t {
    clipped_high = 1U << 0,     ///< the upper bound removed the gradient
    clipped_low = 1U << 1,      ///< the lower bound removed the gradient
    capped = 1U << 2,           ///< a weight was truncated
    gated = 1U << 3,            ///< a mask rejected the token
    tail = 1U << 5,             ///< SAT narrowed this token's interval
    nonfinite_input = 1U << 7,  ///< a needed input or the result is NaN or infinite
    unscored = 1U << 8,         ///< the rollout engine gave no log-prob
};

namespace detail {

/// Events of a token within a loop: three bits apart, five from bit 0 on and five from bit 16 on, so that the words of up to
/// seven tokens add up to ten small counts (one of them free).
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
};

[[nodiscard]] ASYNCRL_HOST_DEVICE constexpr event event_of(token_flag flag) {
    return flag == clipped_high      ? event::clipped_high
           : flag == clipped_low     ? event::clipped_low
           : flag == capped          ? event::capped
           : flag == gated           ? event::gated
           : flag == tail            ? event::tail
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
    move(tail);
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

/// A loss and its derivative with respect to the new log-prob.
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

/// The role of a part within an objective.
enum class role : std::uint8_t { anchor, surrogate, weight, reduction };

/// What a part reads or asks for. The union over the parts decides, at compile time, which columns are loaded, which
/// exponentials are taken and which passes run.
enum need : std::uint32_t {
    reads_old = 1U << 0,
    reads_rollout = 1U << 1,
    uses_ratio = 1U << 2,       ///< log_ratio and ratio
    uses_mismatch = 1U << 3,    ///< log_mismatch and mismatch
    may_reject = 1U << 4,       ///< `keep` can be false
    weighs_mismatch = 1U << 5,  ///< counts old / rollout once
    anchors_rollout = 1U << 6,  ///< the ratio is new / rollout
    batch_quantile = 1U << 7,   ///< an order statistic of |log_ratio| over the whole batch
};

ASYNCRL_END_NAMESPACE
