// SPDX-License-Identifier: Apache-2.0
/// @file The exact order statistic of |log_ratio| over many batches and over ranks, in device memory.
#pragma once

#include <asyncrl/cuda/measure.cuh>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

using histogram_launcher = void (*)(erased_objective const& objective, token_batch const& batch, workspace_layout const& at,
                                    std::uint32_t const* candidates, quantile_search* search, unsigned blocks,
                                    launcher& launch);

[[nodiscard]] inline fault fault_of_count(erased_objective const& objective, token_batch const& batch,
                                          quantile_search const* search, workspace const& scratch) {
    argument_list args;
    inspect_objective(args, objective, batch, scratch);
    args.writes_numbers("search", search);
    return args.first_fault();
}

inline cudaError_t launch_count(erased_objective const& objective, histogram_launcher histogram, token_batch const& batch,
                                quantile_search* search, workspace scratch, cudaStream_t stream) {
    if (fault_of_count(objective, batch, search, scratch)) {
        return cudaErrorInvalidValue;
    }
    workspace_layout const at(batch, scratch.data);
    launcher launch(stream);
    if (batch.size() > 0) {
        if ((objective.needs & has_coupling) != 0) {
            launch_sequences(objective, batch, at, false, nullptr, launch);
        }
        histogram(objective, batch, at, nullptr, search, blocks_for(chunks_of(batch.size())), launch);
    }
    return launch.error();
}

}  // namespace detail

/// How many rounds a search takes: 3, or 6 where the order statistic is interpolated.
template <typename Objective>
    requires((Objective::needs & batch_quantile) != 0)
[[nodiscard]] int search_rounds(Objective const& objective) {
    return detail::rounds_of(objective.interpolates_quantile());
}

/// Starts a search, of whatever `*search` in device memory held before: the twin of asyncrl::quantile_search.
///
///     start_search(search, stream);
///     for (int round = 0; round < search_rounds(objective); ++round) {
///         for (each micro-batch) count_magnitudes(objective, batch, search, workspace, stream);
///         // over ranks, if any: all-reduce search->counts, 4096 of int64, by their sum, on `stream`
///         narrow(objective, search, totals, stream);
///     }
///
/// The last round leaves the exact order statistic of all batches and ranks in totals->quantile of every rank, no number
/// having come to the host. A call of `measure` puts that of its own batch there: call those first. What is merged are counts,
/// so any order gives the same bits. All three calls are asynchronous, allocate and synchronise nothing and may be captured;
/// a replay searches again.
/// @return cudaErrorInvalidValue if `search` is null; else what the launch gave.
template <int Threads = detail::block_threads>
[[nodiscard]] cudaError_t start_search(quantile_search* search, cudaStream_t stream) {
    if (search == nullptr) {
        return cudaErrorInvalidValue;
    }
    detail::launcher launch(stream);
    launch(detail::start_search_kernel<Threads>, 1, Threads, search);
    return launch.error();
}

/// Adds one batch's |log_ratio| to a search's round: the twin of asyncrl::count_magnitudes. Reads what SAT's ratio is made of,
/// and every other column that must be finite for a token to have a rank; one launch, and two more where the tokens of a
/// sequence are coupled.
/// @return cudaErrorInvalidValue before anything is launched, if count_magnitudes_refusal finds something; else what the
/// launches
///         gave.
template <typename Objective>
    requires((Objective::needs & batch_quantile) != 0)
[[nodiscard]] cudaError_t count_magnitudes(Objective const& objective, token_batch const& batch, quantile_search* search,
                                           workspace scratch, cudaStream_t stream) {
    detail::functor<detail::bound_type<Objective>> with{objective.template bind<float>()};
    return detail::launch_count(detail::erased(objective, with),
                                &detail::launch_histogram<(Objective::needs & has_coupling) != 0>, batch, search, scratch,
                                stream);
}

/// What is wrong with the arguments of `count_magnitudes`, in words, as measure_refusal; empty where it would launch.
template <typename Objective>
    requires((Objective::needs & batch_quantile) != 0)
[[nodiscard]] std::string count_magnitudes_refusal(Objective const& objective, token_batch const& batch,
                                                   quantile_search const* search, workspace scratch) {
    detail::functor<detail::bound_type<Objective>> with{objective.template bind<float>()};
    return detail::sentence(detail::fault_of_count(detail::erased(objective, with), batch, search, scratch));
}

/// Ends a round, for the objective of its counts. The last one writes `sums->quantile`; 0 where there was no number.
/// @return cudaErrorInvalidValue if a pointer is null; else what the launch gave.
template <typename Objective>
    requires((Objective::needs & batch_quantile) != 0)
[[nodiscard]] cudaError_t narrow(Objective const& objective, quantile_search* search, totals* sums, cudaStream_t stream) {
    if (search == nullptr || sums == nullptr) {
        return cudaErrorInvalidValue;
    }
    detail::launcher launch(stream);
    launch(detail::locate_kernel<detail::block_threads>, 1, detail::block_threads, objective.quantile(),
           objective.interpolates_quantile(), search, sums);
    return launch.error();
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
