// SPDX-License-Identifier: Apache-2.0
/// @file One training loop for every staleness control: free places are taken at once, units complete in random order.
#pragma once

#include <asyncrl/staleness/unit.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

/// Random numbers made beforehand, so that a loop measures the control and not the generator.
inline std::vector<std::uint32_t> random_numbers() {
    std::mt19937 random(1);
    std::vector<std::uint32_t> numbers(std::size_t{1} << 16);
    for (auto& number : numbers) {
        number = static_cast<std::uint32_t>(random());
    }
    return numbers;
}

inline std::size_t below(std::uint32_t number, std::size_t bound) {
    return static_cast<std::size_t>(std::uint64_t{number} * bound >> 32);
}

template <asyncrl::staleness_control Control>
class closed_loop {
  public:
    closed_loop(Control control, std::size_t most_in_flight)
        : control_(std::move(control)), batch_(static_cast<std::size_t>(control_.batch_size())) {
        in_flight_.reserve(most_in_flight);
    }

    void train_one_batch() {
        while (!control_.can_take()) {
            while (auto const ticket = control_.reserve(7)) {
                in_flight_.push_back(*ticket);
            }
            auto& done = in_flight_[below(numbers_[turn_++ & 0xffff], in_flight_.size())];
            control_.occupy(done);
            done = in_flight_.back();
            in_flight_.pop_back();
        }
        control_.take(batch_);
        control_.begin_publish();
        control_.commit_publish();
        benchmark::DoNotOptimize(batch_.data());
    }

  private:
    Control control_;
    std::vector<asyncrl::taken_unit<std::uint32_t>> batch_;
    std::vector<asyncrl::unit_ticket> in_flight_;
    std::vector<std::uint32_t> numbers_ = random_numbers();
    std::size_t turn_ = 0;
};

/// From reserve to take, per unit. Arguments: units per batch, bound, and units of history before the clock starts.
template <typename Control, typename Options>
void unit_cost(benchmark::State& state) {
    std::int64_t const size = state.range(0);
    closed_loop<Control> loop(Control(Options{.batch_size = size, .max_staleness = state.range(1)}),
                              static_cast<std::size_t>(size * (state.range(1) + 1)));
    for (std::int64_t units = 0; units < state.range(2) || units < size * (2 * state.range(1) + 2); units += size) {
        loop.train_one_batch();
    }
    std::int64_t units = 0;
    for (auto _ : state) {
        loop.train_one_batch();
        units += size;
    }
    state.SetItemsProcessed(units);
    state.counters["per_unit"] =
        benchmark::Counter(static_cast<double>(units), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
