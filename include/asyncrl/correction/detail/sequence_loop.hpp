// SPDX-License-Identifier: Apache-2.0
/// @file The first pass of objectives that speak of sequences: statistics of each, and what the parts decide on them. Host
/// only.
#pragma once

#include <asyncrl/correction/detail/host_loop.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Positions of one row, counted over the whole batch.
[[nodiscard]] inline chunk_range row_range(token_batch const& batch, std::int64_t row) {
    if (batch.packed()) {
        return {batch.offsets[row], batch.offsets[row + 1] - batch.offsets[row]};
    }
    return {row * batch.tokens, batch.tokens};
}

/// Calls visit(part) for the pieces of a range of at most chunk_size positions.
template <typename Visit>
void for_each_piece(chunk_range range, Visit visit) {
    for (std::int64_t done = 0; done < range.count; done += chunk_size) {
        visit(chunk_range{range.begin + done, std::min(chunk_size, range.count - done)});
    }
}

/// Calls task(row) for each row, in blocks.
template <typename Executor, typename Task>
void for_each_row(std::int64_t rows, Executor const& execute, Task const& each_row) {
    constexpr std::int64_t rows_per_task = 64;
    auto const task = [&](std::int64_t block) {
        std::int64_t const end = std::min(rows, (block + 1) * rows_per_task);
        for (std::int64_t row = block * rows_per_task; row < end; ++row) {
            each_row(row);
        }
    };
    execute((rows + rows_per_task - 1) / rows_per_task, task_ref(task));
}

/// Calls visit(packet of screened tokens) for those of a range, and end() after every 32 packets: sums of so few floats are
/// near enough.
template <typename Real, std::uint32_t Needs, typename Visit, typename End>
void for_each_packet(token_batch const& batch, chunk_range range, Visit visit, End end) {
    using pack = packing<Real>;
    sentinel<Real> const missing(stored_sentinel(batch));
    for_each_piece(range, [&](chunk_range piece) {
        input_buffers<typename pack::element, Needs> buffers;
        std::int64_t const padded = padded_to(piece.count, pack::width);
        auto const in = stage_inputs<Needs>(batch, piece, padded, buffers);
        for (std::int64_t i = 0; i < padded; i += 32 * pack::width) {
            for (std::int64_t j = i; j < std::min(padded, i + 32 * pack::width); j += pack::width) {
                observed<Real> token = load_tokens<Needs, Real>(in, j, missing);
                screen(token);
                visit(token);
            }
            end();
        }
    });
}

template <typename Real>
[[nodiscard]] sequence_context<Real> context_of(sequence_values const& v) {
    sequence_context<Real> s = no_sequence<Real>();
    s.weight = Real(v.weight);
    s.log_ratio = Real(v.log_ratio);
    s.ratio = Real(v.ratio);
    s.spread = Real(v.spread);
    s.advantage = Real(v.advantage);
    s.slope = Real(v.slope);
    s.keep = v.keep ? always<Real>() : !always<Real>();
    s.capped = v.capped ? always<Real>() : !always<Real>();
    return s;
}

/// Statistics of the sequence in a range of the batch, and what the objective decides.
template <typename Real, typename Bound>
[[nodiscard]] sequence_values values_of_sequence(Bound const& objective, token_batch const& batch, chunk_range range) {
    using pack = packing<Real>;
    constexpr int count = Bound::statistics;
    bool maximum[count];
    objective.which_maxima(maximum);
    double tokens = 0;
    double advantage = 0;
    double statistics[count];
    Real sums[count];
    Real advantages(0);
    bits_of<Real> live{};
    auto const clear = [&] {
        for (int i = 0; i < count; ++i) {
            sums[i] = maximum[i] ? Real(-std::numeric_limits<float>::max()) : Real(0);
        }
        advantages = Real(0);
        live = no_bits<Real>();
    };
    for (int i = 0; i < count; ++i) {
        statistics[i] = maximum[i] ? -std::numeric_limits<double>::infinity() : 0;
    }
    clear();
    for_each_packet<Real, Bound::needs>(
        batch, range,
        [&](observed<Real> const& token) {
            tick_low(live, token.live);
            advantages = advantages + select(token.live, token.t.advantage, Real(0));
            objective.add_statistics(token.t, token.live, sums);
        },
        [&] {
            for (int i = 0; i < count; ++i) {
                statistics[i] =
                    maximum[i] ? std::max(statistics[i], pack::maximum(sums[i])) : statistics[i] + pack::sum(sums[i]);
            }
            advantage += pack::sum(advantages);
            tokens += static_cast<double>(pack::sum(live));
            clear();
        });

    sequence_values out = objective.decide(tokens, advantage, statistics);
    out.ratio = std::exp(std::min(out.log_ratio, real_traits<Real>::largest_exponent));
    if constexpr ((Bound::needs & shares_slope) != 0) {
        double slope = 0;
        Real slopes(0);
        sequence_context<Real> const context = context_of<Real>(out);
        for_each_packet<Real, Bound::needs>(
            batch, range,
            [&](observed<Real> const& token) {
                slopes = slopes + select(token.live, objective.slope_alone(token.t, context, host_math{}), Real(0));
            },
            [&] {
                slope += pack::sum(slopes);
                slopes = Real(0);
            });
        out.slope = tokens > 0 ? slope / tokens : 0;
    }
    return out;
}

/// Decides on every sequence of the batch, where the objective speaks of them.
template <typename Real, typename Bound, typename Executor>
void decide_sequences(Bound const& objective, token_batch const& batch, sequence_values* values, Executor const& execute) {
    if constexpr ((Bound::needs & has_sequences) != 0) {
        token_batch const sequences = sequences_of(batch);
        for_each_row(sequences.rows, execute, [&](std::int64_t row) {
            values[row] = values_of_sequence<Real>(objective, batch, row_range(sequences, row));
        });
    }
}

/// The sequences of a chunk's tokens, where the objective speaks of them.
template <std::uint32_t Needs, typename Element>
struct staged_sequences {
    [[nodiscard]] chunk_sequences<Element> operator()(token_batch const&, sequence_values const*, chunk_range, std::int64_t) {
        return {};
    }
};
template <std::uint32_t Needs, typename Element>
    requires((Needs & has_sequences) != 0)
struct staged_sequences<Needs, Element> {
    sequence_buffers<Element> buffers;

    [[nodiscard]] chunk_sequences<Element> operator()(token_batch const& batch, sequence_values const* values,
                                                      chunk_range range, std::int64_t padded) {
        return stage_sequences<Needs>(sequences_of(batch), values, range, padded, buffers);
    }
};

}  // namespace detail
ASYNCRL_END_NAMESPACE
