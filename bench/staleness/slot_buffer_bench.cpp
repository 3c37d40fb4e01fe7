// SPDX-License-Identifier: Apache-2.0
/// @file What one unit costs the slot buffer, from its reserve to its take, beside plain arrays that are scanned.
#include "closed_loop.hpp"
#include "staleness/array_model.hpp"

#include <asyncrl/staleness/slot_buffer.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

/// Units complete in random order with every free place taken at once: the buffer is always full.
void slot_buffer_unit(benchmark::State& state) {
    unit_cost<asyncrl::slot_buffer<std::uint32_t>, asyncrl::slot_buffer_options>(state);
}
BENCHMARK(slot_buffer_unit)
    ->ArgsProduct({{64, 512, 4096, 65536}, {0, 1, 4, 16}, {0}})
    ->ArgNames({"batch", "staleness", "history"});

/// The same events on plain arrays.
void array_model_unit(benchmark::State& state) {
    auto const numbers = random_numbers();
    array_model model(state.range(0), state.range(1));
    std::vector<std::int64_t> in_flight;
    std::int64_t next = 0;
    std::int64_t free_places = state.range(0) * (state.range(1) + 1);
    std::size_t turn = 0;
    std::int64_t units = 0;
    for (auto _ : state) {
        for (bool ready = false; !ready;) {
            for (; free_places > 0; --free_places) {
                model.place_last(next);
                in_flight.push_back(next++);
            }
            auto& done = in_flight[below(numbers[turn++ & 0xffff], in_flight.size())];
            model.occupy(done);
            done = in_flight.back();
            in_flight.pop_back();
            ready = model.can_take();
        }
        benchmark::DoNotOptimize(model.take());
        model.publish();
        free_places += state.range(0);
        units += state.range(0);
    }
    state.SetItemsProcessed(units);
    state.counters["per_unit"] =
        benchmark::Counter(static_cast<double>(units), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(array_model_unit)->ArgsProduct({{64, 512, 4096}, {0, 1, 4}})->ArgNames({"batch", "staleness"});

}  // namespace
