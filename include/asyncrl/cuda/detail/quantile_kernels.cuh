// SPDX-License-Identifier: Apache-2.0
/// @file The search for the exact order statistic of |log_ratio|: what it keeps in device memory, and its kernels.
#pragma once

#include <asyncrl/correction/totals.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

/// How far a search has come.
struct search_progress {
    std::int64_t rank;         ///< within the numbers that agree with the digits found
    std::int64_t numbers;      ///< how many are ranked
    float below;               ///< of two order statistics the lower, once it is known
    std::uint32_t round;       ///< three for each order statistic
    std::uint32_t prefix;      ///< digits found
    std::uint32_t known;       ///< the prefix is the number itself; rounds that remain have nothing to do
    std::uint32_t candidates;  ///< how many numbers of the chosen first bucket were moved to the side
    std::uint32_t overflow;    ///< they did not fit: later rounds read the batch again
    std::uint32_t windowed;    ///< the candidates are those between the bounds of a window that holds the rank
    // Of the numbers moved to the side, both bounds exclusive, as bits of floats; and, for a window, how many there are
    // elsewhere.
    std::int32_t low, high;
    std::int64_t under, at_low, at_high;
};

}  // namespace detail

/// A search for an order statistic, in device memory. What ranks add up in each round are `counts`.
struct quantile_search {
    static constexpr int buckets = 4096;

    std::int64_t counts[buckets];  ///< of this round, by the next digit
    detail::search_progress progress;
};

namespace detail {

/// The digit of a non-negative float that a round counts by: 12, 10, then 9 bits.
struct digit_round {
    /// In the first round no finite number has this digit, so it stands for exact zeros, with which on-policy batches end.
    static constexpr std::uint32_t zeros = quantile_search::buckets - 1;

    int shift, bits;
    std::uint32_t prefix;
    bool first;

    __device__ __forceinline__ explicit digit_round(search_progress const& at)
        : shift(at.round % 3 == 0   ? 19
                : at.round % 3 == 1 ? 9
                                    : 0),
          bits(at.round % 3 == 0   ? 12
               : at.round % 3 == 1 ? 10
                                   : 9),
          prefix(at.prefix),
          first(at.round % 3 == 0) {}

    /// Beyond the buckets for numbers with other digits before.
    [[nodiscard]] __device__ __forceinline__ std::uint32_t bucket(std::uint32_t key) const {
        return first && key == 0 ? zeros : (key >> shift) - (prefix << bits);
    }
};

template <int Threads>
__global__ void __launch_bounds__(Threads) start_search_kernel(quantile_search* search) {
    for (int i = static_cast<int>(threadIdx.x); i < quantile_search::buckets; i += Threads) {
        search->counts[i] = 0;
    }
    if (threadIdx.x == 0) {
        search->progress = {};
    }
}

/// A batch as the keys of its tokens are made of it: those are the bits of |log_ratio|. The needs of an objective are known at
/// run time here, so that all share these kernels.
struct key_batch {
    device_batch from;       ///< in the place of the old policy's, log-probs of what the anchor is or is made of
    bool between = false;    ///< the anchor lies between the rollout policy and the new one
    column log_kept_mass{};  ///< what rollout log-probs are brought back by; or null
    column beside{};         ///< rollout log-probs, where the anchor is not made of them: finite or missing; or null
    column instead{};        ///< what must be finite where those are missing; or null
    float missing = 0;       ///< in `beside`
    column others[6];        ///< what must be finite for a token to be live, beside all that
    int other_count = 0;

    key_batch(token_batch const& batch, std::uint32_t needs) : from(with_anchor(batch, needs), reads_old, vector_loads::any) {
        bool const by_rollout = (needs & (anchors_rollout | anchors_between)) != 0;
        bool const given = (needs & reads_anchor) != 0;
        between = (needs & anchors_between) != 0;
        missing = from.unscored;
        from.unscored = by_rollout ? missing : std::numeric_limits<float>::quiet_NaN();
        log_kept_mass = (needs & reads_kept_mass) != 0 ? batch.log_kept_mass : column{};
        beside = (needs & reads_rollout) != 0 && !by_rollout ? batch.rollout_log_prob : column{};
        instead = beside && given && (needs & reads_old) != 0 ? batch.old_log_prob : column{};
        auto const add = [&](bool needed, column const& c) {
            if (needed) {
                others[other_count++] = c;
            }
        };
        add((needs & reads_sync) != 0 && (needs & reads_old) != 0 && (by_rollout || given), batch.old_log_prob);
        add((needs & reads_sync) != 0, batch.sync_log_prob);
        add((needs & reads_reference) != 0, batch.reference_log_prob);
        add((needs & reads_weight) != 0, batch.weight);
        add((needs & reads_divergence) != 0, batch.divergence);
        add((needs & reads_score) != 0, batch.score);
        bool in_fours = !between && !log_kept_mass && !instead && (!beside || loads_in_fours(beside, batch));
        for (int i = 0; i < other_count; ++i) {
            in_fours = in_fours && loads_in_fours(others[i], batch);
        }
        if (!in_fours) {
            from.go_by_token();
        }
    }

    /// |log_ratio|, or -1 for a token that has none. `probe`: finite only if all is that must be so.
    [[nodiscard]] __device__ __forceinline__ float magnitude(token_inputs<float> const& x, bool active, float probe) const {
        constexpr std::uint32_t needs = uses_ratio | reads_rollout | reads_kept_mass | reads_version | anchors_between;
        observed<float> token = observe<needs>(x, active, sentinel<float>(from.unscored), device_math{});
        token.probe += probe;
        screen(token);
        return token.live && (between || !token.unscored) ? fabsf(token.t.log_ratio) : -1.0F;
    }
    /// Of rollout log-probs beside the anchor.
    [[nodiscard]] __device__ __forceinline__ float scored(float x) const {
        return sentinel<float>(missing).holds(x) ? 0.0F : x;
    }

    [[nodiscard]] __device__ __forceinline__ float magnitude_at(place p) const {
        token_batch const& b = from.batch;
        token_inputs<float> x{};
        x.log_prob = load_element(b.log_prob, p);
        x.rollout_log_prob = load_element(b.old_log_prob, p);
        x.advantage = load_element(b.advantage, p);
        x.log_kept_mass = log_kept_mass ? load_element(log_kept_mass, p) : 0.0F;
        x.staleness = between ? load_staleness(b, p) : 0.0F;
        float probe = 0;
        if (beside) {
            float const rollout = load_element(beside, p);
            bool const scores = !sentinel<float>(missing).holds(rollout);
            probe = scores ? rollout + x.log_kept_mass : instead ? load_element(instead, p) : 0.0F;
            x.log_kept_mass = 0;
        }
#pragma unroll 1
        for (int i = 0; i < other_count; ++i) {
            probe += load_element(others[i], p);
        }
        return magnitude(x, is_set(b.mask, p), probe);
    }

    [[nodiscard]] __device__ __forceinline__ float magnitude_of(quad_inputs const& in, int i, float probe) const {
        token_inputs<float> x = in.token<reads_old>(i);
        x.rollout_log_prob = x.old_log_prob;
        return magnitude(x, in.active(i), probe);
    }
    [[nodiscard]] __device__ __forceinline__ float4 probes(quad const& q) const {
        auto const four = [&](column const& c) { return four_of<true>(c, load_four<true>(c, q)); };
        float4 sum{0, 0, 0, 0};
        if (beside) {
            float4 const v = four(beside);
            sum = {scored(v.x), scored(v.y), scored(v.z), scored(v.w)};
        }
#pragma unroll 1
        for (int i = 0; i < other_count; ++i) {
            float4 const v = four(others[i]);
            sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
        }
        return sum;
    }

  private:
    [[nodiscard]] static token_batch with_anchor(token_batch batch, std::uint32_t needs) {
        batch.old_log_prob = (needs & (anchors_rollout | anchors_between)) != 0 ? batch.rollout_log_prob
                             : (needs & reads_anchor) != 0                      ? batch.anchor_log_prob
                                                                                : batch.old_log_prob;
        return batch;
    }
};

/// Calls visit(key) for this thread's tokens of a chunk that have one.
template <int Threads, typename Visit>
__device__ __forceinline__ void for_each_key(key_batch const& keys, std::int64_t begin, std::int64_t end, Visit visit) {
    __shared__ thread_floats<Threads, 4> sizes;  // -1: none
    for (std::int64_t at = begin + threadIdx.x * 4; at < end; at += Threads * 4) {
        quad const q{at, end - at < 4 ? static_cast<int>(end - at) : 4};
        quad_inputs in;
        place first;
        if (load_at_once<reads_old, true>(keys.from, q, 1, nullptr, in, first)) {
            float4 const probe = keys.probes(q);
            sizes[0] = keys.magnitude_of(in, 0, probe.x);
            sizes[1] = keys.magnitude_of(in, 1, probe.y);
            sizes[2] = keys.magnitude_of(in, 2, probe.z);
            sizes[3] = keys.magnitude_of(in, 3, probe.w);
        } else {
            q.for_each_place(keys.from.batch, first, [&](int i, place p) { sizes[i] = keys.magnitude_at(p); });
        }
#pragma unroll 1
        for (int i = 0; i < q.count; ++i) {
            if (sizes[i] >= 0) {
                visit(__float_as_uint(sizes[i]));
            }
        }
    }
}

/// Adds one round's counts, over the batch or over the numbers moved to the side. `candidates`: null where none are.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2) histogram_kernel(key_batch const keys, std::int64_t chunk_positions,
                                                               std::uint32_t const* candidates, quantile_search* search) {
    __shared__ std::uint32_t counts[quantile_search::buckets];
    if (search->progress.known != 0) {
        return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < quantile_search::buckets; i += Threads) {
        counts[i] = 0;
    }
    __syncthreads();
    digit_round const digit(search->progress);
    std::uint32_t zeros = 0;
    auto const count = [&](std::uint32_t key) {
        // Zeros are kept from the shared counter, where an on-policy batch would queue up.
        if (digit.first && key == 0) {
            ++zeros;
        } else if (std::uint32_t const bucket = digit.bucket(key); bucket < quantile_search::buckets) {
            atomicAdd(&counts[bucket], 1U);
        }
    };
    bool const all = digit.first && search->progress.windowed == 0;
    if (all || candidates == nullptr || search->progress.overflow != 0) {
        std::int64_t const size = keys.from.batch.size();
        for (std::int64_t chunk = blockIdx.x; chunk * chunk_positions < size; chunk += gridDim.x) {
            std::int64_t const begin = chunk * chunk_positions;
            std::int64_t const end = begin + chunk_positions < size ? begin + chunk_positions : size;
            for_each_key<Threads>(keys, begin, end, count);
        }
    } else {
        std::uint32_t const total = search->progress.candidates;
        for (std::uint32_t i = blockIdx.x * Threads + threadIdx.x; i < total; i += gridDim.x * Threads) {
            count(candidates[i]);
        }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < quantile_search::buckets; i += Threads) {
        if (counts[i] != 0) {
            atomic_add(&search->counts[i], counts[i]);
        }
    }
    using block_reduce = cub::BlockReduce<std::uint32_t, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    std::uint32_t const block_zeros = block_reduce(storage).Sum(zeros);
    if (threadIdx.x == 0 && block_zeros != 0) {
        atomic_add(&search->counts[digit_round::zeros], block_zeros);
    }
}

/// The same over sequences whose tokens are coupled: each counts once, or once for each of its live tokens.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    sequence_histogram_kernel(sequence_floats const* values, std::int64_t count, bool each_once, quantile_search* search) {
    if (search->progress.known != 0) {
        return;
    }
    digit_round const digit(search->progress);
    for (std::int64_t i = std::int64_t{blockIdx.x} * Threads + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * Threads) {
        std::uint32_t const tokens = values[i].tokens;
        std::uint32_t const bucket = digit.bucket(__float_as_uint(fabsf(values[i].log_ratio)));
        if (tokens > 0 && bucket < quantile_search::buckets) {
            atomic_add(&search->counts[bucket], each_once ? 1U : tokens);
        }
    }
}

/// Ends a round: finds the bucket that holds the rank. Where two order statistics are searched for, the lower comes first.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    locate_kernel(fraction share, bool interpolate, quantile_search* search, totals* sums) {
    using block_scan = cub::BlockScan<std::int64_t, Threads>;
    __shared__ typename block_scan::TempStorage storage;
    constexpr int each = quantile_search::buckets / Threads;
    search_progress& at = search->progress;
    if (at.known == 0) {
        digit_round const digit(at);
        std::int64_t const zeros = digit.first ? search->counts[digit_round::zeros] : 0;
        auto const count_of = [&](int i) {
            return digit.first && i == 0                    ? search->counts[i] + zeros
                   : digit.first && i == digit_round::zeros ? 0
                                                            : search->counts[i];
        };
        int const begin = static_cast<int>(threadIdx.x) * each;
        std::int64_t mine = 0;
#pragma unroll 1
        for (int i = begin; i < begin + each; ++i) {
            mine += count_of(i);
        }
        std::int64_t before = 0;
        std::int64_t total = 0;
        block_scan(storage).ExclusiveSum(mine, before, total);
        rank_rule const rule = !interpolate ? rank_rule::ceiling : at.round < 3 ? rank_rule::below : rank_rule::above;
        bool const counted = digit.first && at.windowed == 0;  // all that is ranked
        std::int64_t const rank = counted ? rank_of(share, rule, total) : at.rank;
        bool const at_zero = digit.first && rank <= zeros;
        __syncthreads();  // all have read the search before one thread changes it
        if (threadIdx.x == 0 && counted) {
            at.numbers = total;
        }
        if (threadIdx.x == 0 && (at_zero || digit.shift == 0)) {
            at.known = 1;
        }
#pragma unroll 1
        for (int i = begin; i < begin + each; ++i) {
            std::int64_t const count = count_of(i);
            if (!at_zero && before < rank && rank <= before + count) {
                at.rank = rank - before;
                at.prefix = (digit.prefix << digit.bits) + static_cast<std::uint32_t>(i);
                if (counted) {
                    at.low = static_cast<std::int32_t>(at.prefix << digit.shift) - 1;
                    at.high = static_cast<std::int32_t>((at.prefix + 1) << digit.shift);
                }
            }
            before += count;
            search->counts[i] = 0;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        std::uint32_t const round = at.round;
        at.round = round + 1;
        float const found = __uint_as_float(at.prefix);
        if (interpolate && round == 2) {
            at.below = found;
            at.prefix = at.known = at.candidates = at.overflow = 0;
        } else if (round == (interpolate ? 5 : 2)) {
            auto const q = static_cast<double>(found);
            sums->quantile = interpolate ? interpolated(static_cast<double>(at.below), q, share, at.numbers) : q;
        }
    }
}

/// Moves the numbers between the bounds to the side, so that later rounds need not read the batch again; with `counting`,
/// counts those elsewhere. Their order is left open; what is counted of them does not depend on it.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    compact_kernel(key_batch const keys, std::int64_t chunk_positions, bool counting, std::uint32_t* candidates,
                   std::uint32_t room, quantile_search* search) {
    constexpr int piece = 2048;
    __shared__ std::uint32_t moved[piece];
    __shared__ std::uint32_t count;
    __shared__ std::uint32_t base;
    __shared__ std::uint32_t elsewhere[4];
    search_progress& at = search->progress;
    if (at.known != 0 || at.windowed != 0) {
        return;
    }
    std::int32_t const low = at.low;
    std::int32_t const high = at.high;
    std::uint32_t numbers = 0;
    std::uint32_t under = 0;
    std::uint32_t at_low = 0;
    std::uint32_t at_high = 0;
    std::int64_t const size = keys.from.batch.size();
    for (std::int64_t chunk = blockIdx.x; chunk * chunk_positions < size; chunk += gridDim.x) {
        std::int64_t const chunk_end = (chunk + 1) * chunk_positions < size ? (chunk + 1) * chunk_positions : size;
        for (std::int64_t begin = chunk * chunk_positions; begin < chunk_end; begin += piece) {
            if (threadIdx.x == 0) {
                count = 0;
            }
            __syncthreads();
            std::int64_t const end = begin + piece < chunk_end ? begin + piece : chunk_end;
            for_each_key<Threads>(keys, begin, end, [&](std::uint32_t key) {
                auto const number = static_cast<std::int32_t>(key);
                ++numbers;
                under += number < low ? 1U : 0U;
                at_low += number == low ? 1U : 0U;
                at_high += number == high ? 1U : 0U;
                if (low < number && number < high) {
                    moved[atomicAdd(&count, 1U)] = key;
                }
            });
            __syncthreads();
            if (threadIdx.x == 0) {
                base = count > 0 ? atomicAdd(&at.candidates, count) : 0;
                if (count > 0 && (base > room || count > room - base)) {
                    atomicOr(&at.overflow, 1U);
                }
            }
            __syncthreads();
            for (std::uint32_t i = threadIdx.x; i < count; i += Threads) {
                if (base < room && i < room - base) {
                    candidates[base + i] = moved[i];
                }
            }
            __syncthreads();
        }
    }
    if (!counting) {
        return;
    }
    if (threadIdx.x < 4) {
        elsewhere[threadIdx.x] = 0;
    }
    __syncthreads();
    atomicAdd(&elsewhere[0], numbers);
    atomicAdd(&elsewhere[1], under);
    atomicAdd(&elsewhere[2], at_low);
    atomicAdd(&elsewhere[3], at_high);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomic_add(&at.numbers, elsewhere[0]);
        atomic_add(&at.under, elsewhere[1]);
        atomic_add(&at.at_low, elsewhere[2]);
        atomic_add(&at.at_high, elsewhere[3]);
    }
}

// A large batch is read once instead of twice: a sample says between which bounds the order statistic must lie, one pass moves
// what is there to the side and counts the rest, and the counts say whether it does. If it does not, the search goes on as if
// nothing had been.

/// Positions of the sample: runs of 16 that are spread evenly.
inline constexpr int sample_size = 8192;
inline constexpr int sample_run = 16;

/// Writes the keys of the sample to `sample`; all bits set where a position has none.
template <int Threads>
__global__ void __launch_bounds__(Threads) sample_kernel(key_batch const keys, std::uint32_t* sample) {
    std::int64_t const size = keys.from.batch.size();
    int const i = static_cast<int>(blockIdx.x) * Threads + static_cast<int>(threadIdx.x);
    std::int64_t const at = size / (sample_size / sample_run) * (i / sample_run) + i % sample_run;
    float const magnitude = at < size ? keys.magnitude_at(place_of(keys.from.batch, at)) : -1.0F;
    sample[i] = magnitude >= 0 ? __float_as_uint(magnitude) : ~0U;
}

/// Chooses the bounds: order statistics of the sample, five standard deviations of its rank to either side.
template <int Threads>
__global__ void __launch_bounds__(Threads, 1)
    choose_window_kernel(std::uint32_t const* sample, fraction share, quantile_search* search) {
    using block_reduce = cub::BlockReduce<std::uint32_t, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    __shared__ std::uint32_t shared;
    constexpr int each = sample_size / Threads;
    std::uint32_t keys[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
        keys[i] = sample[i * Threads + static_cast<int>(threadIdx.x)];
    }
    // How many keys are below two limits, in one number.
    auto const below = [&](std::uint32_t a, std::uint32_t b) {
        std::uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            mine += (keys[i] < a ? 1U : 0U) + (keys[i] < b ? 1U << 16 : 0U);
        }
        std::uint32_t const sum = block_reduce(storage).Sum(mine);
        if (threadIdx.x == 0) {
            shared = sum;
        }
        __syncthreads();
        std::uint32_t const all = shared;
        __syncthreads();
        return all;
    };
    auto const numbers = static_cast<std::int64_t>(below(0x80000000U, 0) & 0xffffU);
    double const p = static_cast<double>(share.numerator) / static_cast<double>(share.denominator);
    auto const margin = static_cast<std::int64_t>(5 * ::sqrt(static_cast<double>(numbers) * p * (1 - p))) + 4;
    std::int64_t const low_rank = share.rank(numbers) - margin;
    std::int64_t const high_rank = share.rank(numbers) + margin;
    std::uint32_t low = 0;
    std::uint32_t high = 0;
#pragma unroll 1
    for (int bit = 30; bit >= 0; --bit) {
        std::uint32_t const with_bit = 1U << bit;
        std::uint32_t const counts = below(low | with_bit, high | with_bit);
        low |= static_cast<std::int64_t>(counts & 0xffffU) < low_rank ? with_bit : 0;
        high |= static_cast<std::int64_t>(counts >> 16) < high_rank ? with_bit : 0;
    }
    if (threadIdx.x == 0) {
        search->progress.low = low_rank >= 1 ? static_cast<std::int32_t>(low) : -1;
        search->progress.high = high_rank <= numbers ? static_cast<std::int32_t>(high) : 0x7fffffff;
    }
}

/// Decides by the counts whether the order statistic is one of the bounds or between them.
template <int Unused = 0>
__global__ void settle_window_kernel(fraction share, quantile_search* search) {
    search_progress& at = search->progress;
    std::int64_t const rank = share.rank(at.numbers) - at.under;
    std::int64_t const between = at.candidates;
    std::int64_t const inside = rank - at.at_low;
    bool const is_low = rank >= 1 && rank <= at.at_low;
    bool const is_high = at.overflow == 0 && inside > between && inside <= between + at.at_high && at.high != at.low;
    if (is_low || is_high) {
        at.known = 1;
        at.prefix = static_cast<std::uint32_t>(is_low ? at.low : at.high);
    } else if (at.overflow == 0 && inside >= 1 && inside <= between) {
        at.windowed = 1;
        at.rank = inside;
    } else {
        at.candidates = at.overflow = 0;
    }
}

}  // namespace detail
}  // namespace gpu
ASYNCRL_END_NAMESPACE
