// SPDX-License-Identifier: Apache-2.0
/// @file What one unit costs the ledger, beside the slot buffer; and both after a history of a thousand and of a million units.
#include "closed_loop.hpp"

#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

namespace {

using ledger = asyncrl::deadline_ledger<std::uint32_t>;
using slots = asyncrl::slot_buffer<std::uint32_t>;

void deadline_ledger_unit(benchmark::State& state) {
    unit_cost<ledger, asyncrl::deadline_ledger_options>(state);
}
void slot_buffer_unit(benchmark::State& state) {
    unit_cost<slots, asyncrl::slot_buffer_options>(state);
}
BENCHMARK(deadline_ledger_unit)
    ->ArgsProduct({{64, 512, 4096, 65536}, {0, 1, 4, 16}, {0}})
    ->ArgNames({"batch", "staleness", "history"});
BENCHMARK(slot_buffer_unit)->ArgsProduct({{64, 512, 4096}, {4}, {0}})->ArgNames({"batch", "staleness", "history"});

BENCHMARK(deadline_ledger_unit)->ArgsProduct({{64}, {4}, {1'000, 1'000'000}})->ArgNames({"batch", "staleness", "history"});
BENCHMARK(slot_buffer_unit)->ArgsProduct({{64}, {4}, {1'000, 1'000'000}})->ArgNames({"batch", "staleness", "history"});

}  // namespace
