// SPDX-License-Identifier: Apache-2.0
/// @file The programs of docs/windows.md.
#include <asyncrl/staleness.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

bool window() {
    asyncrl::slot_buffer<int> buffer({.batch_size = 2, .max_staleness = 2});
    asyncrl::unit_ticket const first = *buffer.reserve(), second = *buffer.reserve();

    // [snippet: window]
    asyncrl::pending_groups<asyncrl::unit_ticket> waiting({.keep_versions = 1});
    auto const drop = [&](asyncrl::stale_notice<asyncrl::unit_ticket> const& stale) {
        buffer.filter(stale.handle, asyncrl::drop_reason::stale);  // its place is free again
    };

    buffer.occupy(first);  // a group of two trajectories, the second of them in two segments
    std::array const group{asyncrl::label_segment{"t1", 0, "3f2a91c"}, asyncrl::label_segment{"t2", 0, "77e0d12"},
                           asyncrl::label_segment{"t2", 1, "3f2a91c"}};
    waiting.add(first, group, drop);

    buffer.occupy(second);  // brings a version not seen before: the first group is not of the last version any more
    waiting.add(second, std::array{asyncrl::label_segment{"t3", 0, "b2c6d00"}}, drop);
    // [snippet: end]
    return buffer.counters().dropped_for(asyncrl::drop_reason::stale) == 1 && waiting.size() == 1;
}

bool limit() {
    asyncrl::version_runs runs;
    runs.append({7}, 50);
    runs.append({8}, 20);
    asyncrl::policy_version const engine_version{9};
    std::string answer;

    // [snippet: limit]
    asyncrl::span_limit const limit({.max_switches = 1});
    asyncrl::retry_budget group(2);
    if (auto const decision = limit.check(runs, engine_version); !decision) {
        answer = decision.error;  // for the client, with decision.version_span and decision.max_version_span
        group.reject();           // the whole group has failed
    }
    if (group.settle() == asyncrl::retry_verdict::retry) {
        runs.clear();  // reserve again, under the version of now
    }
    // [snippet: end]
    return answer == "partial_rollout_staleness_exceeded" && group.retries() == 1 && runs.tokens() == 0;
}

bool gate() {
    std::int64_t weights = 0;
    bool is_torn = false;
    asyncrl::version_runs runs;
    auto const make_token = [&](asyncrl::policy_version version) { is_torn = is_torn || weights != version.value; };
    auto const load_weights = [&](asyncrl::policy_version version) { weights = version.value; };

    // [snippet: gate]
    asyncrl::gate_controller gate(asyncrl::gate_mode::boundary);

    std::jthread const rollout([&] {
        auto generation = gate.enter();
        while (runs.tokens() < 2000 && generation.at_boundary() == asyncrl::wait_status::ok) {
            make_token(generation.version());
            runs.append(generation.version(), 1);
        }
    });

    for (std::int64_t version = 1; version <= 3; ++version) {
        if (gate.pause() == asyncrl::wait_status::ok) {  // the generation has stopped between two tokens
            gate.begin({version});
            load_weights({version});
            gate.commit();
        }
        gate.resume();
    }
    // [snippet: end]
    return !is_torn;
}

}  // namespace

int main() {
    return window() && limit() && gate() ? 0 : 1;
}
