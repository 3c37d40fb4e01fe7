// SPDX-License-Identifier: Apache-2.0
/// @file From logits to the log-prob of the chosen tokens, log-sum-exp and entropy in one pass, and from gradients of those
/// back to the logits in another, in place if wanted.
#pragma once

#include <asyncrl/correction/detail/check_matrix.hpp>
#include <asyncrl/correction/detail/softmax_row.hpp>
#include <asyncrl/correction/log_prob_options.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

inline void check_row_output(output_column const& c, char const* name, std::int64_t rows) {
    if (!c || rows == 0) {
        return;
    }
    if (c.type != dtype::f32 && c.type != dtype::f64) {
        refuse(std::string(name) + " has dtype " + name_of(c.type) + ", must be f32 or f64");
    }
    if (c.token_stride == 0 && rows > 1) {
        refuse(std::string(name) + " has a stride of 0: an output needs an element of its own for every row");
    }
}

inline void check_row_input(column const& c, char const* name) {
    if (c && c.type == dtype::u8) {
        refuse(std::string(name) + " has dtype u8, must be a floating-point one");
    }
}

/// The first thing wrong with a row's chosen token or with its support; `list` is null where nothing is.
struct id_fault {
    char const* list = nullptr;
    std::int64_t at = 0;
    std::int64_t id = 0;
    bool repeated = false;
};

[[nodiscard]] inline id_fault fault_of_row(matrix const& logits, token_ids targets, sampling_support const& support,
                                           std::int64_t row) {
    if (targets[row] < 0 || targets[row] >= logits.columns) {
        return {"targets", row, targets[row]};
    }
    row_part const part = part_of_row(logits, support, row);
    std::int64_t before = -1;
    for (std::int64_t i = 0; part.listed() && i < part.count; ++i) {
        std::int64_t const id = part[i];
        if (id < 0 || id >= logits.columns || id <= before) {
            return {"support.ids", part.first + i, id, id >= 0 && id <= before};
        }
        before = id;
    }
    return {};
}

inline void check_support(sampling_support const& support, std::int64_t rows) {
    if (!support.offsets) {
        return;
    }
    require(support.offsets[0] >= 0, "support.offsets[0]", support.offsets[0], ">= 0");
    for (std::int64_t row = 0; row < rows; ++row) {
        if (support.offsets[row + 1] < support.offsets[row]) {
            require(false, "support.offsets[" + text(row + 1) + "]", support.offsets[row + 1],
                    "at least the offset before it, " + text(support.offsets[row]));
        }
    }
    if (support.offsets[rows] > support.offsets[0] && !support.ids) {
        refuse("support.ids is absent, but support.offsets count some");
    }
}

/// Everything that both calls read.
template <typename Executor>
void check_rows(matrix const& logits, token_ids targets, log_prob_options const& options, Executor const& execute) {
    check_logits(logits);
    // The float loop multiplies by the inverse, which must be a normal float.
    require(options.temperature >= 1e-30 && options.temperature <= 1e30, "log_prob_options.temperature", options.temperature,
            "> 0 and finite (1e-30 to 1e30)");
    must_pass(inspect_flags, options.mask, "log_prob_options.mask");
    if (logits.rows == 0) {
        return;
    }
    if (!targets) {
        refuse("targets are absent");
    }
    check_support(options.support, logits.rows);
    row_tally faulty;
    for_each_row(logits.rows, 1, execute, [&](std::int64_t row) {
        if (!is_masked(options.mask, row) && fault_of_row(logits, targets, options.support, row).list != nullptr) {
            faulty.note(row);
        }
    });
    if (faulty.count() > 0) {
        std::int64_t const row = faulty.first();
        id_fault const fault = fault_of_row(logits, targets, options.support, row);
        require(false, std::string(fault.list) + "[" + text(fault.at) + "] of row " + text(row), fault.id,
                fault.repeated ? "greater than the id before it" : "in [0, " + text(logits.columns) + ")");
    }
}

[[nodiscard]] inline double number_of_row(column const& c, std::int64_t row) {
    return number_in(c.data, c.type, row * c.token_stride);
}
inline void put_row(output_column const& c, std::int64_t row, double x) {
    if (c) {
        put_number(c.data, c.type, row * c.token_stride, x);
    }
}

template <typename Real>
void log_prob_of_row(matrix const& logits, std::int64_t target, row_part const& part, std::int64_t row,
                     log_prob_outputs const& outputs, double temperature, row_tally& nonfinite) {
    scanned_row scanned = scan_row<Real>(logits, row, part, 1 / temperature);
    double const chosen = number_in(logits.data, logits.type, row * logits.row_stride + target);
    if (part.listed() && !part.names(target)) {
        scanned.add(chosen, 1 / temperature);
    }
    softmax_sums<double> const& sums = scanned.sums;
    double log_total = std::log1p(sums.excess());
    if (scanned.has_no_softmax()) {
        nonfinite.note(row);
        log_total = std::numeric_limits<double>::quiet_NaN();
    }
    put_row(outputs.log_prob, row, (chosen - sums.largest) / temperature - log_total);
    put_row(outputs.log_sum_exp, row, sums.largest / temperature + log_total);
    put_row(outputs.entropy, row, sums.entropy(log_total));
}

/// The slopes of a row and what the forward pass saved of it.
struct row_slopes {
    double log_prob;
    double entropy_slope;
    double log_sum_exp;
    double entropy;

    [[nodiscard]] bool nonfinite() const {
        return is_nonfinite(log_prob) || is_nonfinite(entropy_slope) || is_nonfinite(log_sum_exp) || is_nonfinite(entropy);
    }
};

template <typename Real>
void log_prob_gradient_of_row(matrix const& logits, std::int64_t target, row_part const& part, std::int64_t row,
                              row_slopes const& slopes, output_matrix const& gradient, double temperature,
                              row_tally& nonfinite) {
    using element = typename packing<Real>::element;
    double const chosen = number_in(logits.data, logits.type, row * logits.row_stride + target);
    logit_slope<double> const slope{slopes.log_prob / temperature, slopes.entropy_slope / temperature, slopes.entropy};
    logit_slope<element> const narrow{static_cast<element>(slope.log_prob), static_cast<element>(slope.entropy_slope),
                                      static_cast<element>(slope.entropy)};
    bool const unusable =
        gradient_of_row<Real>(logits, gradient, row, part, make_log_softmax<element>(slopes.log_sum_exp, temperature), narrow);
    auto const log_p = make_log_softmax<double>(slopes.log_sum_exp, temperature);
    bounded_log<double> const p(log_p(chosen), [](double x) { return detail::host_math{}.exp(x); });
    double of_target = slope(p, -std::expm1(p.log));
    if (unusable || is_unusable(chosen) || slopes.nonfinite()) {
        nonfinite.note(row);
        spoil_row(gradient, row, part);
        of_target = std::numeric_limits<double>::quiet_NaN();
    }
    put_number(gradient.data, gradient.type, row * gradient.row_stride + target, of_target);
}

}  // namespace detail

/// Of each row of logits [rows, vocabulary], z = logit / temperature: log p of its target, log-sum-exp of z, and the entropy,
/// log-sum-exp - sum of p z. Reads each logit once; the float loop serves f32, bf16 and f16, the double one f64. Outputs that
/// are absent cost nothing but their stores.
///
/// Where the mask is zero, the outputs are +0. A logit of -infinity has probability 0; one that is NaN or +infinity, or a row
/// without a finite one, is no softmax: NaN in all outputs of the row, and counted.
/// @throws std::invalid_argument naming what is wrong, with row and value for a target or support id outside the vocabulary,
/// before anything is written.
template <typename Executor = serial>
log_prob_report log_prob(matrix const& logits, token_ids targets, log_prob_outputs const& outputs,
                         log_prob_options const& options = {}, Executor const& execute = {}) {
    detail::check_row_output(outputs.log_prob, "log_prob_outputs.log_prob", logits.rows);
    detail::check_row_output(outputs.log_sum_exp, "log_prob_outputs.log_sum_exp", logits.rows);
    detail::check_row_output(outputs.entropy, "log_prob_outputs.entropy", logits.rows);
    detail::check_rows(logits, targets, options, execute);
    detail::row_tally computed;
    detail::row_tally nonfinite;
    detail::for_each_row(logits.rows, logits.columns, execute, [&](std::int64_t row) {
        if (detail::is_masked(options.mask, row)) {
            detail::put_row(outputs.log_prob, row, 0);
            detail::put_row(outputs.log_sum_exp, row, 0);
            detail::put_row(outputs.entropy, row, 0);
            return;
        }
        computed.note(row);
        detail::row_part const part = detail::part_of_row(logits, options.support, row);
        auto const run =
            logits.type == dtype::f64 ? detail::log_prob_of_row<double> : detail::log_prob_of_row<detail::native_lanes>;
        run(logits, targets[row], part, row, outputs, options.temperature, nonfinite);
    });
    return {computed.count(), nonfinite.count(), nonfinite.first()};
}

/// d loss / d logits = (g (1{target} - p) - h p (log p + entropy)) / temperature, from what log_prob wrote and with the same
/// targets and options. Reads each logit once and writes the whole of `gradient`, which may be the logits themselves or
/// another buffer that does not overlap them.
///
/// Where the mask is zero, or g and h are, the row is +0 and neither its logits nor what was saved of it are read; outside the
/// support it is 0. A row with anything else that is not finite, a logit of -infinity apart, is NaN in its support, and
/// counted. `saved.log_prob` is not used, `saved.entropy` only with an entropy slope.
/// @throws std::invalid_argument as log_prob does, before anything is written.
template <typename Executor = serial>
log_prob_report log_prob_gradient(matrix const& logits, token_ids targets, log_prob_outputs const& saved,
                                  log_prob_slopes const& slopes, output_matrix const& gradient,
                                  log_prob_options const& options = {}, Executor const& execute = {}) {
    detail::check_output_matrix(gradient, logits, logits.columns, "gradient");
    detail::check_row_input(slopes.log_prob, "log_prob_slopes.log_prob");
    detail::check_row_input(slopes.entropy, "log_prob_slopes.entropy");
    detail::check_row_input(saved.log_sum_exp, "saved.log_sum_exp");
    detail::check_row_input(saved.entropy, "saved.entropy");
    if (!saved.log_sum_exp && logits.rows > 0) {
        detail::refuse("saved.log_sum_exp is absent, but the gradient needs it");
    }
    if (slopes.entropy && !saved.entropy && logits.rows > 0) {
        detail::refuse("saved.entropy is absent, but the gradient of the entropy needs it");
    }
    detail::check_rows(logits, targets, options, execute);
    detail::row_tally computed;
    detail::row_tally nonfinite;
    detail::for_each_row(logits.rows, logits.columns, execute, [&](std::int64_t row) {
        detail::row_slopes of_row{};
        if (!detail::is_masked(options.mask, row)) {
            of_row.log_prob = slopes.log_prob ? detail::number_of_row(slopes.log_prob, row) : 0;
            of_row.entropy_slope = slopes.entropy ? detail::number_of_row(slopes.entropy, row) : 0;
        }
        if (of_row.log_prob == 0 && of_row.entropy_slope == 0) {
            detail::zero_elements(gradient, row, 0, gradient.columns);
            return;
        }
        computed.note(row);
        of_row.log_sum_exp = detail::number_of_row(saved.log_sum_exp, row);
        of_row.entropy = slopes.entropy ? detail::number_of_row(saved.entropy, row) : 0;
        detail::row_part const part = detail::part_of_row(logits, options.support, row);
        auto const run = logits.type == dtype::f64 ? detail::log_prob_gradient_of_row<double>
                                                   : detail::log_prob_gradient_of_row<detail::native_lanes>;
        run(logits, targets[row], part, row, of_row, gradient, options.temperature, nonfinite);
    });
    return {computed.count(), nonfinite.count(), nonfinite.first()};
}

ASYNCRL_END_NAMESPACE
