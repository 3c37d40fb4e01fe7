// SPDX-License-Identifier: Apache-2.0
/// @file The programs of docs/windows.md.
#include <asyncrl/staleness.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stop_token>
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

bool threads() {
    using buffer = asyncrl::slot_buffer<int>;
    using asyncrl::stale_notice, asyncrl::unit_ticket;
    asyncrl::controller control(buffer({.batch_size = 2, .max_staleness = 2}));
    asyncrl::pending_groups<unit_ticket> waiting({.keep_versions = 1});
    std::int64_t stale_groups = 0;

    auto const rollout = [&](std::stop_token const& stop) {
        while (auto admitted = control.reserve({}, stop)) {
            std::array const group{asyncrl::version_segment{0, 0, admitted.unit.version()}};
            int const result = 1;
            unit_ticket const unit = admitted.unit.release();
            // [snippet: finished]
            control.update([&](buffer& slots) {  // in one step, so that no batch is taken in between
                if (slots.occupy(unit, result) == asyncrl::ticket_status::ok) {
                    waiting.add(unit, group, [&](stale_notice<unit_ticket> const& stale) {
                        bool const was_here =
                            slots.filter(stale.handle, asyncrl::drop_reason::stale) == asyncrl::ticket_status::ok;
                        stale_groups += was_here ? 1 : 0;  // or else a batch has just taken it
                    });
                }
            });
            // [snippet: end]
        }
    };
    {
        std::jthread const first(rollout), second(rollout);
        std::vector<asyncrl::taken_unit<int>> batch(2);
        for (int step = 0; step < 50 && control.take(batch); ++step) {
            // [snippet: taken]
            control.update([&](buffer&) {
                waiting.remove_if([&](unit_ticket const& unit) {
                    return std::any_of(batch.begin(), batch.end(), [&](auto const& taken) { return taken.id == unit.id; });
                });
            });
            // [snippet: end]
            control.publish();
        }
        control.close();
    }
    auto const counters = control.counters();
    return counters.taken == 100 && counters.dropped_for(asyncrl::drop_reason::stale) == stale_groups &&
           waiting.size() == counters.completed;
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

    std::jthread rollout([&] {
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
    rollout.join();
    return !is_torn && runs.tokens() == 2000;
}

}  // namespace

int main() {
    return window() && threads() && limit() && gate() ? 0 : 1;
}
