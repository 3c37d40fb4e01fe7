// SPDX-License-Identifier: Apache-2.0
/// @file The pre-pass over a batch in device memory: the counts by which losses are divided, and the order statistic for SAT.
#pragma once

#include <asyncrl/cuda/detail/count_kernels.cuh>
#include <asyncrl/cuda/detail/loss_kernel.cuh>
#include <asyncrl/cuda/detail/quantile_kernels.cuh>
#include <asyncrl/cuda/detail/sequence_kernels.cuh>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

/// Where things stand in a workspace. `measure` and `policy_loss` use different parts of it.
struct workspace_layout {
    std::int64_t* row_counts;
    chunk_tally* partials;
    std::byte* prepared;  // one bound objective
    quantile_search* quantile;
    std::uint32_t* candidates;
    std::uint32_t candidate_room;
    sequence_floats* sequences;
    sequence_partial* sequence_partials;
    std::size_t bytes;

    static constexpr std::int64_t prepared_bytes = 1024;

    explicit workspace_layout(token_batch const& shape, void* data = nullptr) {
        std::int64_t const rows = shape.rows;
        std::int64_t const positions = shape.size();
        std::int64_t const sequence_count = std::max(rows, shape.segment_count);
        carver pieces(data);
        row_counts = pieces.take<std::int64_t>(rows);
        partials = pieces.take<chunk_tally>(most_chunks(positions));
        prepared = pieces.take<std::byte>(prepared_bytes);
        quantile = pieces.take<quantile_search>(1);
        // An eighth of a large batch; the rounds count in 32 bits.
        candidate_room =
            static_cast<std::uint32_t>(std::min<std::int64_t>(std::max<std::int64_t>(positions / 8, sample_size), 1U << 30));
        candidates = pieces.take<std::uint32_t>(candidate_room);
        sequences = pieces.take<sequence_floats>(sequence_count);
        sequence_partials = pieces.take<sequence_partial>(positions / sequence_piece + 1 + sequence_count);
        bytes = pieces.used();
    }
};

[[nodiscard]] inline unsigned blocks_for(std::int64_t parts, std::int64_t most = 2048) {
    return static_cast<unsigned>(std::max<std::int64_t>(1, std::min(parts, most)));
}

/// An objective without its type, so that the host's side of a call is compiled once for all.
struct erased_objective {
    std::uint32_t needs;
    reduction_rule rule;
    void* with;               ///< the last argument of its kernels
    void const* count_kept;   ///< its count_rows_kernel; null: kept tokens are the active ones
    bool has_numbers = true;  ///< false: of a stored_objective without memory
    // Where it asks for the mean weight; else null.
    void const* weigh = nullptr;
    void const* finish_weight = nullptr;
    // Where it asks for an order statistic.
    fraction quantile = {1, 1};
    bool interpolates = false;
    bool ranks_sequences = false;
    // For parts that speak of sequences; else null.
    void const* gather = nullptr;
    void const* decide = nullptr;
    void const* slopes = nullptr;  ///< null too where no slopes are shared
    void const* finish_slopes = nullptr;
};

template <typename Objective>
using bound_type = decltype(std::declval<Objective const&>().template bind<float>());

/// `with` must outlive what it returns.
template <typename Objective>
[[nodiscard]] erased_objective erased(Objective const& objective, functor<bound_type<Objective>>& with) {
    erased_objective e{Objective::needs, objective.rule(), &with, nullptr};
    if constexpr (requires { objective.has_numbers(); }) {
        e.has_numbers = objective.has_numbers();
    }
    if constexpr ((Objective::needs & (may_reject | batch_weight)) != 0) {
        e.count_kept = reinterpret_cast<void const*>(&count_rows_kernel<block_threads, bound_type<Objective>>);
    }
    if constexpr ((Objective::needs & batch_weight) != 0) {
        e.weigh = reinterpret_cast<void const*>(&weigh_kernel<block_threads, bound_type<Objective>>);
        e.finish_weight = reinterpret_cast<void const*>(&finish_weight_kernel<block_threads>);
    }
    if constexpr ((Objective::needs & batch_quantile) != 0) {
        e.quantile = objective.quantile();
        e.interpolates = objective.interpolates_quantile();
        e.ranks_sequences = objective.ranks_sequences();
    }
    if constexpr ((Objective::needs & has_sequences) != 0) {
        using bound = bound_type<Objective>;
        e.gather = reinterpret_cast<void const*>(&sequence_partials_kernel<block_threads, false, bound>);
        e.decide = reinterpret_cast<void const*>(&sequence_finish_kernel<block_threads, false, bound>);
        if constexpr ((Objective::needs & shares_slope) != 0) {
            e.slopes = reinterpret_cast<void const*>(&sequence_partials_kernel<block_threads, true, bound>);
            e.finish_slopes = reinterpret_cast<void const*>(&sequence_finish_kernel<block_threads, true, bound>);
        }
    }
    return e;
}

/// Launches what decides on sequences; with `slopes` their mean slopes too, for which an objective that waits for an order
/// statistic is `prepared`.
inline void launch_sequences(erased_objective const& objective, token_batch const& batch, workspace_layout const& at,
                             bool slopes, void const* prepared, launcher& launch) {
    if (objective.gather == nullptr || batch.size() == 0) {
        return;
    }
    device_batch from(batch, objective.needs, vector_loads::f32);
    from.sequences = at.sequences;
    token_batch shape = batch;
    sequence_partial* partials = at.sequence_partials;
    sequence_floats* values = at.sequences;
    void const* none = nullptr;
    unsigned const by_piece = blocks_for((batch.size() + sequence_piece * 8 - 1) / (sequence_piece * 8));
    unsigned const by_row = blocks_for((std::max(batch.rows, batch.segment_count) + block_threads - 1) / block_threads);
    void* gather[] = {&from, &partials, &none, objective.with};
    void* decide[] = {&shape, &partials, &values, objective.with};
    launch(objective.gather, by_piece, block_threads, gather);
    launch(objective.decide, by_row, block_threads, decide);
    if (slopes && objective.slopes != nullptr) {
        void* of_slopes[] = {&from, &partials, &prepared, objective.with};
        launch(objective.slopes, by_piece, block_threads, of_slopes);
        launch(objective.finish_slopes, by_row, block_threads, decide);
    }
}

/// Launches the count of rows, by the objective's masks where `kept`.
[[gnu::noinline]] inline void launch_count_rows(erased_objective const& objective, token_batch const& batch,
                                                workspace_layout const& at, bool kept, std::int64_t* row_counts,
                                                std::int64_t* tokens, std::int64_t* sequences, launcher& launch) {
    unsigned const blocks = blocks_for((batch.rows + block_threads / 32 - 1) / (block_threads / 32));
    device_batch from(batch, objective.needs, vector_loads::f32);
    from.sequences = at.sequences;
    functor<no_masks> none;
    bool const by_masks = kept && objective.count_kept != nullptr;
    void* arguments[] = {&from, &row_counts, &tokens, &sequences, by_masks ? objective.with : &none};
    launch(by_masks ? objective.count_kept : reinterpret_cast<void const*>(&count_rows_kernel<block_threads, no_masks>), blocks,
           block_threads, arguments);
}

/// Launches the sum of the effective weights of kept tokens.
inline void launch_weight(erased_objective const& objective, token_batch const& batch, totals* sums, workspace_layout const& at,
                          unsigned blocks, launcher& launch) {
    device_batch from(batch, objective.needs, vector_loads::f32);
    from.sequences = at.sequences;
    std::int64_t positions = chunk_positions(batch.size());
    std::int64_t chunks = chunks_of(batch.size());
    auto* partials = reinterpret_cast<float*>(at.partials);
    if (chunks > 0) {
        void* arguments[] = {&from, &positions, &partials, objective.with};
        launch(objective.weigh, blocks, block_threads, arguments);
    }
    void* arguments[] = {&partials, &chunks, &sums};
    launch(objective.finish_weight, 1, block_threads, arguments);
}

/// Launches one round's counts. A template, so that who needs no order statistic compiles none of its kernels.
template <bool Coupled>
void launch_histogram(erased_objective const& objective, token_batch const& batch, workspace_layout const& at,
                      std::uint32_t const* candidates, quantile_search* search, unsigned blocks, launcher& launch) {
    if constexpr (Coupled) {
        launch(sequence_histogram_kernel<block_threads>, blocks, block_threads, at.sequences, sequences_of(batch).rows,
               objective.ranks_sequences, search);
    } else {
        launch(histogram_kernel<block_threads>, blocks, block_threads, key_batch(batch, objective.needs),
               chunk_positions(batch.size()), candidates, search);
    }
}

/// The rounds of a search: three for each of the order statistics that it looks for.
[[nodiscard]] inline int rounds_of(bool interpolates) {
    return interpolates ? 6 : 3;
}

/// From so many positions on, a pass over the batch takes longer than the four launches that may save it.
inline constexpr std::int64_t shortest_windowed = std::int64_t{1} << 21;

template <int Unused = 0>
void launch_window(erased_objective const& objective, token_batch const& batch, workspace_layout const& at, unsigned blocks,
                   launcher& launch) {
    key_batch const keys(batch, objective.needs);
    launch(sample_kernel<block_threads>, sample_size / block_threads, block_threads, keys, at.candidates);
    launch(choose_window_kernel<block_threads>, 1, block_threads, at.candidates, objective.quantile, at.quantile);
    launch(compact_kernel<block_threads>, blocks, block_threads, keys, chunk_positions(batch.size()), true, at.candidates,
           at.candidate_room, at.quantile);
    launch(settle_window_kernel<>, 1, 1, objective.quantile, at.quantile);
}

/// `windowed`: reads the batch once, if a sample of it does not mislead.
template <bool Coupled>
void launch_quantile(erased_objective const& objective, token_batch const& batch, totals* sums, workspace_layout const& at,
                     unsigned blocks, bool windowed, launcher& launch) {
    launch(start_search_kernel<block_threads>, 1, block_threads, at.quantile);
    if constexpr (!Coupled) {
        if (windowed && !objective.interpolates) {
            launch_window(objective, batch, at, blocks, launch);
        }
    }
    for (int round = 0; round < rounds_of(objective.interpolates); ++round) {
        launch_histogram<Coupled>(objective, batch, at, at.candidates, at.quantile, blocks, launch);
        launch(locate_kernel<block_threads>, 1, block_threads, objective.quantile, objective.interpolates, at.quantile, sums);
        if constexpr (!Coupled) {
            if (round % 3 == 0) {
                launch(compact_kernel<block_threads>, blocks, block_threads, key_batch(batch, objective.needs),
                       chunk_positions(batch.size()), false, at.candidates, at.candidate_room, at.quantile);
            }
        }
    }
}

/// What both calls are given. Sizes a workspace only by a shape that is one.
inline void inspect_objective(argument_list& args, erased_objective const& objective, token_batch const& batch,
                              workspace const& scratch) {
    args.inspect_batch(batch, objective.needs);
    args.refuse_if(!objective.has_numbers, "stored_objective",
                   "has its numbers at an address that is null or no multiple of 16: they need device memory");
    if (args.passed()) {
        args.uses(scratch, workspace_layout(batch).bytes, " (workspace_bytes of this batch)");
    }
}

[[nodiscard]] [[gnu::cold]] inline fault fault_of_measure(erased_objective const& objective, token_batch const& batch,
                                                          totals const* sums, workspace const& scratch) {
    argument_list args;
    inspect_objective(args, objective, batch, scratch);
    args.writes_numbers("totals", sums);
    return args.first_fault();
}

using quantile_launcher = void (*)(erased_objective const& objective, token_batch const& batch, totals* sums,
                                   workspace_layout const& at, unsigned blocks, bool windowed, launcher& launch);

/// `quantile`: null where the objective needs no order statistic.
inline cudaError_t launch_measure(erased_objective const& objective, quantile_launcher quantile, token_batch const& batch,
                                  totals* sums, workspace scratch, cudaStream_t stream) {
    if (fault_of_measure(objective, batch, sums, scratch)) {
        return cudaErrorInvalidValue;
    }
    workspace_layout const at(batch, scratch.data);
    launcher launch(stream);
    // Where there is no token the order statistic is 0.
    launch(start_totals_kernel<>, 1, 1, sums, quantile != nullptr ? 0.0 : NAN);
    launch_count_rows(objective, batch, at, false, nullptr, &sums->counts.tokens, &sums->counts.sequences, launch);
    bool const weighs = objective.weigh != nullptr;
    bool const counts_kept = objective.count_kept != nullptr && (objective.rule.over == counted::kept || weighs);
    if (counts_kept || quantile != nullptr) {
        launch_sequences(objective, batch, at, false, nullptr, launch);
    }
    if (counts_kept) {
        launch_count_rows(objective, batch, at, true, nullptr, &sums->counts.kept_tokens, &sums->counts.kept_sequences, launch);
    } else {
        launch(copy_active_to_kept_kernel<>, 1, 1, sums);
    }
    if (weighs) {
        launch_weight(objective, batch, sums, at, blocks_for(chunks_of(batch.size())), launch);
    }
    if (quantile != nullptr && batch.size() > 0) {
        quantile(objective, batch, sums, at, blocks_for(chunks_of(batch.size())), batch.size() >= shortest_windowed, launch);
    }
    return launch.error();
}

}  // namespace detail

/// Bytes of device memory that `measure` and `policy_loss` need for a batch of this shape or a smaller one; its columns are
/// not looked at. About 0.8 bytes a position, 72 a row or segment and 320 KiB.
[[nodiscard]] inline std::size_t workspace_bytes(token_batch const& shape) {
    return detail::workspace_layout(shape).bytes;
}

/// Counts one batch into `*sums` in device memory: the twin of asyncrl::measure.
///
/// Asynchronous on `stream`; allocates nothing, synchronises nothing and may be captured. All columns, offsets and `sums` are
/// device memory; f32, bf16 or f16. Reads the mask; the columns of the objective too where the
/// reduction counts kept tokens and it has a mask, and twice for normalised_weights; for SAT those of the ratio twice (twice
/// more under massive ties, all of it once more where the order statistic is interpolated); once, from 2^21 positions on, where
/// a sample of 8192 tells in which narrow window the order statistic lies.
/// @return cudaErrorInvalidValue before anything is launched, if measure_refusal finds something; else what the launches gave.
template <typename Objective>
[[nodiscard]] cudaError_t measure(Objective const& objective, token_batch const& batch, totals* sums, workspace scratch,
                                  cudaStream_t stream) {
    detail::functor<detail::bound_type<Objective>> with{objective.template bind<float>()};
    detail::quantile_launcher quantile = nullptr;
    if constexpr ((Objective::needs & batch_quantile) != 0) {
        quantile = &detail::launch_quantile<(Objective::needs & has_coupling) != 0>;
    }
    return detail::launch_measure(detail::erased(objective, with), quantile, batch, sums, scratch, stream);
}

/// What is wrong with the arguments of `measure`, in words that name one and its value; empty where it would launch. Looks at
/// what the call itself looks at: a needed column is absent or of another dtype, an address is no multiple of what stands
/// there, the workspace is too small, `sums` is null, or one of the two overlaps an input or the other.
template <typename Objective>
[[nodiscard]] std::string measure_refusal(Objective const& objective, token_batch const& batch, totals const* sums,
                                          workspace scratch) {
    detail::functor<detail::bound_type<Objective>> with{objective.template bind<float>()};
    return detail::sentence(detail::fault_of_measure(detail::erased(objective, with), batch, sums, scratch));
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
