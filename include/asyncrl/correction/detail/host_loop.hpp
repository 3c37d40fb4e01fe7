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

[[nodiscard]] constexpr std::int64_t padded_to(std::int64_t count, int width) {
    return (count + width - 1) / width * width;
}

/// Dense arrays of one chunk. Those of needs the objective does not have are null.
template <typename Element>
struct chunk_inputs {
    Element const* columns[input_count];
    std::uint8_t const* mask;
    std::uint8_t const* keep;

    [[nodiscard]] Element const* operator[](input which) const { return columns[static_cast<int>(which)]; }
};

/// Buffers for the columns of a chunk that cannot be read where they lie.
template <typename Element, std::uint32_t Needs>
struct input_buffers {
    alignas(64) Element columns[needed_inputs(Needs)][chunk_size];
    alignas(64) std::uint8_t mask[chunk_size];
    alignas(64) std::uint8_t keep[(Needs & reads_keep) != 0 ? chunk_size : 1];
};

template <std::uint32_t Needs, typename Element>
[[nodiscard]] chunk_inputs<Element> stage_inputs(token_batch const& batch, chunk_range range, std::int64_t padded,
                                                 input_buffers<Element, Needs>& buffers) {
    chunk_inputs<Element> in{};
    int buffer = 0;
    for (int i = 0; i < input_count; ++i) {
        auto const which = static_cast<input>(i);
        if (is_needed(which, Needs)) {
            Element* const to = buffers.columns[buffer++];
            if constexpr ((Needs & reads_version) != 0) {
                if (which == input::staleness) {
                    in.columns[i] = staged_staleness(batch, range, padded, to);
                    continue;
                }
            }
            in.columns[i] = staged(column_of(batch, which), batch, range, padded, to);
        }
    }
    in.mask = staged_flags(batch.mask, batch, range, padded, buffers.mask);
    if constexpr ((Needs & reads_keep) != 0) {
        in.keep = staged_flags(batch.keep, batch, range, padded, buffers.keep);
    }
    return in;
}

/// Loads one packet of tokens and takes the exponentials that the objective needs.
template <std::uint32_t Needs, typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE observed<Real> load_tokens(chunk_inputs<typename packing<Real>::element> const& in,
                                                             std::int64_t i, sentinel<Real> const& missing) {
    using pack = packing<Real>;
    token_inputs<Real> x = read_inputs<Needs, Real>([&](auto which) { return pack::load(in[which] + i); });
    if constexpr ((Needs & reads_keep) != 0) {
        x.keep = pack::load_mask(in.keep + i);
    }
    return observe<Needs>(x, pack::load_mask(in.mask + i), missing, host_math{});
}

/// What the tokens of a chunk learn of their sequences, an element for each position. Null without parts that speak of them.
template <typename Element>
struct chunk_sequences {
    Element const *weight, *log_ratio, *ratio, *spread, *advantage, *slope;
    std::uint8_t const *keep, *capped;
};

template <typename Element>
struct sequence_buffers {
    alignas(64) Element weight[chunk_size];
    alignas(64) Element log_ratio[chunk_size];
    alignas(64) Element ratio[chunk_size];
    alignas(64) Element spread[chunk_size];
    alignas(64) Element advantage[chunk_size];
    alignas(64) Element slope[chunk_size];
    alignas(64) std::uint8_t keep[chunk_size];
    alignas(64) std::uint8_t capped[chunk_size];
};

/// Repeats what was decided of each sequence for its positions, as much as `load_sequence` reads. `sequences` is the batch with
/// sequences as its rows.
template <std::uint32_t Needs, typename Element>
[[nodiscard]] chunk_sequences<Element> stage_sequences(token_batch const& sequences, sequence_values const* values,
                                                       chunk_range range, std::int64_t padded, sequence_buffers<Element>& to) {
    auto const fill = [&](std::int64_t at, std::int64_t count, sequence_values const& v) {
        std::fill_n(to.weight + at, count, static_cast<Element>(v.weight));
        std::fill_n(to.keep + at, count, static_cast<std::uint8_t>(v.keep ? 1 : 0));
        std::fill_n(to.capped + at, count, static_cast<std::uint8_t>(v.capped ? 1 : 0));
        if constexpr ((Needs & has_coupling) != 0) {
            std::fill_n(to.log_ratio + at, count, static_cast<Element>(v.log_ratio));
            std::fill_n(to.ratio + at, count, static_cast<Element>(v.ratio));
            std::fill_n(to.spread + at, count, static_cast<Element>(v.spread));
            std::fill_n(to.advantage + at, count, static_cast<Element>(v.advantage));
            std::fill_n(to.slope + at, count, static_cast<Element>(v.slope));
        }
    };
    for_each_stretch(sequences, range, [&](std::int64_t row, std::int64_t, std::int64_t count, std::int64_t at) {
        fill(at, count, values[row]);
    });
    fill(range.count, padded - range.count, {});
    return {to.weight, to.log_ratio, to.ratio, to.spread, to.advantage, to.slope, to.keep, to.capped};
}

template <std::uint32_t Needs, typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE sequence_context<Real> load_sequence(
    chunk_sequences<typename packing<Real>::element> const& from, std::int64_t i) {
    using pack = packing<Real>;
    sequence_context<Real> s = no_sequence<Real>();
    if constexpr ((Needs & has_sequences) != 0) {
        s.weight = pack::load(from.weight + i);
        s.keep = pack::load_mask(from.keep + i);
        s.capped = pack::load_mask(from.capped + i);
    }
    if constexpr ((Needs & has_coupling) != 0) {
        s.log_ratio = pack::load(from.log_ratio + i);
        s.ratio = pack::load(from.ratio + i);
        s.spread = pack::load(from.spread + i);
        s.advantage = pack::load(from.advantage + i);
        s.slope = pack::load(from.slope + i);
    }
    return s;
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
              pack::sum(t.k3_mismatch),  pack::sum(t.absolute_log_ratio),
              pack::sum(t.penalty)};
    auto const low = [](bits_of<Real> counts) { return pack::sum(low_half(counts)); };
    auto const high = [](bits_of<Real> counts) { return pack::sum(high_half(counts)); };
    r.counts = {low(t.tokens_kept),         0,
                high(t.tokens_kept),        low(t.clipped_high_low),
                high(t.clipped_high_low),   low(t.capped_gated),
                high(t.capped_gated),       low(t.tails_clamped),
                high(t.unscored_nonfinite), low(t.unscored_nonfinite),
                high(t.tails_clamped)};
    r.maxima = {pack::maximum(t.largest_log_mismatch), pack::maximum(t.largest_log_ratio)};
    complete_report(r, Needs);
    return r;
}

/// What the loss loop needs beside its inputs.
template <typename Element>
struct loss_numbers {
    double missing;            ///< the sentinel of token_batch::unscored
    Element scale;             ///< gradient of a token = slope * scale
    Element const* row_scale;  ///< if not null: and by its row's scale, for each position of the chunk
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
                                        chunk_sequences<typename packing<Real>::element> const& sequences,
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
        token_outcome<Real> result = objective(token.t, load_sequence<Bound::needs, Real>(sequences, i), host_math{});
        settle<Bound::needs>(token, result);
        if (numbers.propagate) {
            mask_of<Real> const bad = token.active & !token.live;
            result.value = select(bad, bad_value, result.value);
            result.slope = select(bad, bad_value, result.slope);
        }
        Real scale(numbers.scale);
        Real value = result.value;
        if (numbers.row_scale != nullptr) {
            Real const of_row = pack::load(numbers.row_scale + i);
            scale = scale * of_row;
            value = value * of_row;
        }
        pack::store(out.gradient + i, result.slope * scale + Real(0));  // +0 under the mask, whatever the sign of the scale
        sums.template add<Bound::needs>(token, result, value, events);
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

/// Tokens that the objective's masks keep, and the sum of their effective weights.
struct kept_weight {
    std::int64_t tokens;
    double weight;
};

template <typename Real, typename Bound>
[[nodiscard]] kept_weight kept_in_chunk(Bound const& objective, chunk_inputs<typename packing<Real>::element> const& in,
                                        chunk_sequences<typename packing<Real>::element> const& sequences, std::int64_t padded,
                                        double missing_number) {
    sentinel<Real> const missing(missing_number);
    bits_of<Real> kept{};
    Real weight{};
    for (std::int64_t i = 0; i < padded; i += packing<Real>::width) {
        observed<Real> token = load_tokens<Bound::needs, Real>(in, i, missing);
        screen(token);
        sequence_context<Real> const s = load_sequence<Bound::needs, Real>(sequences, i);
        mask_of<Real> const keep = token.live & objective.keeps(token.t, s, host_math{});
        tick_low(kept, keep);
        if constexpr ((Bound::needs & batch_weight) != 0) {
            weight = weight + select(keep, objective(token.t, s, host_math{}).weight, Real(0));
        }
    }
    return {packing<Real>::sum(kept), packing<Real>::sum(weight)};
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
