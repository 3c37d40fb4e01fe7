// SPDX-License-Identifier: Apache-2.0
/// @file Transitions per second through the controller: a reserve and an occupy are one each.
#include <asyncrl/staleness/controller.hpp>
#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

namespace {

/// All threads but one produce, the other trains, and all of them block where they must.
///
/// range(0): threads; range(1): units in flight at most, 0 = no limit. With fewer places than producers everyone waits a lot.
template <typename Control, typename Options>
void controller_transitions(benchmark::State& state) {
    std::int64_t transitions = 0;
    for (auto _ : state) {
        constexpr std::int64_t batch_size = 512;
        constexpr int batches = 400;
        Options options{.batch_size = batch_size, .max_staleness = 1};
        if (state.range(1) != 0) {
            options.max_in_flight = state.range(1);
        }
        asyncrl::controller<Control> c((Control(options)));
        std::vector<std::jthread> producers;
        for (std::int64_t i = 1; i < state.range(0); ++i) {
            producers.emplace_back([&](std::stop_token const& stop) {
                while (auto result = c.reserve(1, stop)) {
                    result.unit.occupy();
                }
            });
        }
        std::vector<asyncrl::taken_unit<std::uint32_t>> batch(batch_size);
        for (int i = 0; i < batches; ++i) {
            if (state.range(0) == 1) {
                while (auto result = c.try_reserve(1)) {
                    result.unit.occupy();
                }
            }
            (void)c.take(batch);
            c.publish();
        }
        c.close();
        producers.clear();
        auto const counters = c.counters();
        transitions += counters.admitted + counters.completed + counters.taken;
    }
    state.SetItemsProcessed(transitions);
}
void controller_over_slots(benchmark::State& state) {
    controller_transitions<asyncrl::slot_buffer<std::uint32_t>, asyncrl::slot_buffer_options>(state);
}
void controller_over_ledger(benchmark::State& state) {
    controller_transitions<asyncrl::deadline_ledger<std::uint32_t>, asyncrl::deadline_ledger_options>(state);
}
BENCHMARK(controller_over_slots)
    ->ArgsProduct({{1, 2, 8}, {0, 4}})
    ->ArgNames({"threads", "in_flight"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(controller_over_ledger)
    ->ArgsProduct({{1, 2, 8}, {0, 4}})
    ->ArgNames({"threads", "in_flight"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
