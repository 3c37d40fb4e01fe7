// SPDX-License-Identifier: Apache-2.0
/// @file The host's loops over tokens: load a packet, call the objective, tally, store. No formula of a method stands here.
#pragma once

#include <asyncrl/correction/detail/chunk.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/objective.hpp>

#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Beyond it a raw mismatch ratio would swamp float sums of squares; such tokens count as exactly this and are counted.
inline constexpr double mismatch_ceiling = 1073741824.0;
inline constexpr double log_mismatch_ceiling = 20.79441541679835928251696;

/// Dense arrays of one chunk. Those of needs the objective does not have are null.
template <typename Element>
struct chunk_inputs {
    Element const* log_prob;
    Element const* old_log_prob;
    Element const* rollout_log_prob;
    Element const* advantage;
    std::uint8_t const* mask;
};

/// Buffers for the columns of a chunk that cannot be read where they lie.
template <typename Element>
struct input_buffers {
    alignas(64) Element log_prob[chunk_size];
    alignas(64) Element old_log_prob[chunk_size];
    alignas(64) Element rollout_log_prob[chunk_size];
    alignas(64) Element advantage[chunk_size];
    alignas(64) std::uint8_t mask[chunk_size];
};

template <std::uint32_t Needs, typename Element>
[[nodiscard]] chunk_inputs<Element> stage_inputs(token_batch const& batch, chunk_range range, std::int64_t padded,
                                                 input_buffers<Element>& buffers) {
    chunk_inputs<Element> in{};
    in.log_prob = staged(batch.log_prob, batch, range, padded, buffers.log_prob);
    in.advantage = staged(batch.advantage, batch, range, padded, buffers.advantage);
    in.mask = staged_mask(batch, range, padded, buffers.mask);
    if constexpr ((Needs & reads_old) != 0) {
        in.old_log_prob = staged(batch.old_log_prob, batch, range, padded, buffers.old_log_prob);
    }
    if constexpr ((Needs & reads_rollout) != 0) {
        in.rollout_log_prob = staged(batch.rollout_log_prob, batch, range, padded, buffers.rollout_log_prob);
    }
    return in;
}

/// One packet of tokens, and which of them are what. A token that is not `live` has a log-ratio and log-mismatch of 0.
template <typename Real>
struct loaded {
    token<Real> t;
    mask_of<Real> active;
    mask_of<Real> unscored;
    mask_of<Real> live;  ///< active, and every needed input is finite
};

/// The rollout log-prob that means "none": NaN, or one number.
template <typename Real>
struct sentinel {
    Real value;
    mask_of<Real> any_nan;

    explicit sentinel(double number) : value(Real(number)), any_nan(Real(is_nan(number) ? 1 : 0) > Real(0)) {}
    [[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> holds(Real x) const { return (x == value) | (any_nan & is_nan(x)); }
};

template <std::uint32_t Needs, typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE loaded<Real> load_tokens(chunk_inputs<typename packing<Real>::element> const& in,
                                                           std::int64_t i, sentinel<Real> const& missing) {
    using pack = packing<Real>;
    loaded<Real> out{};
    out.active = pack::load_mask(in.mask + i);
    Real const new_lp = pack::load(in.log_prob + i);
    Real const advantage = pack::load(in.advantage + i);
    // A sum is finite only if each term is; log-probs and advantages are far from where finite terms overflow.
    Real probe = new_lp + advantage;
    Real old_lp(0);
    Real rollout_lp(0);
    out.unscored = !always<Real>();
    if constexpr ((Needs & reads_old) != 0) {
        old_lp = pack::load(in.old_log_prob + i);
        probe = probe + old_lp;
    }
    if constexpr ((Needs & reads_rollout) != 0) {
        rollout_lp = pack::load(in.rollout_log_prob + i);
        out.unscored = out.active & missing.holds(rollout_lp);
        rollout_lp = select(out.unscored, (Needs & anchors_rollout) != 0 ? new_lp : old_lp, rollout_lp);
        probe = probe + rollout_lp;
    }
    out.live = out.active & !is_nonfinite(probe);
    out.t.log_prob = new_lp;
    out.t.advantage = advantage;
    if constexpr ((Needs & uses_ratio) != 0) {
        out.t.log_ratio = select(out.live, new_lp - ((Needs & anchors_rollout) != 0 ? rollout_lp : old_lp), Real(0));
        out.t.ratio = exponential(out.t.log_ratio);
    }
    if constexpr ((Needs & uses_mismatch) != 0) {
        out.t.log_mismatch = select(out.live, old_lp - rollout_lp, Real(0));
        out.t.mismatch = exponential(out.t.log_mismatch);
    }
    return out;
}

/// The numbers of a report, one for each lane of a packet.
template <typename Real>
struct tally {
    Real loss{}, absolute_loss{}, weight{}, weight_squared{}, mismatch{}, mismatch_squared{}, log_mismatch{},
        absolute_log_mismatch{}, k3_mismatch{}, absolute_log_ratio{}, largest_log_mismatch{}, largest_log_ratio{};
    bits_of<Real> tokens{}, kept{}, high{}, low{}, capped_count{}, gated_count{}, tail_count{}, nonfinite{}, unscored{},
        overflow{};

    template <std::uint32_t Needs>
    ASYNCRL_HOST_DEVICE void add(loaded<Real> const& in, token_outcome<Real> const& out, Real share) {
        loss = loss + share;
        absolute_loss = absolute_loss + absolute(share);
        tick(tokens, in.active);
        if constexpr ((Needs & uses_ratio) != 0) {
            Real const size = absolute(in.t.log_ratio);
            absolute_log_ratio = absolute_log_ratio + size;
            largest_log_ratio = larger(largest_log_ratio, size);
        }
        if constexpr ((Needs & uses_mismatch) != 0) {
            Real const e = in.t.log_mismatch;
            mask_of<Real> const over = e > Real(log_mismatch_ceiling);
            Real const w = select(in.live, select(over, Real(mismatch_ceiling), in.t.mismatch), Real(0));
            mismatch = mismatch + w;
            mismatch_squared = mismatch_squared + w * w;
            log_mismatch = log_mismatch + e;
            absolute_log_mismatch = absolute_log_mismatch + absolute(e);
            largest_log_mismatch = larger(largest_log_mismatch, absolute(e));
            k3_mismatch = k3_mismatch + select(in.live, k3(e, w), Real(0));
            Real const effective = select(in.live, smaller(out.weight, Real(mismatch_ceiling)), Real(0));
            weight = weight + effective;
            weight_squared = weight_squared + effective * effective;
            tick(overflow, over);
        }
        auto const count = [&](bits_of<Real>& into, std::uint32_t flag) { tick(into, has(out.flags, flag)); };
        if constexpr ((Needs & uses_ratio) != 0) {
            count(high, clipped_high);
            count(low, clipped_low);
        }
        if constexpr ((Needs & uses_mismatch) != 0) {
            count(capped_count, capped);
        }
        if constexpr ((Needs & may_reject) != 0) {
            count(gated_count, gated);
            tick(kept, in.live & out.keep);
        }
        if constexpr ((Needs & batch_quantile) != 0) {
            count(tail_count, tail);
        }
        if constexpr ((Needs & reads_rollout) != 0) {
            tick(unscored, in.unscored);
        }
        tick(nonfinite, in.active & !in.live);
    }

    /// The report of the chunk. Sums of the loss are multiplied by `scale`.
    template <std::uint32_t Needs>
    [[nodiscard]] loss_report report(double scale) const {
        using pack = packing<Real>;
        loss_report r;
        r.sums.loss = pack::sum(loss) * scale;
        r.sums.absolute_loss = pack::sum(absolute_loss) * std::abs(scale);
        r.sums.mismatch = pack::sum(mismatch);
        r.sums.mismatch_squared = pack::sum(mismatch_squared);
        r.sums.log_mismatch = pack::sum(log_mismatch);
        r.sums.absolute_log_mismatch = pack::sum(absolute_log_mismatch);
        r.sums.k3_mismatch = pack::sum(k3_mismatch);
        r.sums.absolute_log_ratio = pack::sum(absolute_log_ratio);
        r.counts.tokens = pack::sum(tokens);
        r.counts.nonfinite = pack::sum(nonfinite);
        r.counts.kept = (Needs & may_reject) != 0 ? pack::sum(kept) : r.counts.tokens - r.counts.nonfinite;
        r.counts.clipped_high = pack::sum(high);
        r.counts.clipped_low = pack::sum(low);
        r.counts.capped = pack::sum(capped_count);
        r.counts.gated = pack::sum(gated_count);
        r.counts.tail = pack::sum(tail_count);
        r.counts.unscored = pack::sum(unscored);
        r.counts.mismatch_overflow = pack::sum(overflow);
        r.maxima.absolute_log_mismatch = pack::maximum(largest_log_mismatch);
        r.maxima.absolute_log_ratio = pack::maximum(largest_log_ratio);
        // Without a weight every live token weighs 1.
        bool const weighted = (Needs & uses_mismatch) != 0;
        r.sums.weight = weighted ? pack::sum(weight) : static_cast<double>(r.counts.kept);
        r.sums.weight_squared = weighted ? pack::sum(weight_squared) : static_cast<double>(r.counts.kept);
        return r;
    }
};

/// What the loss loop needs beside its inputs.
template <typename Element>
struct loss_numbers {
    double missing;            ///< the sentinel of token_batch::unscored
    Element scale;             ///< gradient of a token = slope * scale, where row_scale is null
    Element const* row_scale;  ///< or: its row's scale, for each position of the chunk
    double loss_scale;         ///< factor of the chunk's loss sums
    bool propagate;            ///< a non-finite token yields NaN instead of 0
};

template <typename Element>
struct chunk_outputs {
    Element* gradient;
    Element* loss;         ///< null: not wanted
    Element* weight;       ///< null: not wanted
    std::uint32_t* flags;  ///< null: not wanted
};

/// The loss of one chunk of `padded` positions, a multiple of the packet's width.
template <typename Real, typename Bound>
[[nodiscard]] loss_report loss_of_chunk(Bound const& objective, chunk_inputs<typename packing<Real>::element> const& in,
                                        chunk_outputs<typename packing<Real>::element> const& out, std::int64_t padded,
                                        loss_numbers<typename packing<Real>::element> const& numbers) {
    using pack = packing<Real>;
    sentinel<Real> const missing(numbers.missing);
    Real const bad_value(numbers.propagate ? std::numeric_limits<float>::quiet_NaN() : 0.0F);
    tally<Real> sums;
    for (std::int64_t i = 0; i < padded; i += pack::width) {
        loaded<Real> token = load_tokens<Bound::needs, Real>(in, i, missing);
        token_outcome<Real> result = objective(token.t);
        token.live = token.live & !is_nonfinite(result.value + result.slope);
        mask_of<Real> const bad = token.active & !token.live;
        Real const dead = select(bad, bad_value, Real(0));
        result.value = select(token.live, result.value, dead);
        result.slope = select(token.live, result.slope, dead);
        result.flags = (result.flags & mark(token.live, ~0U)) | mark(token.unscored, unscored) | mark(bad, nonfinite_input);

        Real const scale = numbers.row_scale != nullptr ? pack::load(numbers.row_scale + i) : Real(numbers.scale);
        pack::store(out.gradient + i, result.slope * scale);
        sums.template add<Bound::needs>(token, result, numbers.row_scale != nullptr ? result.value * scale : result.value);
        if (out.loss != nullptr) {
            pack::store(out.loss + i, result.value);
        }
        if (out.weight != nullptr) {
            pack::store(out.weight + i, select(token.live, result.weight, Real(0)));
        }
        if (out.flags != nullptr) {
            pack::store_bits(out.flags + i, result.flags);
        }
    }
    return sums.template report<Bound::needs>(numbers.loss_scale);
}

/// How many tokens of a chunk the objective's masks keep.
template <typename Real, typename Bound>
[[nodiscard]] std::int64_t kept_in_chunk(Bound const& objective, chunk_inputs<typename packing<Real>::element> const& in,
                                         std::int64_t padded, double missing_number) {
    sentinel<Real> const missing(missing_number);
    bits_of<Real> kept{};
    for (std::int64_t i = 0; i < padded; i += packing<Real>::width) {
        loaded<Real> const token = load_tokens<Bound::needs, Real>(in, i, missing);
        tick(kept, token.live & objective.keeps(token.t));
    }
    return packing<Real>::sum(kept);
}

[[nodiscard]] constexpr std::int64_t padded_to(std::int64_t count, int width) {
    return (count + width - 1) / width * width;
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
