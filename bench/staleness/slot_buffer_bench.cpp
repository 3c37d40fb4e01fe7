// SPDX-License-Identifier: Apache-2.0
/// @file What one unit costs the slot buffer, from its reserve to its take, beside plain arrays that are scanned.
#include "staleness/array_model.hpp"

#include <asyncrl/staleness/slot_buffer.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace {

/// Random numbers made beforehand, so that the loop measures the buffer and not the generator.
std::vector<std::uint32_t> random_numbers() {
    std::mt19937 random(1);
    std::vector<std::uint32_t> numbers(std::size_t{1} << 16);
    for (auto& number : numbers) {
        number = static_cast<std::uint32_t>(random());
    }
    return numbers;
}

std::size_t below(std::uint32_t number, std::size_t bound) {
    return static_cast<std::size_t>(std::uint64_t{number} * bound >> 32);
}

/// Units complete in random order with every free place taken at once: the buffer is always full.
void slot_buffer_unit(benchmark::State& state) {
    auto const numbers = random_numbers();
    asyncrl::slot_buffer<std::uint32_t> buffer({.batch_size = state.range(0), .max_staleness = state.range(1)});
    std::vector<asyncrl::unit_ticket> in_flight;
    in_flight.reserve(static_cast<std::size_t>(state.range(0) * (state.range(1) + 1)));
    std::vector<asyncrl::taken_unit<std::uint32_t>> batch(static_cast<std::size_t>(state.range(0)));
    std::size_t turn = 0;
    auto const train_one_batch = [&] {
        while (!buffer.can_take()) {
            while (auto const ticket = buffer.reserve(7)) {
                in_flight.push_back(*ticket);
            }
            auto& done = in_flight[below(numbers[turn++ & 0xffff], in_flight.size())];
            buffer.occupy(done);
            done = in_flight.back();
            in_flight.pop_back();
        }
        buffer.take(batch);
        buffer.publish();
        benchmark::DoNotOptimize(batch.data());
    };
    for (std::int64_t warm_up = 0; warm_up < 2 * state.range(1) + 2; ++warm_up) {
        train_one_batch();
    }
    std::int64_t units = 0;
    for (auto _ : state) {
        train_one_batch();
        units += state.range(0);
    }
    state.SetItemsProcessed(units);
    state.counters["per_unit"] =
        benchmark::Counter(static_cast<double>(units), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(slot_buffer_unit)->ArgsProduct({{64, 512, 4096, 65536}, {0, 1, 4, 16}})->ArgNames({"batch", "staleness"});

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
