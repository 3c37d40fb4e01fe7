// SPDX-License-Identifier: Apache-2.0
/// @file Gates of a mixture of experts from the experts that the rollout engine recorded, and their gradient to the router's
/// logits: rollout routing replay, R3 (arXiv 2510.11370; "keep routing" in DeepSeek-V3.2).
#pragma once

#include <asyncrl/correction/detail/check_matrix.hpp>
#include <asyncrl/correction/detail/softmax_row.hpp>
#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/correction/routing_options.hpp>
#include <asyncrl/correction/token/routing.hpp>
#include <asyncrl/correction/token/softmax.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

struct routing_call {
    matrix logits;
    expert_indices recorded;
    gate_rule rule;
    routing_options options;

    [[nodiscard]] std::int32_t const* indices(std::int64_t row) const { return recorded.data + row * recorded.row_stride; }
    [[nodiscard]] bool is_missing(std::int64_t row) const {
        return std::all_of(indices(row), indices(row) + recorded.chosen, [](std::int32_t i) { return i == -1; });
    }
    /// The place of the first index of a row that cannot be meant; -1: none.
    [[nodiscard]] std::int64_t faulty_place(std::int64_t row) const {
        std::int32_t const* all = indices(row);
        for (std::int64_t k = 0; k < recorded.chosen && !is_missing(row); ++k) {
            if (all[k] < 0 || all[k] >= logits.columns || std::find(all, all + k, all[k]) != all + k) {
                return k;
            }
        }
        return -1;
    }
};

struct routing_tallies {
    row_tally replayed, fallen_back, differing, nonfinite;

    [[nodiscard]] routing_report report() const {
        return {replayed.count(), fallen_back.count(), differing.count(), nonfinite.count(), nonfinite.first()};
    }
};

/// One row's logits, its experts and their gates, all in double.
class routed_row {
  public:
    routed_row(routing_call const& call, std::int64_t row, routing_tallies& tallies)
        : experts_(call.logits.columns), chosen_(call.recorded.chosen), rule_(call.rule) {
        with_storage(call.logits.type, [&](auto storage) {
            using stored = decltype(storage);
            auto const* from = static_cast<typename stored::type const*>(call.logits.data) + row * call.logits.row_stride;
            for (std::int64_t j = 0; j < experts_; ++j) {
                z_[at(j)] = static_cast<double>(stored::get(from[j]));
                usable_ = usable_ && !is_unusable(z_[at(j)]);
            }
        });
        select_top(call.options.selection_bias);
        if (call.is_missing(row)) {
            tallies.fallen_back.note(row);
        } else {
            tallies.replayed.note(row);
            auto const top = indices_;
            std::copy_n(call.indices(row), chosen_, indices_.begin());
            if (usable_ && !std::is_permutation(begin(), begin() + chosen_, top.begin())) {
                tallies.differing.note(row);
            }
        }
        weigh();
    }

    [[nodiscard]] bool usable() const { return usable_; }
    [[nodiscard]] std::int32_t const* begin() const { return indices_.data(); }
    /// Of a place in the list.
    [[nodiscard]] double gate(std::int64_t place) const {
        return usable_ ? gate_of(z_[at(indices_[at(place)])]) : std::numeric_limits<double>::quiet_NaN();
    }
    /// Writes d loss / d logits for u = d loss / d gates. Returns false if it is NaN.
    bool gradient(output_matrix const& to, std::int64_t row, double const* u) const {
        double mean = 0;
        bool finite = usable_;
        for (std::int64_t k = 0; k < chosen_; ++k) {
            finite = finite && !is_nonfinite(u[k]);
            mean += gate(k) * u[k];
        }
        double const nothing = finite ? 0 : std::numeric_limits<double>::quiet_NaN();
        with_storage(to.type, [&](auto storage) {
            using stored = decltype(storage);
            auto* into = static_cast<typename stored::type*>(to.data) + row * to.row_stride;
            for (std::int64_t j = 0; j < experts_; ++j) {
                bool const pushed = rule_ == gate_rule::softmax_of_all;
                into[j] = stored::put(pushed ? nothing + gate_gradient(gate_of(z_[at(j)]), 1.0, 0.0, mean) : 0.0);
            }
            for (std::int64_t k = 0; k < chosen_; ++k) {
                double const z = z_[at(indices_[at(k)])];
                double const log_slope = rule_ == gate_rule::sigmoid ? sigmoid(-z, exponential_of) : 1.0;
                into[indices_[at(k)]] = stored::put(nothing + gate_gradient(gate(k), log_slope, u[k], mean));
            }
        });
        return finite;
    }

  private:
    static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
    static double exponential_of(double x) { return detail::host_math{}.exp(x); }

    /// The experts with the highest scores into indices_, by descending score; of equal ones the lower index first.
    void select_top(column const& bias) {
        std::array<double, most_chosen_experts> scores;
        std::int64_t found = 0;
        for (std::int64_t j = 0; j < experts_; ++j) {
            double score = z_[at(j)];
            if (bias) {
                score = sigmoid(score, exponential_of) + number_in(bias.data, bias.type, j * bias.token_stride);
            }
            std::int64_t place = found;
            while (place > 0 && score > scores[at(place - 1)]) {
                --place;
            }
            if (place == chosen_) {
                continue;
            }
            found = std::min(found + 1, chosen_);
            for (std::int64_t k = found - 1; k > place; --k) {
                scores[at(k)] = scores[at(k - 1)];
                indices_[at(k)] = indices_[at(k - 1)];
            }
            scores[at(place)] = score;
            indices_[at(place)] = static_cast<std::int32_t>(j);
        }
    }

    /// What the gates are divided by.
    void weigh() {
        if (rule_ == gate_rule::sigmoid) {
            for (std::int64_t k = 0; k < chosen_; ++k) {
                total_ += sigmoid(z_[at(indices_[at(k)])], exponential_of);
            }
            total_ += 1e-20;
            return;
        }
        bool const all = rule_ == gate_rule::softmax_of_all;
        softmax_sums<double> sums;
        auto const z = [&](std::int64_t i) { return z_[at(all ? i : indices_[at(i)])]; };
        std::int64_t const count = all ? experts_ : chosen_;
        for (std::int64_t i = 0; i < count; ++i) {
            sums.largest = larger(sums.largest, z(i));
        }
        for (std::int64_t i = 0; i < count; ++i) {
            sums.add(z(i), 1.0, exponential_of);
        }
        usable_ = usable_ && !is_nonfinite(sums.largest);
        largest_ = sums.largest;
        total_ = 1 + sums.excess();
    }
    [[nodiscard]] double gate_of(double z) const {
        if (rule_ == gate_rule::sigmoid) {
            return sigmoid(z, exponential_of) / total_;
        }
        return bounded_log<double>(z - largest_, exponential_of).value / total_;
    }

    std::int64_t experts_;
    std::int64_t chosen_;
    gate_rule rule_;
    bool usable_ = true;
    double largest_ = 0;
    double total_ = 0;
    std::array<double, most_experts> z_;
    std::array<std::int32_t, most_chosen_experts> indices_;
};

template <typename Executor>
void check_routing(routing_call const& call, Executor const& execute) {
    auto const& [logits, recorded, rule, options] = call;
    check_logits(logits);
    std::int64_t const most_chosen = std::min(logits.columns, most_chosen_experts);
    if (logits.columns > most_experts) {
        require(false, "logits.columns", logits.columns, "at most " + text(most_experts));
    }
    if (recorded.rows != logits.rows) {
        require(false, "experts.rows", recorded.rows, "that of the logits, " + text(logits.rows));
    }
    if (recorded.rows > 0 && (recorded.chosen < 1 || recorded.chosen > most_chosen)) {
        require(false, "experts.chosen", recorded.chosen, "in [1, " + text(most_chosen) + "]");
    }
    require(rule <= gate_rule::sigmoid, "gate_rule", static_cast<int>(rule), "one of its enumerators");
    if (recorded.rows > 0 && recorded.data == nullptr) {
        refuse("experts.data is absent");
    }
    if (options.selection_bias) {
        if (rule != gate_rule::sigmoid) {
            refuse("routing_options.selection_bias is given, but only gate_rule::sigmoid has one");
        }
        if (options.selection_bias.type != dtype::f32 && options.selection_bias.type != dtype::f64) {
            refuse(std::string("routing_options.selection_bias has dtype ") + name_of(options.selection_bias.type) +
                   ", must be f32 or f64");
        }
    }
    row_tally faulty;
    for_each_row(logits.rows, logits.columns, execute, [&](std::int64_t row) {
        if (call.faulty_place(row) >= 0) {
            faulty.note(row);
        }
    });
    if (faulty.count() > 0) {
        std::int64_t const row = faulty.first();
        std::int64_t const place = call.faulty_place(row);
        std::int32_t const index = call.indices(row)[place];
        require(false, "experts[" + text(row) + "][" + text(place) + "]", index,
                index < 0 || index >= logits.columns ? "in [0, " + text(logits.columns) + "), or -1 throughout the row"
                                                     : "named once in its row");
    }
}

}  // namespace detail

/// The gates of each row's recorded experts, from the router's logits [rows, experts] as they are now. A row that was not
/// recorded is routed by its own top-k; of equal scores the lower index wins. Computes in double whatever the storage.
///
/// A row with a logit that is NaN or +infinity, or whose softmax is over -infinity alone, has NaN for gates and is counted.
/// Groups of experts, factors on the gates and shared experts are the caller's.
/// @throws std::invalid_argument naming what is wrong, with row and value for an index, before anything is written.
template <typename Executor = serial>
routing_report routing_replay(matrix const& logits, expert_indices const& experts, gate_rule rule,
                              routing_outputs const& outputs, routing_options const& options = {},
                              Executor const& execute = {}) {
    detail::routing_call const call{logits, experts, rule, options};
    detail::check_routing(call, execute);
    detail::check_output_matrix(outputs.gates, logits, experts.chosen, "gates");
    if (outputs.experts != nullptr && outputs.experts_stride < experts.chosen && logits.rows > 1) {
        detail::require(false, "routing_outputs.experts_stride", outputs.experts_stride,
                        "at least experts.chosen, " + detail::text(experts.chosen));
    }
    detail::routing_tallies tallies;
    detail::for_each_row(logits.rows, logits.columns, execute, [&](std::int64_t row) {
        detail::routed_row const routed(call, row, tallies);
        if (!routed.usable()) {
            tallies.nonfinite.note(row);
        }
        for (std::int64_t k = 0; k < experts.chosen; ++k) {
            detail::put_number(outputs.gates.data, outputs.gates.type, row * outputs.gates.row_stride + k, routed.gate(k));
        }
        if (outputs.experts != nullptr) {
            std::copy_n(routed.begin(), experts.chosen, outputs.experts + row * outputs.experts_stride);
        }
    });
    return tallies.report();
}

/// d loss / d logits from d loss / d gates [rows, chosen], the latter in the order of the experts that routing_replay gave.
/// It flows through the gates alone, so with softmax_of_chosen and sigmoid only to the chosen experts; the others get 0.
/// Indices carry none. `gradient` may be the logits themselves.
///
/// A row whose slopes are all 0 is +0, and in no count. What is not finite makes the row NaN, and is counted.
/// @throws std::invalid_argument as routing_replay does, before anything is written.
template <typename Executor = serial>
routing_report routing_replay_gradient(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                       matrix const& gate_slopes, output_matrix const& gradient,
                                       routing_options const& options = {}, Executor const& execute = {}) {
    detail::routing_call const call{logits, experts, rule, options};
    detail::check_routing(call, execute);
    detail::check_matrix(gate_slopes, logits, experts.chosen, "gate_slopes");
    detail::check_output_matrix(gradient, logits, logits.columns, "gradient");
    detail::routing_tallies tallies;
    detail::for_each_row(logits.rows, logits.columns, execute, [&](std::int64_t row) {
        std::array<double, most_chosen_experts> slopes;
        bool all_zero = true;
        for (std::int64_t k = 0; k < experts.chosen; ++k) {
            double const u = detail::number_in(gate_slopes.data, gate_slopes.type, row * gate_slopes.row_stride + k);
            slopes[static_cast<std::size_t>(k)] = u;
            all_zero = all_zero && u == 0;
        }
        if (all_zero) {
            detail::zero_elements(gradient, row, 0, gradient.columns);
        } else if (!detail::routed_row(call, row, tallies).gradient(gradient, row, slopes.data())) {
            tallies.nonfinite.note(row);
        }
    });
    return tallies.report();
}

ASYNCRL_END_NAMESPACE
