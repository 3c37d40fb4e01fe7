// SPDX-License-Identifier: Apache-2.0
/// @file Asynchronous reinforcement learning in one program; `--help` lists what can be varied.
///
/// Read run.hpp first: it is the loop. rollout.hpp and trainer.hpp are its two sides.
#include "options.hpp"
#include "report.hpp"
#include "run.hpp"
#include "sweep.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>

namespace {

std::string train(options const& o) {
    progress const bar(o.steps);
    int done = 0;
    double reward = 0;
    policy<float> const start = warm_start(o.seed, o.warm_start);
    double const held_out_before = held_out_rate(start);
    auto const [result, trained] = run_training(o, start, [&](step_report const& step) {
        reward = done == 0 ? step.reward : reward + 0.05 * (step.reward - reward);
        bar.show(++done, fmt::format("reward {:.2f}  staleness {:.2f}  mismatch {:.3f}", reward, step.staleness,
                                     step.mismatch.mean(&asyncrl::mismatch_report::sum_range::absolute_log_ratio)));
    });
    summary const s = summarize(result, trained);
    print_run(o, result, held_out_before, s);
    return json(o, result, held_out_before, s);
}

}  // namespace

int main(int argc, char** argv) try {
    options const o = read_options({argv + 1, argv + argc});
    if (o.help) {
        return 0;
    }
    std::ofstream file;
    if (!o.json.empty()) {
        file.open(o.json);  // now, since after the training it would be too late to complain
        if (!file) {
            throw usage_error(fmt::format("--json '{}': cannot be written", o.json));
        }
    }
    std::string const report = o.sweep ? sweep(o) : train(o);
    if (!o.json.empty() && !(file << report << std::flush)) {
        throw std::runtime_error(fmt::format("--json '{}': the disk is full or gone", o.json));
    }
    return 0;
} catch (usage_error const& error) {
    fmt::print(stderr, "async_training: {}\n", error.what());
    return 2;
} catch (std::exception const& error) {
    fmt::print(stderr, "async_training: {}\n", error.what());
    return 1;
}
