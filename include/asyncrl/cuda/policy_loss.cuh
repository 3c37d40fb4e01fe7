// SPDX-License-Identifier: Apache-2.0
/// @file Loss, gradient, flags and report of a batch in device memory, in one pass over its tokens.
#pragma once

#include <asyncrl/cuda/measure.cuh>

#include <cmath>
#include <cstdint>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

[[nodiscard]] inline std::int64_t const* denominator_of(reduction_rule const& rule, totals const* sums) {
    bool const kept = rule.over == counted::kept;
    switch (rule.denominator) {
        case reduction_rule::unit::tokens:
            return kept ? &sums->counts.kept_tokens : &sums->counts.tokens;
        case reduction_rule::unit::sequences:
            return kept ? &sums->counts.kept_sequences : &sums->counts.sequences;
        default:
            return nullptr;
    }
}

/// The kernels of one objective that a loss adds to those of `measure`.
struct loss_kernels {
    void const* loss;
    vector_loads loads;   ///< of which it was made
    void const* prepare;  ///< null where the objective does not wait for the totals
};

template <vector_loads Loads, typename Objective>
[[nodiscard]] loss_kernels kernels_of() {
    using bound = bound_type<Objective>;
    static_assert(sizeof(evaluated<bound>) <= workspace_layout::prepared_bytes,
                  "asyncrl: the objective's numbers take more than 1 KiB");
    loss_kernels kernels{reinterpret_cast<void const*>(&loss_kernel<block_threads, Loads == vector_loads::any, bound>), Loads,
                         nullptr};
    if constexpr ((Objective::needs & awaits_totals) != 0) {
        kernels.prepare = reinterpret_cast<void const*>(&prepare_kernel<bound>);
    }
    return kernels;
}

[[nodiscard]] [[gnu::cold]] inline fault fault_of_loss(erased_objective const& objective, token_batch const& batch,
                                                       totals const* sums, loss_outputs const& to, loss_report const* report,
                                                       workspace const& scratch, loss_options const& options) {
    argument_list args;
    args.require(options.scale > 0 && std::isfinite(options.scale), "loss_options.scale", options.scale, "finite and > 0");
    args.require(options.batches >= 1, "loss_options.batches", options.batches, ">= 1");
    inspect_objective(args, objective, batch, scratch);
    if (args.passed() && batch.size() > 0) {
        args.require_present(static_cast<bool>(to.gradient), "loss_outputs.gradient", "the objective needs it");
        args.inspect_output("loss_outputs.gradient", to.gradient, batch);
        args.inspect_output("loss_outputs.loss", to.loss, batch);
        args.inspect_output("loss_outputs.weight", to.weight, batch);
        args.writes("loss_outputs.flags", to.flags, alignof(std::uint16_t),
                    {to.flags, sizeof(std::uint16_t), {batch.size(), 1}});
    }
    args.reads_numbers("totals", sums);
    args.reads("loss_options.upstream", per_token(options.upstream), 1, 1);
    args.writes_numbers("report", report);
    return args.first_fault();
}

/// `blocks`: the grid of the loss kernel, on which no bit of the result depends; 0: as many as there is work for.
inline cudaError_t launch_loss(erased_objective const& objective, loss_kernels kernels, token_batch const& batch,
                               totals const* sums, loss_outputs const& to, loss_report* report, workspace scratch,
                               loss_options const& options, unsigned blocks, cudaStream_t stream) {
    if (fault_of_loss(objective, batch, sums, to, report, scratch, options)) {
        return cudaErrorInvalidValue;
    }
    workspace_layout const at(batch, scratch.data);
    reduction_rule const& rule = objective.rule;
    std::int64_t const chunks = chunks_of(batch.size());
    std::int64_t const positions = chunk_positions(batch.size());

    launcher launch(stream);
    void* prepared = at.prepared;
    if (kernels.prepare != nullptr) {
        void* arguments[] = {&sums, &prepared, objective.with};
        launch(kernels.prepare, 1, 1, arguments);
    }
    launch_sequences(objective, batch, at, true, kernels.prepare != nullptr ? prepared : nullptr, launch);
    if (rule.per_row) {
        bool const by_masks = rule.over == counted::kept && (objective.needs & may_reject) != 0;
        launch_count_rows(objective, batch, at, by_masks, at.row_counts, nullptr, nullptr, launch);
    }
    if (chunks > 0) {
        loss_arguments loss{.from = device_batch(batch, objective.needs, kernels.loads, rule.per_row),
                            .outputs = {to.gradient, to.loss, to.weight},
                            .flags = to.flags,
                            .propagate = options.on_nonfinite == nonfinite::propagate,
                            .scale = {static_cast<float>(options.scale / rule.divisor), denominator_of(rule, sums),
                                      rule.per_row ? at.row_counts : nullptr, options.upstream},
                            .stride = positions,
                            .partials = at.partials,
                            .prepared = prepared};
        loss.from.sequences = at.sequences;
        if (!loads_in_fours(to.gradient, batch, kernels.loads) || to.loss || to.weight || to.flags != nullptr) {
            loss.from.go_by_token();
        }
        void* arguments[] = {&loss, objective.with};
        launch(kernels.loss, blocks > 0 ? blocks : blocks_for(chunks), block_threads, arguments);
    }
    launch(finish_loss_kernel<block_threads>, 1, block_threads, objective.needs, at.partials, chunks, positions, batch.rows,
           report);
    return launch.error();
}

}  // namespace detail

/// Loss, gradient and report of one batch in device memory: the twin of asyncrl::policy_loss.
///
/// Asynchronous on `stream`; allocates nothing, synchronises nothing and may be captured. Two launches; one more for a
/// reduction by sequences, one more for SAT or normalised_weights, two more for parts that speak of sequences and again two
/// where slopes are shared. Columns, outputs, `sums` and `report` are device memory; any alignment and strides, 16-byte
/// accesses where dense f32 columns are aligned to 16 bytes. 21 bytes a position of traffic in that case. Flags equal the
/// host's bit for bit where a decision is one subtraction; values agree to 4e-6 relative + 1e-7. The same bits on every run and
/// for every grid, on GPUs of one architecture.
///
/// `Loads`: with vector_loads::any dense bf16 and f16 columns, and a gradient of these types, are read and written four
/// elements, 8 bytes, at a time, where by themselves they go element by element. Another kernel with the same results, and a
/// few instructions a token more where columns are f32.
///
/// Under nonfinite::error the device cannot throw: a non-finite token gets gradient 0, and `report->counts.nonfinite` and
/// `report->first_nonfinite` tell; check them before the optimizer steps. `options.batches` cannot be compared with totals that
/// are on the device; it is for the caller to add those of all micro-batches and ranks.
///
/// @return cudaErrorInvalidValue before anything is launched, if policy_loss_refusal finds something; else what the launches
///         gave.
template <vector_loads Loads = vector_loads::f32, typename Objective>
[[nodiscard]] cudaError_t policy_loss(Objective const& objective, token_batch const& batch, totals const* sums,
                                      loss_outputs const& to, loss_report* report, workspace scratch,
                                      loss_options const& options, cudaStream_t stream) {
    detail::functor<detail::bound_type<Objective>> with{objective.template bind<float>()};
    return detail::launch_loss(detail::erased(objective, with), detail::kernels_of<Loads, Objective>(), batch, sums, to, report,
                               scratch, options, 0, stream);
}

template <vector_loads Loads = vector_loads::f32, typename Objective>
[[nodiscard]] cudaError_t policy_loss(Objective const& objective, token_batch const& batch, totals const* sums,
                                      loss_outputs const& to, loss_report* report, workspace scratch, cudaStream_t stream) {
    return policy_loss<Loads>(objective, batch, sums, to, report, scratch, loss_options{}, stream);
}

/// What is wrong with the arguments of `policy_loss`, in words that name one and its value; empty where it would launch. As
/// measure_refusal, and of what is written: an output of another dtype, two of whose positions share an element, or that
/// overlaps an input, the workspace or another output. Interleaved views are told apart where their strides are equal.
template <typename Objective>
[[nodiscard]] std::string policy_loss_refusal(Objective const& objective, token_batch const& batch, totals const* sums,
                                              loss_outputs const& to, loss_report const* report, workspace scratch,
                                              loss_options const& options = {}) {
    detail::functor<detail::bound_type<Objective>> with{objective.template bind<float>()};
    return detail::sentence(detail::fault_of_loss(detail::erased(objective, with), batch, sums, to, report, scratch, options));
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
