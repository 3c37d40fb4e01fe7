// SPDX-License-Identifier: Apache-2.0
/// @file Loss, gradient and report on the host: each objective beside a copy of the same bytes and beside the multi-pass form.
#include "multi_pass.hpp"
#include "random_columns.hpp"
#include "two_threads.hpp"

#include <asyncrl/correction.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using asyncrl::per_token;

void multi_pass_clip_and_tis(benchmark::State& state) {
    random_columns const c(state.range(0));
    auto const view = [&](std::vector<float> const& column) {
        return Eigen::Map<Eigen::ArrayXf const>(column.data(), static_cast<Eigen::Index>(column.size()));
    };
    multi_pass::batch const b{
        view(c.log_prob), view(c.old_log_prob), view(c.rollout), view(c.advantage),
        Eigen::Map<Eigen::Array<std::uint8_t, Eigen::Dynamic, 1> const>(c.mask.data(), c.size).cast<float>()};
    for (auto _ : state) {
        auto result = multi_pass::clip_and_tis(b, 0.2F, 0.2F, 2.0F);
        benchmark::DoNotOptimize(result);
    }
    per_token_rate(state);
}

template <typename Executor, typename Objective>
void loss(benchmark::State& state, Objective const& objective) {
    random_columns c(state.range(0));
    asyncrl::token_batch const batch = c.batch();
    asyncrl::workspace scratch(batch);
    Executor const execute;
    asyncrl::totals const totals = asyncrl::measure(objective, batch, scratch, execute);
    for (auto _ : state) {
        auto report =
            asyncrl::policy_loss(objective, batch, totals, per_token(c.gradient.data(), c.size), scratch, {}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_token_rate(state);
}

template <typename Executor, typename Objective>
void measure_and_loss(benchmark::State& state, Objective const& objective) {
    random_columns c(state.range(0));
    asyncrl::token_batch const batch = c.batch();
    asyncrl::workspace scratch(batch);
    Executor const execute;
    for (auto _ : state) {
        asyncrl::totals const totals = asyncrl::measure(objective, batch, scratch, execute);
        auto report =
            asyncrl::policy_loss(objective, batch, totals, per_token(c.gradient.data(), c.size), scratch, {}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_token_rate(state);
}

auto const clip = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::token_mean{});
auto const clip_tis = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::tis{}, asyncrl::token_mean{});
auto const clip_mis = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::mis{}, asyncrl::token_mean{});
auto const sat = asyncrl::make_objective(asyncrl::sat_clip{}, asyncrl::anchor_rollout{}, asyncrl::token_mean{});

void sizes(benchmark::internal::Benchmark* b) {
    b->Arg(1 << 16)->Arg(1 << 24)->UseRealTime()->MeasureProcessCPUTime();
}

template <typename Executor>
void register_losses(std::string const& threads) {
    auto const add = [&](char const* name, auto function) {
        benchmark::RegisterBenchmark((name + threads).c_str(), function)->Apply(sizes);
    };
    add("clip", [](benchmark::State& state) { loss<Executor>(state, clip); });
    add("clip_tis", [](benchmark::State& state) { loss<Executor>(state, clip_tis); });
    add("clip_mis", [](benchmark::State& state) { loss<Executor>(state, clip_mis); });
    add("sat_with_measure", [](benchmark::State& state) { measure_and_loss<Executor>(state, sat); });
}

[[maybe_unused]] bool const registered = [] {
    benchmark::RegisterBenchmark("copy", copy)->Apply(sizes);
    benchmark::RegisterBenchmark("multi_pass_clip_tis", multi_pass_clip_and_tis)->Apply(sizes);
    register_losses<asyncrl::serial>("");
    register_losses<two_threads>("/two_threads");
    return true;
}();

}  // namespace
