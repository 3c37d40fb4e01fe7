// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <queue>
#include <random>
#include <vector>

// The correctness run of the Reserve-Occupy protocol: 16 groups of 8 trajectories per batch, 80 trajectories generated at a
// time, log-normal lengths with a long tail, 100 batches for each bound from 0 to 5. Time is simulated.

using namespace asyncrl;

namespace {

constexpr std::int64_t groups_per_batch = 16;
constexpr std::int64_t group_size = 8;
constexpr int batches = 100;
constexpr double training_time = 1.2;  // in units of the median generation

/// Trajectories of each staleness (column) in each batch (row).
using table = std::vector<std::array<std::int64_t, 6>>;

struct run_result {
    table seen;
    unit_counters counters;
    double longest = 0;  // generation of a group
};

/// A group's time is that of its longest member; members of one prompt are alike.
double generation_time(std::mt19937& random) {
    std::normal_distribution<double> normal;
    double const prompt = 0.7 * normal(random);
    double longest = 0;
    for (int member = 0; member < group_size; ++member) {
        longest = std::max(longest, std::exp(prompt + 0.5 * normal(random)));
    }
    return longest;
}

template <typename Control, typename Options>
run_result simulate(std::int64_t bound) {
    Control control(Options{.batch_size = groups_per_batch, .max_staleness = bound, .max_in_flight = 80 / group_size});
    struct ending {
        double time;
        unit_ticket ticket;
        bool operator>(ending const& other) const { return time > other.time; }
    };
    std::priority_queue<ending, std::vector<ending>, std::greater<>> generating;
    std::mt19937 random(static_cast<unsigned>(bound) + 1);
    std::vector<taken_unit<int>> batch(groups_per_batch);
    run_result result;
    double now = 0;
    double trained_at = 0;  // when the batch in training is done
    while (result.seen.size() < batches) {
        if (control.in_training() && (generating.empty() || trained_at <= generating.top().time)) {
            now = std::max(now, trained_at);
            control.publish();
        } else if (!generating.empty()) {
            now = generating.top().time;
            control.occupy(generating.top().ticket);
            generating.pop();
        }
        if (auto const number = control.take(batch)) {
            result.seen.emplace_back();
            for (auto const& unit : batch) {
                result.seen.back().at(static_cast<std::size_t>(unit.staleness)) += group_size;
            }
            trained_at = now + training_time;
        }
        while (auto const ticket = control.reserve()) {
            double const time = generation_time(random);
            result.longest = std::max(result.longest, time);
            generating.push({now + time, *ticket});
        }
    }
    result.counters = control.counters();
    return result;
}

/// Ten rows of ten batches: how many trajectories of each staleness were trained.
void print(char const* control, std::int64_t bound, table const& seen) {
    std::printf("%s, bound %d: trajectories by staleness\n  batches ", control, static_cast<int>(bound));
    for (int age = 0; age <= bound; ++age) {
        std::printf("%7d", age);
    }
    for (int row = 0; row < 10; ++row) {
        std::printf("\n  %2d - %2d ", 10 * row, 10 * row + 9);
        for (std::size_t age = 0; age <= static_cast<std::size_t>(bound); ++age) {
            std::int64_t sum = 0;
            for (int i = 0; i < 10; ++i) {
                sum += seen[static_cast<std::size_t>(10 * row + i)][age];
            }
            std::printf("%7d", static_cast<int>(sum));
        }
    }
    std::printf("\n");
}

template <typename Control, typename Options>
void run_all(char const* name) {
    for (std::int64_t bound = 0; bound <= 5; ++bound) {
        run_result const result = simulate<Control, Options>(bound);
        print(name, bound, result.seen);
        for (auto const& row : result.seen) {
            std::int64_t full = 0;
            for (std::int64_t age = 0; age < 6; ++age) {
                full += row[static_cast<std::size_t>(age)];
                REQUIRE((age <= bound || row[static_cast<std::size_t>(age)] == 0));
            }
            REQUIRE(full == groups_per_batch * group_size);
        }
        REQUIRE(result.counters.taken == batches * groups_per_batch);
        REQUIRE(result.counters.dropped_total() == 0);
        REQUIRE(result.longest > 10 * training_time);  // the tail outlasts several batches
        if (bound > 0) {
            auto const is_older = [](auto const& row) { return row[0] < groups_per_batch * group_size; };
            REQUIRE(std::any_of(result.seen.begin(), result.seen.end(), is_older));
        }
    }
}

}  // namespace

TEST_CASE("every batch is full, none of its units exceeds the bound, and none is dropped, however long the tail", "[bound]") {
    SECTION("slot_buffer") {
        run_all<slot_buffer<int>, slot_buffer_options>("slot_buffer");
    }
    SECTION("deadline_ledger") {
        run_all<deadline_ledger<int>, deadline_ledger_options>("deadline_ledger");
    }
}
