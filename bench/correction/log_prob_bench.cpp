// SPDX-License-Identifier: Apache-2.0
/// @file Logits to log-prob, log-sum-exp and entropy, and back in place: beside a copy that moves the same bytes, and beside
/// whole-row Eigen expressions, one pass each.
#include "two_threads.hpp"
#include "yardstick.hpp"

#include <asyncrl/correction/log_prob.hpp>

#include <benchmark/benchmark.h>

#include <Eigen/Core>

#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace {

constexpr std::int64_t bytes = std::int64_t{1} << 26;

template <typename Stored>
constexpr asyncrl::dtype type_of = std::is_same_v<Stored, float> ? asyncrl::dtype::f32 : asyncrl::dtype::bf16;

/// 64 MB of logits as a language model's head yields them: most far below the largest.
template <typename Stored>
struct head {
    explicit head(std::int64_t vocabulary)
        : columns(vocabulary), rows(bytes / (vocabulary * static_cast<std::int64_t>(sizeof(Stored)))) {
        std::mt19937 random(1);
        std::normal_distribution<float> noise(0, 3);
        logits.resize(static_cast<std::size_t>(rows * columns));
        for (Stored& x : logits) {
            if constexpr (std::is_same_v<Stored, float>) {
                x = noise(random);
            } else {
                x = asyncrl::detail::to_bf16(noise(random));
            }
        }
        std::size_t const n = static_cast<std::size_t>(rows);
        targets.resize(n);
        for (std::int32_t& t : targets) {
            t = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(columns));
        }
        log_prob.resize(n);
        log_sum_exp.resize(n);
        entropy.resize(n);
        slope.assign(n, 0.5F);
    }
    [[nodiscard]] asyncrl::matrix input() const { return {logits.data(), type_of<Stored>, rows, columns, columns}; }
    [[nodiscard]] asyncrl::output_matrix in_place() { return {logits.data(), type_of<Stored>, rows, columns, columns}; }
    [[nodiscard]] asyncrl::log_prob_outputs outputs() {
        return {asyncrl::per_token(log_prob.data()), asyncrl::per_token(log_sum_exp.data()),
                asyncrl::per_token(entropy.data())};
    }

    std::int64_t columns, rows;
    std::vector<Stored> logits;
    std::vector<std::int32_t> targets;
    std::vector<float> log_prob, entropy, slope;
    std::vector<double> log_sum_exp;
};

void per_logit_rate(benchmark::State& state, std::int64_t logits, std::int64_t moved) {
    state.counters["ns/logit"] = benchmark::Counter(
        static_cast<double>(logits) * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
    state.SetBytesProcessed(state.iterations() * moved);
}

void copy(benchmark::State& state, std::int64_t moved) {
    copy_bytes(state, moved);
    state.SetBytesProcessed(state.iterations() * moved);
}

template <typename Stored, typename Executor>
void forward(benchmark::State& state, std::int64_t vocabulary) {
    head<Stored> h(vocabulary);
    Executor const execute;
    for (auto _ : state) {
        auto report = asyncrl::log_prob(h.input(), h.targets.data(), h.outputs(), {.temperature = 0.9}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_logit_rate(state, h.rows * h.columns, bytes);
}

/// In place, so the logits of later iterations are gradients: other numbers at the same cost.
template <typename Stored, typename Executor>
void backward(benchmark::State& state, std::int64_t vocabulary) {
    head<Stored> h(vocabulary);
    Executor const execute;
    asyncrl::log_prob(h.input(), h.targets.data(), h.outputs());
    asyncrl::log_prob_slopes const slopes{asyncrl::per_token(h.slope.data()), asyncrl::per_token(h.slope.data())};
    for (auto _ : state) {
        auto report = asyncrl::log_prob_gradient(h.input(), h.targets.data(), h.outputs(), slopes, h.in_place(), {}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_logit_rate(state, h.rows * h.columns, 2 * bytes);
}

/// The row as floats, as a framework would cast it first.
template <typename Stored>
Eigen::ArrayXf row_of(head<Stored> const& h, std::int64_t row) {
    Stored const* data = h.logits.data() + row * h.columns;
    if constexpr (std::is_same_v<Stored, float>) {
        return Eigen::Map<Eigen::ArrayXf const>(data, h.columns);
    } else {
        using bfloats = Eigen::Array<Eigen::bfloat16, Eigen::Dynamic, 1>;
        return Eigen::Map<bfloats const>(reinterpret_cast<Eigen::bfloat16 const*>(data), h.columns).template cast<float>();
    }
}

template <typename Stored>
void multi_pass_forward(benchmark::State& state, std::int64_t vocabulary) {
    head<Stored> h(vocabulary);
    for (auto _ : state) {
        for (std::int64_t row = 0; row < h.rows; ++row) {
            Eigen::ArrayXf const z = row_of(h, row) / 0.9F;
            float const largest = z.maxCoeff();
            Eigen::ArrayXf const e = (z - largest).exp();
            float const sum = e.sum();
            float const log_sum_exp = largest + std::log(sum);
            std::size_t const i = static_cast<std::size_t>(row);
            h.log_prob[i] = z[h.targets[i]] - log_sum_exp;
            h.log_sum_exp[i] = static_cast<double>(log_sum_exp);
            h.entropy[i] = log_sum_exp - (e / sum * z).sum();
        }
        benchmark::DoNotOptimize(h.log_prob.data());
        benchmark::ClobberMemory();
    }
    per_logit_rate(state, h.rows * h.columns, bytes);
}

template <typename Stored>
void multi_pass_backward(benchmark::State& state, std::int64_t vocabulary) {
    head<Stored> h(vocabulary);
    asyncrl::log_prob(h.input(), h.targets.data(), h.outputs());
    for (auto _ : state) {
        for (std::int64_t row = 0; row < h.rows; ++row) {
            std::size_t const i = static_cast<std::size_t>(row);
            Eigen::ArrayXf const log_p = row_of(h, row) - static_cast<float>(h.log_sum_exp[i]);
            Eigen::ArrayXf const p = log_p.exp();
            Eigen::ArrayXf gradient = -h.slope[i] * p - h.slope[i] * p * (log_p + h.entropy[i]);
            gradient[h.targets[i]] += h.slope[i];
            Stored* to = h.logits.data() + row * h.columns;
            if constexpr (std::is_same_v<Stored, float>) {
                Eigen::Map<Eigen::ArrayXf>(to, h.columns) = gradient;
            } else {
                using bfloats = Eigen::Array<Eigen::bfloat16, Eigen::Dynamic, 1>;
                Eigen::Map<bfloats>(reinterpret_cast<Eigen::bfloat16*>(to), h.columns) =
                    gradient.template cast<Eigen::bfloat16>();
            }
        }
        benchmark::ClobberMemory();
    }
    per_logit_rate(state, h.rows * h.columns, 2 * bytes);
}

template <typename Stored>
void register_type(std::string const& type) {
    for (std::int64_t const vocabulary : {std::int64_t{32'000}, std::int64_t{151'936}}) {
        auto const add = [&](std::string const& name, auto function) {
            std::string const full = name + "/" + type + "/" + std::to_string(vocabulary);
            benchmark::RegisterBenchmark(full.c_str(), [function, vocabulary](benchmark::State& state) {
                function(state, vocabulary);
            })->UseRealTime();
        };
        add("forward", forward<Stored, asyncrl::serial>);
        add("forward_two_threads", forward<Stored, two_threads>);
        add("multi_pass_forward", multi_pass_forward<Stored>);
        add("backward", backward<Stored, asyncrl::serial>);
        add("backward_two_threads", backward<Stored, two_threads>);
        add("multi_pass_backward", multi_pass_backward<Stored>);
    }
}

[[maybe_unused]] bool const registered = [] {
    benchmark::RegisterBenchmark("copy/as_forward", [](benchmark::State& state) { copy(state, bytes); })->UseRealTime();
    benchmark::RegisterBenchmark("copy/as_backward", [](benchmark::State& state) { copy(state, 2 * bytes); })->UseRealTime();
    register_type<float>("f32");
    register_type<std::uint16_t>("bf16");
    return true;
}();

}  // namespace
