// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/controller.hpp>
#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace asyncrl;
using namespace std::chrono_literals;

namespace {

using control = controller<slot_buffer<int>>;
using unit_batch = std::vector<taken_unit<int>>;

slot_buffer<int> buffer_of(slot_buffer_options const& options) {
    return slot_buffer<int>(options);
}

bool is_conserved(unit_counters const& counters) {
    return counters.admitted == counters.in_flight + counters.completed + counters.taken + counters.dropped_total();
}

/// Returns when so many threads are asleep in a reserve, or in a take, so that what comes next must wake them.
void await_sleepers(control const& c, std::int64_t reserves, std::int64_t takes = 0) {
    while (c.waiting_reserves() != reserves || c.waiting_takes() != takes) {
        std::this_thread::yield();
    }
}

/// A thread that makes one blocking call and keeps how it ended.
template <typename Call>
class caller {
  public:
    explicit caller(Call call) : thread_([this, call](std::stop_token const& stop) { status_ = call(stop); }) {}

    wait_status join() {
        thread_.join();
        return status_;
    }
    void stop() { thread_.request_stop(); }

  private:
    wait_status status_ = wait_status::ok;
    std::jthread thread_;
};

}  // namespace

TEST_CASE("admission, result, batch and publish pass through the controller", "[controller]") {
    control c(buffer_of({.batch_size = 2, .max_staleness = 1}));
    unit_batch batch(2);
    auto first = c.reserve(10);
    auto second = c.try_reserve(11);
    REQUIRE((first && second));
    REQUIRE(first.unit.version() == policy_version{0});
    REQUIRE(c.try_take(batch).status == wait_status::timed_out);
    REQUIRE(second.unit.occupy() == ticket_status::ok);
    REQUIRE(first.unit.occupy(20) == ticket_status::ok);
    REQUIRE_FALSE(first.unit);
    auto const taken = c.take(batch);
    REQUIRE(taken.status == wait_status::ok);
    REQUIRE(taken.batch == policy_version{0});
    REQUIRE(batch[0].handle == 11);
    REQUIRE(batch[1].handle == 20);
    REQUIRE(c.begin_publish() == policy_version{1});
    REQUIRE(c.version() == policy_version{0});
    c.abort_publish();
    REQUIRE(c.publish() == policy_version{1});
    REQUIRE(c.inspect([](auto const& control) { return control.next_batch(); }) == policy_version{1});
}

TEST_CASE("a spent, moved or empty lease delivers nothing", "[controller]") {
    control c(buffer_of({.batch_size = 2, .max_staleness = 0}));
    control::lease empty;
    REQUIRE_FALSE(empty);
    REQUIRE(empty.occupy() == ticket_status::duplicate);
    auto result = c.reserve(1);
    control::lease moved = std::move(result.unit);
    REQUIRE(result.unit.occupy() == ticket_status::duplicate);
    REQUIRE(c.counters().in_flight == 1);
    REQUIRE(moved.occupy() == ticket_status::ok);
    REQUIRE(moved.occupy() == ticket_status::duplicate);
    REQUIRE(moved.discard() == ticket_status::duplicate);
    REQUIRE(c.counters().completed == 1);
    moved = c.reserve(2).unit;
    moved = control::lease{};  // overwriting gives the unit up
    REQUIRE(c.counters().in_flight == 0);
    REQUIRE(c.counters().dropped_for(drop_reason::discarded) == 1);
}

TEST_CASE("a released ticket is delivered by somebody else, once", "[controller]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 0}));
    unit_ticket ticket;
    {
        auto result = c.reserve(1);
        ticket = result.unit.release();
    }
    REQUIRE(c.counters().in_flight == 1);
    REQUIRE(c.occupy(ticket, 5) == ticket_status::ok);
    REQUIRE(c.occupy(ticket) == ticket_status::duplicate);
    REQUIRE(c.filter(ticket) == ticket_status::ok);
    REQUIRE(c.occupy(ticket) == ticket_status::gone);
    REQUIRE(c.counters().dropped_for(drop_reason::filtered) == 1);
}

TEST_CASE("workers that throw at 500 random points leave nothing reserved", "[controller]") {
    control c(buffer_of({.batch_size = 4, .max_staleness = 1, .max_in_flight = 3}));
    std::mt19937 random(11);
    unit_batch batch(4);
    int throws = 0;
    while (throws < 500) {
        unsigned const point = static_cast<unsigned>(random() % 4);
        try {
            auto result = c.try_reserve(1);
            REQUIRE(result);
            if (point == 0) {
                throw std::runtime_error("before the first token");
            }
            auto elsewhere = std::move(result.unit);
            if (point == 1) {
                throw std::runtime_error("half way");
            }
            REQUIRE(elsewhere.occupy() == ticket_status::ok);
            if (point == 2) {
                throw std::runtime_error("after the result");
            }
        } catch (std::runtime_error const&) {
            ++throws;
        }
        REQUIRE(c.counters().in_flight == 0);
        if (c.try_take(batch)) {
            c.publish();
        }
    }
    unit_counters const counters = c.counters();
    REQUIRE(is_conserved(counters));
    REQUIRE(counters.dropped_for(drop_reason::discarded) > 300);
    REQUIRE(counters.taken > 100);
}

TEST_CASE("close ends waiting reserves, late results and, after what is ready, taking", "[controller][close]") {
    control c(buffer_of({.batch_size = 2, .max_staleness = 1}));
    unit_batch batch(2);
    auto a = c.reserve(1);
    auto b = c.reserve(2);
    auto late = c.reserve(3);
    auto lost = c.reserve(4);
    a.unit.occupy();
    b.unit.occupy();
    caller waiting([&](std::stop_token const&) { return c.reserve(5).status; });
    caller timed([&](std::stop_token const&) { return c.reserve_for(std::chrono::hours::max(), 6).status; });
    await_sleepers(c, 2);
    c.close();
    REQUIRE(waiting.join() == wait_status::closed);
    REQUIRE(timed.join() == wait_status::closed);
    REQUIRE(c.is_closed());
    REQUIRE_FALSE(c.failure());
    REQUIRE(c.reserve(7).status == wait_status::closed);
    REQUIRE(c.try_reserve(7).status == wait_status::closed);
    REQUIRE(late.unit.occupy(9) == ticket_status::closed);
    lost.unit = {};
    REQUIRE(c.take(batch).status == wait_status::ok);
    REQUIRE(c.take(batch).status == wait_status::closed);
    c.publish();
    REQUIRE(c.take(batch).status == wait_status::closed);
    unit_counters const counters = c.counters();
    REQUIRE(counters.admitted == 4);
    REQUIRE(counters.taken == 2);
    REQUIRE(counters.in_flight == 0);
    REQUIRE(counters.dropped_for(drop_reason::closed) == 1);
    REQUIRE(counters.dropped_for(drop_reason::discarded) == 1);
}

TEST_CASE("after close batches that are ready come out one by one, with a publish in between", "[controller][close]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 2}));
    unit_batch batch(1);
    for (int unit = 0; unit < 3; ++unit) {
        REQUIRE(c.reserve(unit).unit.occupy() == ticket_status::ok);
    }
    c.close();
    for (int unit = 0; unit < 3; ++unit) {
        REQUIRE(c.take(batch));
        REQUIRE(c.take(batch).status == wait_status::closed);
        c.publish();
    }
    REQUIRE(c.take(batch).status == wait_status::closed);
    REQUIRE(c.counters().taken == 3);
}

TEST_CASE("close wakes a trainer whose batch can never fill", "[controller][close]") {
    control c(buffer_of({.batch_size = 2, .max_staleness = 0}));
    REQUIRE(c.reserve(1).unit.occupy() == ticket_status::ok);
    caller trainer([&](std::stop_token const&) {
        unit_batch batch(2);
        return c.take(batch).status;
    });
    await_sleepers(c, 0, 1);
    c.close();
    REQUIRE(trainer.join() == wait_status::closed);
    REQUIRE(c.counters().completed == 1);
}

TEST_CASE("a failure is not a clean end: it reaches both sides, with its first reason, even when batches are ready",
          "[controller][close]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 1}));
    unit_batch batch(1);
    REQUIRE(c.reserve(0).unit.occupy() == ticket_status::ok);
    auto late = c.reserve(1);
    caller waiting([&](std::stop_token const&) { return c.reserve(2).status; });
    await_sleepers(c, 1);
    bool const closed_before = GENERATE(false, true);
    if (closed_before) {
        c.close();
        REQUIRE(waiting.join() == wait_status::closed);
    }
    c.fail("engine 3 is gone");
    c.fail("a consequence");
    c.close();
    if (!closed_before) {
        REQUIRE(waiting.join() == wait_status::failed);
    }
    REQUIRE(c.take(batch).status == wait_status::failed);
    REQUIRE(c.try_take(batch).status == wait_status::failed);
    REQUIRE(c.try_reserve(3).status == wait_status::failed);
    REQUIRE(late.unit.occupy() == ticket_status::failed);
    REQUIRE(c.failure() == "engine 3 is gone");
    REQUIRE(is_conserved(c.counters()));
    REQUIRE(c.counters().in_flight == 0);
}

TEST_CASE("a producer that dies wakes the trainer with its failure", "[controller][close]") {
    control c(buffer_of({.batch_size = 4, .max_staleness = 1}));
    caller trainer([&](std::stop_token const&) {
        unit_batch batch(4);
        return c.take(batch).status;
    });
    await_sleepers(c, 0, 1);
    std::jthread producer([&] {
        try {
            auto result = c.reserve(1);
            throw std::runtime_error("out of memory");
        } catch (std::exception const& error) {
            c.fail(error.what());
        }
    });
    REQUIRE(trainer.join() == wait_status::failed);
    REQUIRE(c.failure() == "out of memory");
    producer.join();
    REQUIRE(c.counters().in_flight == 0);
}

TEST_CASE("a wait ends with its time", "[controller]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 0}));
    unit_batch batch(1);
    auto held = c.reserve(1);
    REQUIRE(c.reserve_for(1ms, 2).status == wait_status::timed_out);
    REQUIRE(c.reserve_for(-1h, 2).status == wait_status::timed_out);
    REQUIRE(c.reserve_for(std::chrono::hours::min(), 2).status == wait_status::timed_out);
    REQUIRE(c.reserve_until(control::clock::now(), 2).status == wait_status::timed_out);
    REQUIRE(c.try_reserve(2).status == wait_status::timed_out);
    REQUIRE(c.take_for(1ms, batch).status == wait_status::timed_out);
    REQUIRE(c.take_until(control::clock::now() + 1ms, batch).status == wait_status::timed_out);
    REQUIRE(held.unit.occupy() == ticket_status::ok);
    // What is possible at once needs no time.
    REQUIRE(c.take_for(-1h, batch).status == wait_status::ok);
}

TEST_CASE("a stop ends the caller's own wait, and its next call although a place is free", "[controller]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 0}));
    auto held = c.reserve(1);
    caller stopped([&](std::stop_token const& stop) { return c.reserve(2, stop).status; });
    caller timed([&](std::stop_token const& stop) { return c.reserve_for(1h, 3, stop).status; });
    caller trainer([&](std::stop_token const& stop) {
        unit_batch batch(1);
        return c.take(batch, stop).status;
    });
    caller patient([&](std::stop_token const&) { return c.reserve(4).status; });
    await_sleepers(c, 3, 1);
    stopped.stop();
    timed.stop();
    trainer.stop();
    REQUIRE(stopped.join() == wait_status::stopped);
    REQUIRE(timed.join() == wait_status::stopped);
    REQUIRE(trainer.join() == wait_status::stopped);
    REQUIRE(held.unit.discard() == ticket_status::ok);
    REQUIRE(patient.join() == wait_status::ok);
    std::stop_source source;
    source.request_stop();
    REQUIRE(c.reserve(5, source.get_token()).status == wait_status::stopped);
}

TEST_CASE("every event that frees a place or completes a batch wakes its waiter", "[controller]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 1, .max_in_flight = 1}));
    unit_batch batch(1);
    auto held = c.reserve(0);
    SECTION("a result frees a place of concurrency") {
        caller waiting([&](std::stop_token const&) { return c.reserve(1).status; });
        await_sleepers(c, 1);
        held.unit.occupy();
        REQUIRE(waiting.join() == wait_status::ok);
    }
    SECTION("a discard frees the place") {
        caller waiting([&](std::stop_token const&) { return c.reserve(1).status; });
        await_sleepers(c, 1);
        held.unit.discard();
        REQUIRE(waiting.join() == wait_status::ok);
    }
    SECTION("a cancel from outside frees the place, and the worker hears of it") {
        caller waiting([&](std::stop_token const&) { return c.reserve(1).status; });
        await_sleepers(c, 1);
        REQUIRE(c.cancel(held.unit.ticket(), drop_reason::timed_out) == ticket_status::ok);
        REQUIRE(waiting.join() == wait_status::ok);
        REQUIRE(held.unit.occupy() == ticket_status::gone);
    }
    SECTION("a publish opens a buffer, and a filter opens a slot") {
        held.unit.occupy();
        auto second = c.reserve(1);
        unit_ticket const ticket = second.unit.ticket();
        second.unit.occupy();
        caller waiting([&](std::stop_token const&) { return c.reserve(2).status; });
        await_sleepers(c, 1);
        bool const filters = GENERATE(false, true);
        if (filters) {
            REQUIRE(c.filter(ticket) == ticket_status::ok);
        } else {
            REQUIRE(c.take(batch));
            c.begin_publish();
            c.commit_publish();
        }
        REQUIRE(waiting.join() == wait_status::ok);
    }
    SECTION("a result, and then the publish, make the next batch takeable") {
        caller first([&](std::stop_token const&) {
            unit_batch mine(1);
            return c.take(mine).status;
        });
        await_sleepers(c, 0, 1);
        held.unit.occupy();
        REQUIRE(first.join() == wait_status::ok);
        c.reserve(1).unit.occupy();
        caller second([&](std::stop_token const&) {
            unit_batch mine(1);
            return c.take(mine).status;
        });
        await_sleepers(c, 0, 1);
        c.publish();
        REQUIRE(second.join() == wait_status::ok);
    }
    SECTION("a discard that lets a later result move forward makes the batch takeable") {
        control d(buffer_of({.batch_size = 1, .max_staleness = 2}));
        auto oldest = d.reserve(0);
        auto slow = d.reserve(1);
        auto other = d.reserve(2);
        oldest.unit.occupy();
        REQUIRE(d.take(batch));
        d.publish();
        REQUIRE(d.reserve(3).unit.occupy() == ticket_status::ok);
        caller trainer([&](std::stop_token const&) {
            unit_batch mine(1);
            return d.take(mine).status;
        });
        await_sleepers(d, 0, 1);
        slow.unit.discard();
        REQUIRE(trainer.join() == wait_status::ok);
        REQUIRE(other.unit.occupy() == ticket_status::ok);
    }
}

TEST_CASE("a publish wakes as many sleepers as it opens places", "[controller]") {
    control c(buffer_of({.batch_size = 3, .max_staleness = 0}));
    unit_batch batch(3);
    for (int unit = 0; unit < 3; ++unit) {
        REQUIRE(c.reserve(unit).unit.occupy() == ticket_status::ok);
    }
    REQUIRE(c.take(batch));
    std::array<control::reserve_result, 3> held;
    std::vector<std::jthread> threads;
    for (auto& mine : held) {
        threads.emplace_back([&] { mine = c.reserve(7); });
    }
    await_sleepers(c, 3);
    c.publish();
    threads.clear();  // joins: each of them keeps what it got, so only the publish can have woken the last one
    for (auto const& mine : held) {
        REQUIRE(mine.status == wait_status::ok);
        REQUIRE(mine.unit.version() == policy_version{1});
    }
    auto const table = c.inspect([](auto const& control) { return control.table(); });
    REQUIRE(table.size() == 3);
    REQUIRE(std::all_of(table.begin(), table.end(), [](auto const& slot) { return slot.state == slot_state::reserved; }));
}

TEST_CASE("when a cancel and a result meet exactly one of them wins", "[controller][threads]") {
    control c(buffer_of({.batch_size = 1, .max_staleness = 0}));
    int both = 0;
    int results = 0;
    for (int round = 0; round < 400; ++round) {
        auto held = c.reserve(round);
        unit_ticket const ticket = held.unit.ticket();
        std::atomic<int> ready{0};
        ticket_status cancelled{};
        std::jthread other([&] {
            ++ready;
            while (ready < 2) {
            }
            cancelled = c.cancel(ticket);
        });
        ++ready;
        while (ready < 2) {
        }
        ticket_status const delivered = held.unit.occupy();
        other.join();
        bool const result_won = delivered == ticket_status::ok && cancelled == ticket_status::duplicate;
        bool const cancel_won = delivered == ticket_status::gone && cancelled == ticket_status::ok;
        both += result_won != cancel_won ? 1 : 0;
        results += result_won ? 1 : 0;
        unit_counters const counters = c.counters();
        REQUIRE(counters.in_flight == 0);
        REQUIRE(counters.completed == (result_won ? 1 : 0));
        if (result_won) {
            REQUIRE(c.filter(ticket) == ticket_status::ok);
        }
        REQUIRE(c.inspect([](auto const& control) { return control.admissible(); }) == 1);
    }
    REQUIRE(both == 400);
    REQUIRE(c.counters().dropped_for(drop_reason::discarded) == 400 - results);
}

namespace {

struct tally {
    std::atomic<std::int64_t> delivered{0};
    std::atomic<std::int64_t> given_up{0};
    std::atomic<std::int64_t> refused{0};  // cancelled under the worker, or closed
};

/// Generates until it is told to stop: mostly delivers, sometimes throws, sometimes asks with a tiny timeout.
template <typename Control>
void work(controller<Control>& c, std::stop_token const& stop, unsigned seed, tally& all, std::mutex& guard,
          std::vector<unit_ticket>& started) {
    std::mt19937 random(seed);
    for (int serial = 0;; ++serial) {
        try {
            auto result = random() % 4 == 0 ? c.reserve_for(50us, serial, stop) : c.reserve(serial, stop);
            if (result.status == wait_status::timed_out) {
                continue;
            }
            if (!result) {
                return;
            }
            if (random() % 8 == 0) {
                std::lock_guard const lock(guard);
                started.push_back(result.unit.ticket());
            }
            if (random() % 16 == 0) {
                ++all.given_up;
                throw std::runtime_error("worker");
            }
            if (random() % 16 == 0) {
                std::this_thread::yield();
            }
            (result.unit.occupy() == ticket_status::ok ? all.delivered : all.refused)++;
        } catch (std::runtime_error const&) {
        }
    }
}

/// Six workers, one thread that cancels, filters and retags, and a trainer that closes in the end.
template <typename Control>
void keep_every_promise(Control underlying, std::int64_t in_flight, std::int64_t bound) {
    constexpr int batches = 250;
    controller<Control> c(std::move(underlying));
    tally all;
    std::mutex guard;
    std::vector<unit_ticket> started;
    std::atomic<std::int64_t> cancelled{0};
    std::atomic<std::int64_t> filtered{0};

    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < 6; ++i) {
        threads.emplace_back([&, i](std::stop_token const& stop) { work(c, stop, i, all, guard, started); });
    }
    threads.emplace_back([&](std::stop_token const& stop) {
        while (!stop.stop_requested()) {
            std::vector<unit_ticket> now;
            {
                std::lock_guard const lock(guard);
                now.swap(started);
            }
            for (unit_ticket const& ticket : now) {
                cancelled += c.cancel(ticket, drop_reason::timed_out) == ticket_status::ok ? 1 : 0;
                filtered += c.filter(ticket) == ticket_status::ok ? 1 : 0;
            }
            if (!now.empty()) {
                c.update([&](auto& held) {
                    auto const last = now.back();
                    return held.retag(last, std::max(last.version, held.version()));
                });
            }
            unit_counters const counters = c.counters();
            if (!is_conserved(counters) || counters.in_flight > in_flight) {
                c.fail("counters");
            }
            std::this_thread::yield();
        }
    });

    std::string wrong;
    std::vector<std::uint64_t> ids;
    std::jthread trainer([&] {
        unit_batch batch(6);
        for (int number = 0; number < batches && wrong.empty(); ++number) {
            auto const taken = number % 3 == 0 ? c.take_for(1h, batch) : c.take(batch);
            if (!taken || taken.batch.value != number) {
                wrong = "batch number";
            }
            for (auto const& unit : batch) {
                ids.push_back(unit.id);
                std::int64_t const age = number - unit.version.value;
                if (age < 0 || age > bound || unit.staleness != age) {
                    wrong = "bound";
                }
            }
            c.begin_publish();
            std::this_thread::yield();
            c.commit_publish();
        }
        bool const stops_first = in_flight == 5;
        if (stops_first) {
            for (auto& thread : threads) {
                thread.request_stop();
            }
        }
        c.close();
    });
    trainer.join();
    threads.back().request_stop();
    for (auto& thread : threads) {
        thread.join();
    }

    REQUIRE(wrong.empty());
    REQUIRE_FALSE(c.failure());
    std::sort(ids.begin(), ids.end());
    REQUIRE(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
    unit_counters const counters = c.counters();
    REQUIRE(is_conserved(counters));
    REQUIRE(counters.in_flight == 0);
    REQUIRE(counters.taken == batches * 6);
    REQUIRE(counters.taken == static_cast<std::int64_t>(ids.size()));
    REQUIRE(counters.dropped_for(drop_reason::timed_out) == cancelled);
    REQUIRE(counters.dropped_for(drop_reason::filtered) == filtered);
    REQUIRE(all.delivered == counters.taken + counters.completed + filtered);
    REQUIRE(counters.admitted == all.delivered + all.given_up + all.refused);
    REQUIRE(all.given_up + all.refused == counters.dropped_total() - filtered);
}

}  // namespace

TEST_CASE("eight threads keep every promise while they produce, throw, cancel, filter, train and close",
          "[controller][threads]") {
    std::int64_t const in_flight = GENERATE(2, 5, 40);
    std::int64_t const bound = GENERATE(0, 2);
    SECTION("over slots") {
        keep_every_promise(buffer_of({.batch_size = 6, .max_staleness = bound, .max_in_flight = in_flight}), in_flight, bound);
    }
    SECTION("over the ledger") {
        keep_every_promise(deadline_ledger<int>({.batch_size = 6, .max_staleness = bound, .max_in_flight = in_flight}),
                           in_flight, bound);
    }
}

TEST_CASE("a change from outside wakes those whom it serves, also when it throws", "[controller]") {
    controller<deadline_ledger<int>> c(deadline_ledger<int>({.batch_size = 1, .max_staleness = 0, .max_staleness_limit = 1}));
    auto held = c.reserve(0);
    caller waiting([&](std::stop_token const&) {
        auto result = c.reserve(1);
        (void)result.unit.release();
        return result.status;
    });
    while (c.waiting_reserves() != 1) {
        std::this_thread::yield();
    }
    bool const is_retag_ok = c.update([&](auto& ledger) { return ledger.retag(held.unit.ticket(), {0}); }) == ticket_status::ok;
    REQUIRE(is_retag_ok);
    auto const raise_then_throw = [](auto& ledger) {
        ledger.set_max_staleness(1);
        ledger.set_max_staleness(2);
    };
    REQUIRE_THROWS_AS(c.update(raise_then_throw), std::invalid_argument);
    REQUIRE(waiting.join() == wait_status::ok);
}

TEST_CASE("a sleeper that leaves without its place passes the wake-up on", "[controller][threads]") {
    // One place becomes free while one of two sleepers is told to stop. Nothing else happens afterwards, so the other one
    // is served by this wake-up or hangs.
    for (int round = 0; round < 600; ++round) {
        control c(buffer_of({.batch_size = 1, .max_staleness = 0}));
        auto held = c.reserve(0);
        caller leaving([&](std::stop_token const& stop) {
            auto result = c.reserve(1, stop);
            result.unit = {};
            return result.status;
        });
        await_sleepers(c, 1);
        caller patient([&](std::stop_token const&) { return c.reserve(2).status; });
        await_sleepers(c, 2);
        std::jthread stopper([&] { leaving.stop(); });
        held.unit.discard();
        REQUIRE(patient.join() == wait_status::ok);
        wait_status const left = leaving.join();
        REQUIRE((left == wait_status::ok || left == wait_status::stopped));
    }
}

TEST_CASE("sleepers with short times come and go, and the patient ones are all served", "[controller][threads]") {
    control c(buffer_of({.batch_size = 64, .max_staleness = 0, .max_in_flight = 1}));
    std::atomic<int> served{0};
    std::vector<std::jthread> hasty;
    for (unsigned i = 0; i < 4; ++i) {
        hasty.emplace_back([&, i] {
            std::mt19937 random(i);
            for (int turn = 0; turn < 300; ++turn) {
                (void)c.reserve_for(std::chrono::microseconds(random() % 60), 0);
            }
        });
    }
    std::vector<std::jthread> patient;
    for (int i = 0; i < 4; ++i) {
        patient.emplace_back([&] {
            for (int turn = 0; turn < 5000; ++turn) {
                auto result = c.reserve(1);
                served += result && result.unit.discard() == ticket_status::ok ? 1 : 0;
            }
        });
    }
    hasty.clear();
    patient.clear();
    REQUIRE(served == 20'000);
    REQUIRE(c.counters().in_flight == 0);
    REQUIRE(c.waiting_reserves() == 0);
}
