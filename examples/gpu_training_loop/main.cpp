// SPDX-License-Identifier: Apache-2.0
/// @file async_training with tokens, weights and gradients on a GPU; `--help` lists what can be varied.
///
/// The loop is async_training's run.hpp, word for word: control is the host's. Read steps.cu for the library's part in a
/// training step, and sides.hpp for streams and weights. Ends with 77 where there is no device.
#include "../async_training/report.hpp"
#include "../async_training/run.hpp"
#include "sides.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>

int main(int argc, char** argv) try {
    options const o = read_options({argv + 1, argv + argc});
    if (o.help) {
        return 0;
    }
    if (o.sweep) {
        throw usage_error("--sweep is for async_training");
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        fmt::print("skipped: no device\n");
        return 77;
    }
    std::ofstream file;
    if (!o.json.empty()) {
        file.open(o.json);
        if (!file) {
            throw usage_error(fmt::format("--json '{}': cannot be written", o.json));
        }
    }
    policy<float> const start = warm_start(o.seed, o.warm_start);
    double const held_out_before = held_out_rate(start);
    progress const bar(o.steps);
    int done = 0;
    auto const [result, trained] = run_training<on_device>(
        o, start, [&](step_report const& step) { bar.show(++done, fmt::format("reward {:.2f}", step.reward)); });
    summary const s = summarize(result, trained);
    print_run(o, result, held_out_before, s);
    if (!o.json.empty() && !(file << json(o, result, held_out_before, s) << std::flush)) {
        throw std::runtime_error(fmt::format("--json '{}': the disk is full or gone", o.json));
    }
    return 0;
} catch (usage_error const& error) {
    fmt::print(stderr, "gpu_training_loop: {}\n", error.what());
    return 2;
} catch (std::exception const& error) {
    fmt::print(stderr, "gpu_training_loop: {}\n", error.what());
    return 1;
}
