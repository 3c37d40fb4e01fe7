// SPDX-License-Identifier: Apache-2.0
/// @file One objective of each family on the host, in rows of 1024 tokens: measuring where it is asked for, loss, gradient,
/// report.
#include "multi_pass.hpp"
#include "random_columns.hpp"
#include "two_threads.hpp"

#include <asyncrl/correction.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

namespace {

constexpr std::int64_t row = 1024;

template <typename Executor, typename Objective>
void loss(benchmark::State& state, Objective const& objective) {
    random_columns c(state.range(0));
    asyncrl::token_batch const batch = c.batch(row);
    asyncrl::workspace scratch(batch);
    Executor const execute;
    constexpr bool measures = (Objective::needs & (asyncrl::batch_quantile | asyncrl::batch_weight)) != 0;
    asyncrl::totals totals = asyncrl::measure(objective, batch, scratch, execute);
    for (auto _ : state) {
        if (measures) {
            totals = asyncrl::measure(objective, batch, scratch, execute);
        }
        auto report =
            asyncrl::policy_loss(objective, batch, totals, asyncrl::per_token(c.gradient.data(), row), scratch, {}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_token_rate(state);
}

void multi_pass_gspo(benchmark::State& state) {
    random_columns const c(state.range(0));
    auto const view = [&](std::vector<float> const& column) {
        return Eigen::Map<Eigen::ArrayXXf const>(column.data(), row, c.size / row);
    };
    Eigen::ArrayXXf const mask =
        Eigen::Map<Eigen::Array<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic> const>(c.mask.data(), row, c.size / row)
            .cast<float>();
    for (auto _ : state) {
        auto result = multi_pass::gspo(view(c.log_prob), view(c.old_log_prob), view(c.advantage), mask, 3e-4F, 4e-4F);
        benchmark::DoNotOptimize(result);
    }
    per_token_rate(state);
}

void sizes(benchmark::internal::Benchmark* b) {
    b->Arg(1 << 14)->Arg(1 << 20)->Arg(1 << 25)->UseRealTime()->MeasureProcessCPUTime();
}

template <typename Executor>
void register_losses(std::string const& threads) {
    namespace presets = asyncrl::presets;
    auto const add = [&](char const* name, auto objective) {
        benchmark::RegisterBenchmark((name + threads).c_str(), [objective](benchmark::State& state) {
            loss<Executor>(state, objective);
        })->Apply(sizes);
    };
    add("ppo_clip", presets::dapo());
    add("dual_clip_tis", presets::verl_tis());
    add("clip_k3", presets::grpo());
    add("mis", presets::icepop());
    add("kpop", presets::kpop());
    add("dppo_tv", presets::dppo_tv());
    add("cispo", presets::cispo_async());
    add("spo", presets::simple_policy_optimization());
    add("sapo", presets::sapo_published());
    add("a3po", presets::a3po());
    add("sat", presets::sat_grpo());
    add("gspo", presets::gspo());
    add("gmpo", presets::gmpo());
    add("trl", presets::trl());
    add("opsm", presets::deepseek_v32(1e-4, 1e-3));
    add("sat_gspo", presets::sat_gspo());
}

[[maybe_unused]] bool const registered = [] {
    benchmark::RegisterBenchmark("copy", copy)->Apply(sizes);
    benchmark::RegisterBenchmark("multi_pass_gspo", multi_pass_gspo)->Apply(sizes);
    register_losses<asyncrl::serial>("");
    register_losses<two_threads>("/two_threads");
    return true;
}();

}  // namespace
