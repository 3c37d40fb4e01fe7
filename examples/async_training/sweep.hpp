// SPDX-License-Identifier: Apache-2.0
/// @file The experiment: what staleness costs, and how much of it the corrections win back.
#pragma once

#include "options.hpp"
#include "report.hpp"
#include "run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// One line of the table: a lag and a correction, one run per seed.
struct sweep_cell {
    options settings;
    std::vector<summary> runs;

    [[nodiscard]] double mean(double summary::*field) const {
        double sum = 0;
        for (summary const& run : runs) {
            sum += run.*field;
        }
        return sum / static_cast<double>(runs.size());
    }
    /// Standard deviation from seed to seed.
    [[nodiscard]] double deviation(double summary::*field) const {
        double squares = 0;
        for (summary const& run : runs) {
            squares += std::pow(run.*field - mean(field), 2);
        }
        return std::sqrt(squares / static_cast<double>(runs.size() - 1));
    }
};

inline std::vector<sweep_cell> sweep_cells(options const& o) {
    std::vector<sweep_cell> cells;
    for (int const lag : {0, 2, 4, 8}) {
        for (std::size_t i = 0; i < correction_names.size(); ++i) {
            auto const weight = static_cast<correction>(i);
            bool const is_wanted =
                (!o.lag || *o.lag == lag) && (o.sweep_weights ? weight != correction::sat_tis : weight == o.weight);
            // At lag 0 in fp32 rollout and old policy agree to the bit and every weight is 1: no correction stands for those.
            bool const repeats = o.sweep_weights && lag == 0 && o.engines == precision::fp32 &&
                                 (weight == correction::tis || weight == correction::mis);
            if (is_wanted && !repeats) {
                sweep_cell& cell = cells.emplace_back(sweep_cell{o, std::vector<summary>(static_cast<std::size_t>(o.seeds))});
                cell.settings.lag = lag;
                cell.settings.weight = weight;
                cell.settings.threads = 1;
            }
        }
    }
    return cells;
}

inline void print_tables(std::vector<sweep_cell> const& cells) {
    auto const label = [](sweep_cell const& cell) {
        return fmt::format("{:3} {:<10}", *cell.settings.lag, correction_names[static_cast<std::size_t>(cell.settings.weight)]);
    };
    fmt::print("\nlag correction | {:<27} | mismatch, last | w > 2  w < 1 | clipped | {:<21} | entropy | collapsed\n",
               "reward by quarter", "held out");
    for (sweep_cell const& cell : cells) {
        auto const mean = [&](double summary::*field) { return cell.mean(field); };
        fmt::print("{} | {:.2f} {:.2f} {:.2f} {:.2f} ± {:.3f} | {:8.3f} {:5.3f} | {:.3f}  {:.3f} |", label(cell),
                   mean(&summary::first_quarter), mean(&summary::second_quarter), mean(&summary::third_quarter),
                   mean(&summary::last_quarter), cell.deviation(&summary::last_quarter), mean(&summary::mismatch),
                   mean(&summary::last_mismatch), mean(&summary::over_cap), mean(&summary::below_one));
        fmt::print(" {:7.4f} | {:.3f} ± {:.3f} ({:.3f}) | {:7.3f} | {:.0f} of {}\n", mean(&summary::clipped),
                   mean(&summary::held_out), cell.deviation(&summary::held_out), mean(&summary::held_out_error),
                   mean(&summary::entropy), mean(&summary::collapsed) * static_cast<double>(cell.runs.size()),
                   cell.runs.size());
    }
    fmt::print(
        "means over the seeds; ± their standard deviation (last quarter's reward, held-out rate); in parentheses the standard\n"
        "error of one held-out rate. mismatch: mean |log w| in nats per token, w = old / rollout; w and clipped: shares of\n"
        "tokens; entropy: nats per token in the last quarter\n");
    fmt::print("\nlag correction |   tokens | publishing | generating / training\n");
    for (sweep_cell const& cell : cells) {
        fmt::print("{} | {:8.0f} | {:8.3f} s | {:8.2f}\n", label(cell), cell.mean(&summary::tokens),
                   cell.mean(&summary::publishing_seconds), cell.mean(&summary::generation_ratio));
    }
}

/// Runs all cells with all seeds, `threads` runs at a time, and prints the tables. Returns the runs as JSON.
inline std::string sweep(options const& o) {
    std::vector<sweep_cell> cells = sweep_cells(o);
    std::vector<policy<float>> starts;
    for (int i = 0; i < o.seeds; ++i) {
        starts.push_back(warm_start(o.seed + static_cast<std::uint64_t>(i), o.warm_start));
    }
    std::size_t const total = cells.size() * static_cast<std::size_t>(o.seeds);
    auto const settings_of = [&](std::size_t i) {
        options settings = cells[i % cells.size()].settings;
        settings.seed += i / cells.size();
        return settings;
    };
    progress const bar(static_cast<int>(total));
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    int done = 0;
    auto const work = [&] {
        for (std::size_t i = next++; i < total; i = next++) {
            auto const [result, trained] = run_training(settings_of(i), starts[i / cells.size()], [](step_report const&) {});
            summary const s = summarize(result, trained);
            std::lock_guard const lock(mutex);
            cells[i % cells.size()].runs[i / cells.size()] = s;
            bar.show(++done, "runs");
        }
    };
    {
        std::vector<std::jthread> workers;
        for (int i = 0; i < o.threads; ++i) {
            workers.emplace_back(work);
        }
    }
    print_tables(cells);
    std::vector<std::string> runs;
    for (std::size_t i = 0; i < total; ++i) {
        runs.push_back(fmt::format("{{{}}}", json_members(settings_of(i), cells[i % cells.size()].runs[i / cells.size()])));
    }
    return fmt::format("{{\"runs\": [\n{}\n]}}\n", fmt::join(runs, ",\n"));
}
