// SPDX-License-Identifier: Apache-2.0
/// @file Loss, gradient, flags and report of one batch in one pass over its tokens.
#pragma once

#include <asyncrl/correction/loss_options.hpp>
#include <asyncrl/correction/measure.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

ASYNCRL_BEGIN_NAMESPACE

/// Where the first non-finite token stands.
struct nonfinite_error : std::runtime_error {
    std::int64_t row;
    std::int64_t position;  ///< within the row

    nonfinite_error(std::int64_t at_row, std::int64_t at_position, std::string const& what)
        : std::runtime_error("asyncrl: " + what + " is not finite at row " + detail::text(at_row) + ", position " +
                             detail::text(at_position)),
          row(at_row),
          position(at_position) {}
};

namespace detail {

/// Runs the loss loop over one chunk and writes its outputs.
template <typename Real, typename Bound>
[[nodiscard]] loss_report run_chunk(Bound const& objective, token_batch const& batch, loss_outputs const& to, chunk_range range,
                                    double const* row_scales, loss_numbers<typename packing<Real>::element> numbers) {
    using element = typename packing<Real>::element;
    struct output_buffers {
        alignas(64) element gradient[chunk_size];
        alignas(64) element loss[chunk_size];
        alignas(64) element weight[chunk_size];
        alignas(64) element row_scale[chunk_size];
        alignas(64) std::uint32_t flags[chunk_size];
    };
    input_buffers<element> inputs;
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
    loss_report const report = loss_of_chunk<Real>(objective, in, out, padded, numbers);
    unstage<element>(to.gradient, batch, range, outputs.gradient, out.gradient);
    unstage<element>(to.loss, batch, range, outputs.loss, out.loss);
    unstage<element>(to.weight, batch, range, outputs.weight, out.weight);
    if (to.flags != nullptr) {
        std::transform(outputs.flags, outputs.flags + range.count, to.flags + range.begin,
                       [](std::uint32_t events) { return stored_flags(events); });
    }
    return report;
}

template <typename Real, typename Objective, typename Executor>
[[nodiscard]] loss_report run_loss(Objective const& objective, token_batch const& batch, loss_outputs const& to,
                                   double const* row_scales, double scale, double quantile, nonfinite policy,
                                   workspace& scratch, Executor const& execute) {
    using element = typename packing<Real>::element;
    auto bound = objective.template bind<element>();
    bound.prepare(quantile);
    loss_numbers<element> const numbers{stored_sentinel(batch), static_cast<element>(scale), nullptr,
                                        row_scales != nullptr ? 1 : scale, policy == nonfinite::propagate};
    loss_report* partials = scratch.partials<loss_report>();
    auto const task = [&](std::int64_t chunk) {
        partials[chunk] = run_chunk<Real>(bound, batch, to, chunk_at(batch, chunk), row_scales, numbers);
    };
    std::int64_t const chunks = chunk_count(batch.size());
    execute(chunks, task_ref(task));
    loss_report report;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        if (report.counts.nonfinite == 0 && partials[chunk].counts.nonfinite > 0) {
            chunk_range const range = chunk_at(batch, chunk);
            report.first_nonfinite = range.begin + first_nonfinite_of<Real>(bound, batch, range, numbers);
        }
        report += partials[chunk];
    }
    return report;
}

inline void zero(output_column const& c, token_batch const& batch) {
    alignas(64) float const zeros[chunk_size] = {};
    for (std::int64_t chunk = 0; chunk < chunk_count(batch.size()); ++chunk) {
        unstage<float>(c, batch, chunk_at(batch, chunk), zeros, zeros);
    }
}

/// The place within a chunk of the first token with a non-finite input or result; there is one.
template <typename Real, typename Bound>
[[nodiscard]] std::int64_t first_nonfinite_of(Bound const& objective, token_batch const& batch, chunk_range range,
                                              loss_numbers<typename packing<Real>::element> const& numbers) {
    using element = typename packing<Real>::element;
    input_buffers<element> inputs;
    alignas(64) element gradient[chunk_size];
    alignas(64) std::uint32_t flags[chunk_size];
    std::int64_t const padded = padded_to(range.count, packing<Real>::width);
    auto const in = stage_inputs<Bound::needs>(batch, range, padded, inputs);
    (void)loss_of_chunk<Real>(objective, in, chunk_outputs<element>{gradient, nullptr, nullptr, flags}, padded, numbers);
    return std::find_if(flags, flags + range.count, [](std::uint32_t bits) { return has(bits, nonfinite_input); }) - flags;
}

/// Throws, naming row, position and column of the token at `at`.
template <std::uint32_t Needs>
[[noreturn]] void throw_nonfinite(token_batch const& batch, std::int64_t at) {
    input_buffers<double> buffers;
    chunk_range const range{at, 1};
    auto const in = stage_inputs<Needs>(batch, range, 1, buffers);
    std::string what = "the loss";
    auto const look = [&](double const* value, char const* name) {
        what = value != nullptr && is_nonfinite(*value) ? name : what;
    };
    look(in.advantage, "advantage");
    look(in.rollout_log_prob != nullptr && !sentinel<double>(stored_sentinel(batch)).holds(*in.rollout_log_prob)
             ? in.rollout_log_prob
             : nullptr,
         "rollout_log_prob");
    look(in.old_log_prob, "old_log_prob");
    look(in.log_prob, "log_prob");
    std::int64_t const row = batch.packed() ? packed_row(batch, at) : at / batch.tokens;
    throw nonfinite_error(row, at - row_range(batch, row).begin, what);
}

}  // namespace detail

/// Loss, gradient and report of one batch.
///
/// gradient = options.scale * d(reduced loss) / d(log_prob), with the weights detached; written for every position, exactly
/// +0 under the mask. float math for f32, bf16 and f16 columns, double where all are f64; sums in double over chunks of 2048
/// positions in fixed order: the same bits for any executor. One pass over the columns; a reduction by sequences reads the
/// mask once more, and a kept-token reduction by sequences the log-probs.
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
                    "at least 1 and covered by the totals, which hold " + detail::text(sums.counts.batches) +
                        " (add up those of every micro-batch and rank first)");
    if constexpr ((Objective::needs & batch_quantile) != 0) {
        detail::require(sums.quantile >= 0 && std::isfinite(sums.quantile), "totals.quantile", sums.quantile,
                        "finite and >= 0: take it from measure, or for several batches from a quantile_search");
    }
    scratch.require_room(batch);

    detail::reduction_rule const rule = objective.rule();
    double const scale = options.scale * rule.scale(sums);
    double const largest =
        batch.log_prob.type == dtype::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    detail::require(scale <= largest, "loss_options.scale by the reduction's denominator", scale,
                    "a number of the batch's type");
    double* row_scales = nullptr;
    if (rule.per_row) {
        row_scales = scratch.rows();
        detail::count_rows(objective, batch, rule.over, row_scales, execute);
        for (std::int64_t row = 0; row < batch.rows; ++row) {
            row_scales[row] = row_scales[row] > 0 ? scale / row_scales[row] : 0;
        }
    }
    loss_report report = batch.log_prob.type == dtype::f64
                             ? detail::run_loss<double>(objective, batch, to, row_scales, scale, sums.quantile,
                                                        options.on_nonfinite, scratch, execute)
                             : detail::run_loss<detail::native_lanes>(objective, batch, to, row_scales, scale, sums.quantile,
                                                                      options.on_nonfinite, scratch, execute);
    report.counts.sequences = batch.rows;
    if (report.counts.nonfinite > 0 && options.on_nonfinite == nonfinite::error) {
        detail::zero(to.gradient, batch);
        detail::throw_nonfinite<Objective::needs>(batch, report.first_nonfinite);
    }
    return report;
}

ASYNCRL_END_NAMESPACE
