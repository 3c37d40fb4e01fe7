// SPDX-License-Identifier: Apache-2.0
/// @file The host's loops over tokens: load a packet, call the objective, tally, store. No formula of a method stands here.
#pragma once

#include <asyncrl/correction/detail/chunk.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/token/tally.hpp>

#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

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

/// Loads one packet of tokens and takes the exponentials that the objective needs.
template <std::uint32_t Needs, typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE observed<Real> load_tokens(chunk_inputs<typename packing<Real>::element> const& in,
                                                             std::int64_t i, sentinel<Real> const& missing) {
    using pack = packing<Real>;
    log_probs<Real> columns{pack::load(in.log_prob + i), Real(0), Real(0)};
    if constexpr ((Needs & reads_old) != 0) {
        columns.old_policy = pack::load(in.old_log_prob + i);
    }
    if constexpr ((Needs & reads_rollout) != 0) {
        columns.rollout_policy = pack::load(in.rollout_log_prob + i);
    }
    return observe<Needs>(columns, pack::load(in.advantage + i), pack::load_mask(in.mask + i), missing,
                          [](Real x) { return exponential(x); });
}

/// The report of a chunk from the tally of a packet's lanes. Sums of the loss are multiplied by `scale`.
template <std::uint32_t Needs, typename Real>
[[nodiscard]] loss_report report_of(tally<Real> const& t, double scale) {
    using pack = packing<Real>;
    loss_report r;
    r.sums = {pack::sum(t.loss) * scale, pack::sum(t.absolute_loss) * std::abs(scale),
              pack::sum(t.weight),       pack::sum(t.weight_squared),
              pack::sum(t.mismatch),     pack::sum(t.mismatch_squared),
              pack::sum(t.log_mismatch), pack::sum(t.absolute_log_mismatch),
              pack::sum(t.k3_mismatch),  pack::sum(t.absolute_log_ratio)};
    auto const low = [](bits_of<Real> counts) { return pack::sum(low_half(counts)); };
    auto const high = [](bits_of<Real> counts) { return pack::sum(high_half(counts)); };
    r.counts = {low(t.tokens_kept),         0,
                high(t.tokens_kept),        low(t.clipped_high_low),
                high(t.clipped_high_low),   low(t.capped_gated),
                high(t.capped_gated),       low(t.tails),
                high(t.unscored_nonfinite), low(t.unscored_nonfinite)};
    r.maxima = {pack::maximum(t.largest_log_mismatch), pack::maximum(t.largest_log_ratio)};
    complete_report(r, Needs);
    return r;
}

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
    bits_of<Real> events{};
    int added = 0;
    for (std::int64_t i = 0; i < padded; i += pack::width) {
        observed<Real> token = load_tokens<Bound::needs, Real>(in, i, missing);
        token_outcome<Real> result = objective(token.t);
        settle<Bound::needs>(token, result);
        if (numbers.propagate) {
            mask_of<Real> const bad = token.active & !token.live;
            result.value = select(bad, bad_value, result.value);
            result.slope = select(bad, bad_value, result.slope);
        }
        Real const scale = numbers.row_scale != nullptr ? pack::load(numbers.row_scale + i) : Real(numbers.scale);
        pack::store(out.gradient + i, result.slope * scale);
        sums.template add<Bound::needs>(token, result, numbers.row_scale != nullptr ? result.value * scale : result.value,
                                        events);
        if (++added == tally<Real>::tokens_between_flushes) {
            sums.template flush<Bound::needs>(events);
            added = 0;
        }
        if (out.loss != nullptr) {
            pack::store(out.loss + i, result.value);
        }
        if (out.weight != nullptr) {
            pack::store(out.weight + i, result.weight);
        }
        if (out.flags != nullptr) {
            pack::store_bits(out.flags + i, result.flags);
        }
    }
    sums.template flush<Bound::needs>(events);
    return report_of<Bound::needs>(sums, numbers.loss_scale);
}

/// How many tokens of a chunk the objective's masks keep.
template <typename Real, typename Bound>
[[nodiscard]] std::int64_t kept_in_chunk(Bound const& objective, chunk_inputs<typename packing<Real>::element> const& in,
                                         std::int64_t padded, double missing_number) {
    sentinel<Real> const missing(missing_number);
    bits_of<Real> kept{};
    for (std::int64_t i = 0; i < padded; i += packing<Real>::width) {
        observed<Real> token = load_tokens<Bound::needs, Real>(in, i, missing);
        screen(token);
        tick_low(kept, token.live & objective.keeps(token.t));
    }
    return packing<Real>::sum(kept);
}

[[nodiscard]] constexpr std::int64_t padded_to(std::int64_t count, int width) {
    return (count + width - 1) / width * width;
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
