// SPDX-License-Identifier: Apache-2.0
/// @file The exact order statistic of |log_ratio| over one batch, or over many and over ranks by adding histograms.
#pragma once

#include <asyncrl/correction/detail/sequence_loop.hpp>
#include <asyncrl/correction/magnitude_histogram.hpp>
#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

ASYNCRL_BEGIN_NAMESPACE

/// Finds an exact order statistic over any number of batches and ranks, digit by digit of the numbers' bits. What is merged
/// are counts, never samples.
///
///     quantile_search search(objective.quantile(), dtype::f32);
///     do {
///         for (each micro-batch) count_magnitudes(objective, batch, search, workspace);
///         all_reduce_sum(search.counts());   // over ranks, if any
///     } while (!search.narrow());            // 3 rounds in float, 6 in double
///     totals.quantile = search.value();
class quantile_search {
  public:
    /// `precision`: dtype::f64 for batches of double columns, anything else for the rest.
    explicit quantile_search(fraction share, dtype precision = dtype::f32, rank_rule rule = rank_rule::ceiling)
        : share_(share), rule_(rule), shift_(precision == dtype::f64 ? 51 : 19) {}

    /// This round's counts by the next digit, of the numbers that agree with the digits found.
    [[nodiscard]] detail::bucket_counts& counts() { return counts_; }

    /// Adds at most 65535 numbers; negative ones are passed over. Thread safety: concurrent calls add up.
    template <typename Number>
    void add(Number const* numbers, std::int64_t count) {
        detail::count_in_buckets(counts_, numbers, count, [this](Number x) { return bucket_of(x); });
    }

    /// Adds a non-negative number that counts `times` times. Not for concurrent calls.
    template <typename Number>
    void add_repeated(Number number, std::int64_t times) {
        std::size_t const at = bucket_of(number);
        if (at < counts_.size()) {
            counts_[at] += times;
        }
    }

    /// Ends a round. True: the value is known.
    bool narrow() {
        if (rank_ == 0) {
            std::int64_t total = 0;
            for (std::int64_t const count : counts_) {
                total += count;
            }
            rank_ = rank_of(share_, rule_, total);
            if (total == 0) {
                return true;
            }
        }
        std::size_t digit = 0;
        while (counts_[digit] < rank_) {
            rank_ -= counts_[digit];
            ++digit;
        }
        prefix_ = (prefix_ << digit_bits_) + digit;
        counts_.fill(0);
        if (shift_ == 0) {
            return true;
        }
        digit_bits_ = std::min(10, shift_) + (shift_ == 11 ? 1 : 0);
        shift_ -= digit_bits_;
        return false;
    }

    /// The smallest number x such that at least the share of all numbers is <= x; 0 if there was none.
    template <typename Number = float>
    [[nodiscard]] double value() const {
        if constexpr (std::is_same_v<Number, float>) {
            return std::bit_cast<float>(static_cast<std::uint32_t>(prefix_));
        } else {
            return std::bit_cast<double>(prefix_);
        }
    }

  private:
    template <typename Number>
    [[nodiscard]] std::size_t bucket_of(Number x) const {
        std::uint64_t const digits = key_of(x) >> shift_;
        return static_cast<std::size_t>(digits - (prefix_ << digit_bits_));  // wraps beyond the buckets for other prefixes
    }
    [[nodiscard]] static std::uint64_t key_of(float x) { return std::bit_cast<std::uint32_t>(x); }
    [[nodiscard]] static std::uint64_t key_of(double x) { return std::bit_cast<std::uint64_t>(x); }

    fraction share_;
    rank_rule rule_;
    std::int64_t rank_ = 0;  // within the numbers that agree with the digits found; 0 before the first round ends
    std::uint64_t prefix_ = 0;
    int shift_;
    int digit_bits_ = 12;
    detail::bucket_counts counts_{};
};

namespace detail {

/// Sequences as the search for their order statistic reads them: each counts once, or once for each of its live tokens.
struct coupled_source {
    sequence_values const* values;
    std::int64_t count;
    bool each_once;
};

/// Needs without the exponentials that the ratio alone does not ask for.
template <std::uint32_t Needs>
inline constexpr std::uint32_t magnitude_needs =
    (Needs & ~(uses_mismatch | uses_mismatch_kl | uses_anchor_kl | uses_probability)) | uses_ratio;

/// Calls visit(magnitudes, count) with |log_ratio| of a range of at most chunk_size positions: -1 where a token has none.
template <std::uint32_t Needs, typename Real, typename Visit>
void with_magnitudes(token_batch const& batch, chunk_range range, Visit visit) {
    using element = typename packing<Real>::element;
    input_buffers<element, Needs> buffers;
    alignas(64) element magnitudes[chunk_size];
    std::int64_t const padded = padded_to(range.count, packing<Real>::width);
    auto const in = stage_inputs<Needs>(batch, range, padded, buffers);
    sentinel<Real> const missing(stored_sentinel(batch));
    for (std::int64_t i = 0; i < padded; i += packing<Real>::width) {
        observed<Real> token = load_tokens<magnitude_needs<Needs>, Real>(in, i, missing);
        screen(token);
        mask_of<Real> known = token.live;
        if constexpr ((Needs & anchors_rollout) != 0) {
            known = known & !token.unscored;
        }
        packing<Real>::store(magnitudes + i, select(known, absolute(token.t.log_ratio), Real(-1)));
    }
    visit(magnitudes, range.count);
}

/// Adds one batch to a search's round.
template <std::uint32_t Needs, typename Real, typename Executor>
void count_tokens(token_batch const& batch, quantile_search& search, Executor const& execute) {
    auto const task = [&](std::int64_t chunk) {
        with_magnitudes<Needs, Real>(batch, chunk_at(batch, chunk),
                                     [&](auto const* numbers, std::int64_t count) { search.add(numbers, count); });
    };
    execute(chunk_count(batch.size()), task_ref(task));
}

template <typename Element>
void count_sequences(coupled_source const& from, quantile_search& search) {
    for (std::int64_t i = 0; i < from.count; ++i) {
        sequence_values const& v = from.values[i];
        if (v.tokens > 0) {
            search.add_repeated(absolute(static_cast<Element>(v.log_ratio)),
                                from.each_once ? 1 : static_cast<std::int64_t>(v.tokens));
        }
    }
}

/// Where a large batch's order statistic lies with near certainty, from a sample of 8192 positions; everywhere for a small one.
template <typename Element>
struct window {
    Element low = Element(-1);  ///< exclusive; tokens equal to it are counted apart, and so at the other end
    Element high = std::numeric_limits<Element>::infinity();
};

template <std::uint32_t Needs, typename Real>
[[nodiscard]] window<typename packing<Real>::element> sample_window(token_batch const& batch, fraction share) {
    using element = typename packing<Real>::element;
    constexpr std::int64_t places = 512;
    constexpr std::int64_t run = 16;
    window<element> found;
    element sample[places * run];
    std::int64_t size = 0;
    for (std::int64_t i = 0; i < places; ++i) {
        chunk_range const range{batch.size() / places * i, run};
        with_magnitudes<Needs, Real>(batch, range, [&](element const* numbers, std::int64_t count) {
            size = std::copy_if(numbers, numbers + count, sample + size, [](element x) { return x >= 0; }) - sample;
        });
    }
    double const p = static_cast<double>(share.numerator) / static_cast<double>(share.denominator);
    auto const margin = static_cast<std::int64_t>(5 * std::sqrt(static_cast<double>(size) * p * (1 - p))) + 4;
    std::int64_t const low = share.rank(size) - 1 - margin;
    std::int64_t const high = share.rank(size) - 1 + margin;
    if (low >= 0) {
        std::nth_element(sample, sample + low, sample + size);
        found.low = sample[low];
    }
    if (high < size) {
        std::nth_element(sample, sample + high, sample + size);
        found.high = sample[high];
    }
    return found;
}

struct window_counts {
    std::int64_t total, below, at_low, between, at_high;
    bool overflow;
};

/// Counts `padded` magnitudes against the window and moves those strictly inside it to the front of `inside`.
template <typename Real>
[[nodiscard]] window_counts count_in_window(typename packing<Real>::element const* magnitudes, std::int64_t padded,
                                            window<typename packing<Real>::element> in,
                                            typename packing<Real>::element* inside) {
    bits_of<Real> total{}, below{}, at_low{}, at_high{};
    for (std::int64_t i = 0; i < padded; i += packing<Real>::width) {
        Real const x = packing<Real>::load(magnitudes + i);
        mask_of<Real> const known = x >= Real(0);
        tick_low(total, known);
        tick_low(below, known & (x < Real(in.low)));
        tick_low(at_low, known & (x == Real(in.low)));
        tick_low(at_high, x == Real(in.high));
    }
    std::int64_t between = 0;
    for (std::int64_t i = 0; i < padded; ++i) {
        inside[between] = magnitudes[i];
        between += ((magnitudes[i] > in.low) & (magnitudes[i] < in.high)) ? 1 : 0;
    }
    return {packing<Real>::sum(total),
            packing<Real>::sum(below),
            packing<Real>::sum(at_low),
            between,
            in.low == in.high ? 0 : packing<Real>::sum(at_high),
            false};
}

/// The order statistic by one pass that keeps only the numbers inside the window, or NaN if it turns out not to lie there.
template <std::uint32_t Needs, typename Real, typename Executor>
[[nodiscard]] double quantile_in_window(token_batch const& batch, fraction share, rank_rule rule,
                                        window<typename packing<Real>::element> in, workspace& scratch,
                                        Executor const& execute) {
    using element = typename packing<Real>::element;
    std::int64_t const chunks = chunk_count(batch.size());
    std::int64_t const room = workspace::candidates_per_chunk(chunks);
    element* candidates = scratch.candidates<element>();
    auto* partials = scratch.partials<window_counts>();
    auto const task = [&](std::int64_t chunk) {
        with_magnitudes<Needs, Real>(batch, chunk_at(batch, chunk), [&](element const* magnitudes, std::int64_t count) {
            element inside[chunk_size + 1];
            window_counts counts = count_in_window<Real>(magnitudes, padded_to(count, packing<Real>::width), in, inside);
            counts.overflow = counts.between > room;
            if (!counts.overflow) {
                std::copy_n(inside, counts.between, candidates + chunk * room);
            }
            partials[chunk] = counts;
        });
    };
    execute(chunks, task_ref(task));

    window_counts sum{};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        window_counts const& part = partials[chunk];
        if (!part.overflow) {
            std::copy_n(candidates + chunk * room, part.between, candidates + sum.between);
        }
        sum = {sum.total + part.total,     sum.below + part.below,     sum.at_low + part.at_low,
               sum.between + part.between, sum.at_high + part.at_high, sum.overflow || part.overflow};
    }
    std::int64_t rank = rank_of(share, rule, sum.total);
    if (rank == 0) {
        return 0;
    }
    if (rank > sum.below && rank <= sum.below + sum.at_low) {
        return static_cast<double>(in.low);
    }
    rank -= sum.below + sum.at_low;
    if (rank > sum.between && rank <= sum.between + sum.at_high) {
        return static_cast<double>(in.high);
    }
    if (rank < 1 || rank > sum.between || sum.overflow) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    std::nth_element(candidates, candidates + rank - 1, candidates + sum.between);
    return static_cast<double>(candidates[rank - 1]);
}

template <std::uint32_t Needs, typename Real, typename Executor>
[[nodiscard]] double quantile_of_tokens(token_batch const& batch, fraction share, rank_rule rule, workspace& scratch,
                                        Executor const& execute) {
    using element = typename packing<Real>::element;
    window<element> in;
    if (chunk_count(batch.size()) > 16) {
        in = sample_window<Needs, Real>(batch, share);
    }
    double const found = quantile_in_window<Needs, Real>(batch, share, rule, in, scratch, execute);
    if (!is_nan(found)) {
        return found;
    }
    quantile_search search(share, dtype_of<element>::value, rule);
    do {
        count_tokens<Needs, Real>(batch, search, execute);
    } while (!search.narrow());
    return search.template value<element>();
}

template <typename Element>
[[nodiscard]] double quantile_of_sequences(coupled_source const& from, fraction share, rank_rule rule) {
    quantile_search search(share, dtype_of<Element>::value, rule);
    do {
        count_sequences<Element>(from, search);
    } while (!search.narrow());
    return search.template value<Element>();
}

/// The sequences of a batch, on which `decide_sequences` has decided.
template <typename Objective>
[[nodiscard]] coupled_source coupled(Objective const& objective, token_batch const& batch, workspace& scratch) {
    return {scratch.sequences(), sequences_of(batch).rows, objective.ranks_sequences()};
}

/// How many numbers there are, for interpolation.
template <std::uint32_t Needs, typename Real>
[[nodiscard]] std::int64_t magnitudes_in(token_batch const& batch) {
    std::int64_t numbers = 0;
    for (std::int64_t chunk = 0; chunk < chunk_count(batch.size()); ++chunk) {
        with_magnitudes<Needs, Real>(batch, chunk_at(batch, chunk), [&](auto const* x, std::int64_t size) {
            numbers += std::count_if(x, x + size, [](auto magnitude) { return magnitude >= 0; });
        });
    }
    return numbers;
}
[[nodiscard]] inline std::int64_t magnitudes_in(coupled_source const& from) {
    std::int64_t numbers = 0;
    for (std::int64_t i = 0; i < from.count; ++i) {
        double const tokens = from.values[i].tokens;
        numbers += from.each_once ? (tokens > 0 ? 1 : 0) : static_cast<std::int64_t>(tokens);
    }
    return numbers;
}

/// The number that the objective's surrogate asks for.
template <typename Real, typename Objective, typename Executor>
[[nodiscard]] double quantile_of_batch(Objective const& objective, token_batch const& batch, workspace& scratch,
                                       Executor const& execute) {
    using element = typename packing<Real>::element;
    constexpr std::uint32_t needs = Objective::needs;
    constexpr bool couples = (needs & has_coupling) != 0;
    fraction const share = objective.quantile();
    auto const at = [&](rank_rule rule) {
        if constexpr (couples) {
            return quantile_of_sequences<element>(coupled(objective, batch, scratch), share, rule);
        } else {
            return quantile_of_tokens<needs, Real>(batch, share, rule, scratch, execute);
        }
    };
    if (!objective.interpolates_quantile()) {
        return at(rank_rule::ceiling);
    }
    std::int64_t numbers = 0;
    if constexpr (couples) {
        numbers = magnitudes_in(coupled(objective, batch, scratch));
    } else {
        numbers = magnitudes_in<needs, Real>(batch);
    }
    double const low = at(rank_rule::below);
    return interpolated(low, at(rank_rule::above), share, numbers);
}

template <typename Real, typename Objective, typename Executor>
void count_magnitudes(Objective const& objective, token_batch const& batch, quantile_search& search, workspace& scratch,
                      Executor const& execute) {
    using element = typename packing<Real>::element;
    if constexpr ((Objective::needs & has_coupling) != 0) {
        decide_sequences<Real>(objective.template bind<element>(), batch, scratch.sequences(), execute);
        count_sequences<element>(coupled(objective, batch, scratch), search);
    } else {
        count_tokens<Objective::needs, Real>(batch, search, execute);
    }
}

}  // namespace detail

/// Adds one batch's |log_ratio| to a search's round. Tokens that are inactive, not finite or, under anchor_rollout, unscored
/// are left out. One pass over the log-probs; two where the tokens of a sequence are coupled.
/// @throws std::invalid_argument naming what is wrong with the batch, or if it does not fit the workspace.
template <typename Objective, typename Executor = serial>
    requires((Objective::needs & batch_quantile) != 0)
void count_magnitudes(Objective const& objective, token_batch const& batch, quantile_search& search, workspace& scratch,
                      Executor const& execute = {}) {
    detail::check_batch(batch, Objective::needs);
    scratch.require_room(batch);
    if (batch.log_prob.type == dtype::f64) {
        detail::count_magnitudes<double>(objective, batch, search, scratch, execute);
    } else {
        detail::count_magnitudes<detail::native_lanes>(objective, batch, search, scratch, execute);
    }
}

ASYNCRL_END_NAMESPACE
