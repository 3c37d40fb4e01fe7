// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/gate_controller.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

using namespace asyncrl;
using namespace std::chrono_literals;

namespace {

/// Weights that know their own checksum. Plain memory: the thread sanitizer sees an access that no gate orders.
struct weights {
    std::array<std::int64_t, 256> values{};

    void load(std::int64_t version) {
        for (std::int64_t& value : values) {
            value = version;
        }
    }
    bool are_of(std::int64_t version) const {
        std::int64_t sum = 0;
        for (std::int64_t const value : values) {
            sum += value;
        }
        return sum == version * static_cast<std::int64_t>(values.size());
    }
};

}  // namespace

TEST_CASE("no worker sees half of a swap", "[gate_controller]") {
    gate_mode const mode = GENERATE(gate_mode::boundary, gate_mode::drain);
    gate_controller gate(mode);
    weights engine;
    std::atomic<std::int64_t> torn = 0, wrong_length = 0, tokens_of_several = 0;
    std::atomic<std::int64_t> generations = 0;
    {
        std::vector<std::jthread> workers;
        for (int worker = 0; worker < 3; ++worker) {
            workers.emplace_back([&](std::stop_token const& stop) {
                version_runs runs;
                while (auto generation = gate.enter(stop)) {
                    runs.clear();
                    std::int64_t made = 0;
                    while (made < 20 && generation.at_boundary(stop) == wait_status::ok) {
                        torn += engine.are_of(generation.version().value) ? 0 : 1;
                        wrong_length += runs.append(generation.version(), 1) == append_status::appended ? 0 : 1;
                        ++made;
                    }
                    wrong_length += runs.tokens() == made ? 0 : 1;
                    tokens_of_several += runs.switches();
                    ++generations;
                }
            });
        }
        for (std::int64_t version = 1; version <= 40; ++version) {
            std::int64_t const before = generations;
            while (generations < before + 2) {
                std::this_thread::yield();
            }
            REQUIRE(gate.pause() == wait_status::ok);
            gate.begin({version});
            engine.load(version);
            gate.commit();
            gate.resume();
        }
        gate.close();
    }
    REQUIRE(torn == 0);
    REQUIRE(wrong_length == 0);
    if (mode == gate_mode::drain) {
        REQUIRE(tokens_of_several == 0);
    }
    REQUIRE(gate.inspect([](rollout_gate const& inner) { return inner.running() + inner.parked(); }) == 0);
    REQUIRE(gate.inspect([](rollout_gate const& inner) { return inner.version(); }) == policy_version{40});
}

TEST_CASE("a generation goes on under the new version after the pause", "[gate_controller]") {
    gate_controller gate(gate_mode::boundary);
    std::atomic<int> step = 0;
    policy_version before, after;
    std::jthread const worker([&] {
        auto generation = gate.enter();
        before = generation.version();
        step = 1;
        while (generation.at_boundary() == wait_status::ok && generation.version() == before) {
        }
        after = generation.version();
        generation.finish();
        step = 2;
    });
    while (step < 1) {
        std::this_thread::yield();
    }
    REQUIRE(gate.pause() == wait_status::ok);
    gate.begin({3});
    gate.commit();
    gate.resume();
    while (step < 2) {
        std::this_thread::yield();
    }
    REQUIRE(before == policy_version{0});
    REQUIRE(after == policy_version{3});
}

TEST_CASE("a generation that does not stop is given up, and told so at its next boundary", "[gate_controller]") {
    gate_controller gate(gate_mode::drain);
    auto generation = gate.enter();
    REQUIRE(gate.pause_for(1ms) == wait_status::timed_out);
    REQUIRE(generation.at_boundary() == wait_status::ok);
    REQUIRE(gate.await_quiet_for(0ms) == wait_status::timed_out);
    REQUIRE(gate.abandon() == 1);
    REQUIRE(gate.await_quiet() == wait_status::ok);
    REQUIRE(generation.at_boundary() == wait_status::timed_out);
    gate.begin({1});
    gate.commit();
    gate.resume();
    REQUIRE(generation.at_boundary() == wait_status::timed_out);  // also with no pause on
    REQUIRE(generation.finish() == gate_status::stale_epoch);
    auto next = gate.enter();
    REQUIRE(next.at_boundary() == wait_status::ok);
    REQUIRE(next.finish() == gate_status::ok);
}

TEST_CASE("a generation that is destroyed holds no pause up", "[gate_controller]") {
    gate_controller gate(gate_mode::boundary);
    {
        auto first = gate.enter();
        auto const second = std::move(first);
        REQUIRE_FALSE(first);
        first = gate.enter();
        REQUIRE(gate.inspect([](rollout_gate const& inner) { return inner.running(); }) == 2);
    }
    REQUIRE(gate.pause() == wait_status::ok);
}

TEST_CASE("stop and close wake who waits for the gate", "[gate_controller]") {
    gate_controller gate(gate_mode::boundary);
    auto generation = gate.enter();
    auto ended = gate.enter();
    REQUIRE(gate.pause_for(0ms) == wait_status::timed_out);
    std::stop_source stop;
    wait_status status = wait_status::ok;
    bool entered = true;
    {
        std::jthread const first([&] { status = generation.at_boundary(stop.get_token()); });
        std::jthread const second([&] { entered = static_cast<bool>(gate.enter(stop.get_token())); });
        ended.finish();
        REQUIRE(gate.await_quiet() == wait_status::ok);  // the first waits at its boundary
        stop.request_stop();
    }
    REQUIRE(status == wait_status::stopped);
    REQUIRE_FALSE(entered);

    {
        std::jthread const first([&] { status = generation.at_boundary(); });
        std::jthread const second([&] { entered = static_cast<bool>(gate.enter()); });
        gate.close();
    }
    REQUIRE(status == wait_status::closed);
    REQUIRE_FALSE(entered);
    REQUIRE_FALSE(gate.enter());
    REQUIRE_THROWS_AS(gate.pause(), std::invalid_argument);  // the pause of above is still on
    gate.resume();
    REQUIRE_FALSE(gate.enter());
    REQUIRE(generation.at_boundary() == wait_status::closed);
}
