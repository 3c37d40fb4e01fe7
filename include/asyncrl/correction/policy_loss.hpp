// SPDX-License-Identifier: Apache-2.0
/// @file Loss, gradient, flags and report of one batch in one pass over its tokens.
#pragma once

#include <asyncrl/correction/detail/batch_numbers.hpp>
#include <asyncrl/correction/loss_options.hpp>
#include <asyncrl/correction/measure.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

ASYNCRL_BEGIN_NAMESPACE

/// Where the first non-finite token stands.
struct nonfinite_error : std::runtime_error {
    std::int64_t row;
    std::int64_t position;  ///< within the row

    nonfinite_error(std::int64_t at_row, std::int64_t at_position, std::string const& what)
        : std::runtime_error(what), row(at_row), position(at_position) {}
};

namespace detail {

/// Runs the loss loop over one chunk and writes its outputs.
template <typename Real, typename Bound>
[[nodiscard]] loss_report run_chunk(Bound const& objective, token_batch const& batch, sequence_values const* sequences,
                                    loss_outputs const& to, chunk_range range, double const* row_scales,
                                    loss_numbers<typename packing<Real>::element> numbers) {
    using element = typename packing<Real>::element;
    struct output_buffers {
        alignas(64) element gradient[chunk_size];
        alignas(64) element loss[chunk_size];
        alignas(64) element weight[chunk_size];
        alignas(64) element row_scale[chunk_size];
        alignas(64) std::uint32_t flags[chunk_size];
    };
    input_buffers<element, Bound::needs> inputs;
    staged_sequences<Bound::needs, element> stage;
    output_buffers outputs;
    std::int64_t const padded = padded_to(range.count, packing<Real>::width);
    auto const in = stage_inputs<Bound::needs>(batch, range, padded, inputs);
    if (row_scales != nullptr) {
        for_each_stretch(batch, range, [&](std::int64_t row, std::int64_t, std::int64_t count, std::int64_t at) {
            std::fill_n(outputs.row_scale + at, count, static_cast<element>(row_scales[row]));
        });
        std::fill(outputs.row_scale + range.count, outputs.row_scale + padded, element(0));
        numbers.row_scale = outputs.row_scale;
    }
    chunk_outputs<element> out{};
    out.gradient = output_stage(to.gradient, batch, range, padded, outputs.gradient);
    out.loss = to.loss ? output_stage(to.loss, batch, range, padded, outputs.loss) : nullptr;
    out.weight = to.weight ? output_stage(to.weight, batch, range, padded, outputs.weight) : nullptr;
    out.flags = to.flags != nullptr ? outputs.flags : nullptr;
    loss_report const report = loss_of_chunk<Real>(objective, in, stage(batch, sequences, range, padded), out, padded, numbers);
    unstage<element>(to.gradient, batch, range, outputs.gradient, out.gradient);
    unstage<element>(to.loss, batch, range, outputs.loss, out.loss);
    unstage<element>(to.weight, batch, range, outputs.weight, out.weight);
    if (to.flags != nullptr) {
        std::transform(outputs.flags, outputs.flags + range.count, to.flags + range.begin,
                       [](std::uint32_t events) { return stored_flags(events); });
    }
    return report;
}

/// The place within a chunk of the first token with a non-finite input or result; there is one.
template <typename Real, typename Bound>
[[nodiscard]] std::int64_t first_nonfinite_of(Bound const& objective, token_batch const& batch,
                                              sequence_values const* sequences, chunk_range range,
                                              loss_numbers<typename packing<Real>::element> const& numbers) {
    using element = typename packing<Real>::element;
    input_buffers<element, Bound::needs> inputs;
    staged_sequences<Bound::needs, element> stage;
    alignas(64) element gradient[chunk_size];
    alignas(64) std::uint32_t flags[chunk_size];
    std::int64_t const padded = padded_to(range.count, packing<Real>::width);
    auto const in = stage_inputs<Bound::needs>(batch, range, padded, inputs);
    (void)loss_of_chunk<Real>(objective, in, stage(batch, sequences, range, padded),
                              chunk_outputs<element>{gradient, nullptr, nullptr, flags}, padded, numbers);
    return std::find_if(flags, flags + range.count, [](std::uint32_t bits) { return has(bits, nonfinite_input); }) - flags;
}

/// By what the gradient of each row's tokens is multiplied, where that depends on the row; else null.
template <typename Real, typename Bound, typename Executor>
[[nodiscard]] double const* row_scales_of(reduction_rule const& rule, Bound const& objective, token_batch const& batch,
                                          double scale, workspace& scratch, Executor const& execute) {
    if (!rule.per_row) {
        return nullptr;
    }
    double* const scales = scratch.rows();
    bool counted_here = false;
    if constexpr ((Bound::needs & may_reject) != 0) {
        if (rule.over == counted::kept) {
            count_kept<Real>(objective, batch, scratch.sequences(), scales, nullptr, execute);
            counted_here = true;
        }
    }
    if (!counted_here) {
        count_active(batch, scales, execute);
    }
    for (std::int64_t row = 0; row < batch.rows; ++row) {
        scales[row] = scales[row] > 0 ? scale / scales[row] : 0;
    }
    return scales;
}

template <typename Real, typename Objective, typename Executor>
[[nodiscard]] loss_report run_loss(Objective const& objective, token_batch const& batch, loss_outputs const& to, double scale,
                                   totals const& sums, loss_options const& options, workspace& scratch,
                                   Executor const& execute) {
    using element = typename packing<Real>::element;
    auto bound = objective.template bind<element>();
    bound.prepare(batch_numbers_of(sums));
    decide_sequences<Real>(bound, batch, scratch.sequences(), execute);
    double const* const row_scales = row_scales_of<Real>(objective.rule(), bound, batch, scale, scratch, execute);
    double const upstream = options.upstream != nullptr ? static_cast<double>(*options.upstream) : 1;
    double const same_for_all = row_scales != nullptr ? 1 : scale;
    loss_numbers<element> const numbers{stored_sentinel(batch), static_cast<element>(same_for_all * upstream), nullptr,
                                        same_for_all, options.on_nonfinite == nonfinite::propagate};
    loss_report* partials = scratch.partials<loss_report>();
    auto const task = [&](std::int64_t chunk) {
        partials[chunk] = run_chunk<Real>(bound, batch, scratch.sequences(), to, chunk_at(batch, chunk), row_scales, numbers);
    };
    std::int64_t const chunks = chunk_count(batch.size());
    execute(chunks, task_ref(task));
    loss_report report;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        if (report.counts.nonfinite == 0 && partials[chunk].counts.nonfinite > 0) {
            chunk_range const range = chunk_at(batch, chunk);
            report.first_nonfinite = range.begin + first_nonfinite_of<Real>(bound, batch, scratch.sequences(), range, numbers);
        }
        report += partials[chunk];
    }
    return report;
}

template <typename Element>
void zero(output_column const& c, token_batch const& batch) {
    alignas(64) Element const zeros[chunk_size] = {};
    for (std::int64_t chunk = 0; chunk < chunk_count(batch.size()); ++chunk) {
        unstage<Element>(c, batch, chunk_at(batch, chunk), zeros, zeros);
    }
}

/// Throws, naming row, position and column of the token at `at`.
[[noreturn]] inline void throw_nonfinite(token_batch const& batch, std::uint32_t needs, std::int64_t at) {
    double const missing = stored_sentinel(batch);
    std::string_view what = "the loss";
    for (int i = input_count - 1; i >= 0; --i) {
        auto const which = static_cast<input>(i);
        if (which != input::staleness && is_needed(which, needs)) {
            alignas(64) double buffer[1];
            double const value = *staged(column_of(batch, which), batch, chunk_range{at, 1}, 1, buffer);
            bool const unscored = which == input::rollout_log_prob && sentinel<double>(missing).holds(value);
            if (!unscored && is_nonfinite(value)) {
                what = name_of(which) + sizeof "token_batch";
            }
        }
    }
    std::int64_t const row = batch.packed() ? packed_row(batch, at) : at / batch.tokens;
    std::int64_t const position = at - row_range(batch, row).begin;
    throw nonfinite_error(row, position,
                          joined({"asyncrl: ", what, " is not finite at row ", text(row), ", position ", text(position)}));
}

}  // namespace detail

/// Loss, gradient and report of one batch.
///
/// gradient = options.scale * d(reduced loss) / d(log_prob) * *options.upstream, with the weights detached; written for every
/// position, exactly +0 under the mask. float math for f32, bf16 and f16 columns, double where all are f64; sums in double over
/// chunks of 2048 positions in fixed order: the same bits for any executor. One pass over the columns; a reduction by sequences
/// reads the mask once more, and a kept-token reduction by sequences the log-probs; so does a part that speaks of sequences.
///
/// @throws std::invalid_argument before anything is written, if the batch, its outputs, the totals or the options cannot be
/// meant; nonfinite_error after zeroing the gradient, under nonfinite::error.
template <typename Objective, typename Executor = serial>
loss_report policy_loss(Objective const& objective, token_batch const& batch, totals const& sums, loss_outputs const& to,
                        workspace& scratch, loss_options const& options = {}, Executor const& execute = {}) {
    detail::check_batch(batch, Objective::needs);
    detail::check_column(to.gradient, "loss_outputs.gradient", batch);
    detail::check_output(to.gradient, "loss_outputs.gradient", batch);
    detail::check_output(to.loss, "loss_outputs.loss", batch);
    detail::check_output(to.weight, "loss_outputs.weight", batch);
    detail::require(options.scale > 0 && std::isfinite(options.scale), "loss_options.scale", options.scale, "finite and > 0");
    detail::require(options.batches >= 1 && options.batches <= sums.counts.batches, "loss_options.batches", options.batches,
                    [&] {
                        return "at least 1 and covered by the totals, which hold " + detail::text(sums.counts.batches) +
                               " (add up those of every micro-batch and rank first)";
                    });
    if constexpr ((Objective::needs & batch_quantile) != 0) {
        detail::require(sums.quantile >= 0 && std::isfinite(sums.quantile), "totals.quantile", sums.quantile,
                        "finite and >= 0: take it from measure, or for several batches from a quantile_search");
    }
    if constexpr ((Objective::needs & batch_weight) != 0) {
        detail::require(sums.weight >= 0 && std::isfinite(sums.weight), "totals.weight", sums.weight,
                        "finite and >= 0: take it from measure, and add up that of every micro-batch and rank");
    }
    if (options.upstream != nullptr) {
        detail::require(std::isfinite(*options.upstream), "*loss_options.upstream", *options.upstream, "finite");
    }
    scratch.require_room(batch);

    detail::reduction_rule const rule = objective.rule();
    double const scale = options.scale * rule.scale(sums);
    double const largest =
        batch.log_prob.type == dtype::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    detail::require(scale <= largest, "loss_options.scale by the reduction's denominator", scale,
                    "a number of the batch's type");
    loss_report report =
        batch.log_prob.type == dtype::f64
            ? detail::run_loss<double>(objective, batch, to, scale, sums, options, scratch, execute)
            : detail::run_loss<detail::native_lanes>(objective, batch, to, scale, sums, options, scratch, execute);
    report.counts.sequences = batch.rows;
    if (report.counts.nonfinite > 0 && options.on_nonfinite == nonfinite::error) {
        batch.log_prob.type == dtype::f64 ? detail::zero<double>(to.gradient, batch) : detail::zero<float>(to.gradient, batch);
        detail::throw_nonfinite(batch, Objective::needs, report.first_nonfinite);
    }
    return report;
}

ASYNCRL_END_NAMESPACE
