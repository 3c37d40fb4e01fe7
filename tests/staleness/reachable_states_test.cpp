// SPDX-License-Identifier: Apache-2.0
#include "brute_force.hpp"
#include "catch.hpp"

#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

// Small controls are explored completely: every sequence of reserve, occupy, discard, filter, take and publish leads to one of
// finitely many states, if batches are counted from the next one. Each is visited once and checked.

using namespace asyncrl;

namespace {

struct step {
    char call = 'r';        // reserve, occupy, discard, filter, take, publish
    std::size_t which = 0;  // unit in the order of the view
};

struct unit_seen {
    std::int64_t place = 0;  // which slot; -1 in flight without one
    std::int64_t last = 0;   // the last batch that it may use, from the next batch on
    bool is_completed = false;
    unit_ticket ticket = {};

    auto order() const { return std::tuple(place, last, is_completed, ticket.id); }
};

/// A control together with its units.
template <typename Control, typename Options>
class actor {
  public:
    explicit actor(Options const& options) : control_(options) {}

    Control const& control() const { return control_; }
    std::string const& wrong() const { return wrong_; }

    void apply(step const& what) {
        if (what.call == 'r') {
            if (auto const ticket = control_.reserve()) {
                units_.push_back({.ticket = *ticket});
            }
        } else if (what.call == 't') {
            take();
        } else if (what.call == 'p') {
            control_.publish();
        } else {
            std::uint64_t const id = view()[what.which].ticket.id;
            auto const unit =
                std::find_if(units_.begin(), units_.end(), [&](auto const& each) { return each.ticket.id == id; });
            bool const leaves = what.call == 'o' ? !occupy(*unit) : drop(*unit, what.call);
            if (leaves) {
                units_.erase(unit);
            }
        }
        unit_counters const& counters = control_.counters();
        if (counters.admitted != counters.in_flight + counters.completed + counters.taken + counters.dropped_total() ||
            counters.in_flight + counters.completed != static_cast<std::int64_t>(units_.size())) {
            wrong_ = "conservation";
        }
    }

    /// All units in a fixed order.
    std::vector<unit_seen> view() const {
        std::vector<unit_seen> units = units_;
        for (unit_seen& each : units) {
            each.place = -1;
            each.last = each.ticket.version.value + control_.max_staleness() - control_.next_batch().value;
        }
        if constexpr (std::is_same_v<Options, slot_buffer_options>) {
            auto const table = control_.table();
            for (std::size_t i = 0; i < table.size(); ++i) {
                for (unit_seen& each : units) {
                    if (table[i].state != slot_state::empty && table[i].id == each.ticket.id) {
                        each.place = static_cast<std::int64_t>(i);
                    }
                }
            }
        }
        std::sort(units.begin(), units.end(), [](auto const& a, auto const& b) { return a.order() < b.order(); });
        return units;
    }

    std::string key() const {
        std::string text = std::to_string(control_.next_batch().value - control_.version().value);
        for (unit_seen const& each : view()) {
            text += ' ' + std::to_string(each.place) + (each.is_completed ? '*' : '.') +
                    std::to_string(std::max<std::int64_t>(each.last, -1));
        }
        return text;
    }

    std::vector<step> steps() const {
        std::vector<step> possible;
        if (control_.admissible() > 0) {
            possible.push_back({'r', 0});
        }
        if (control_.can_take()) {
            possible.push_back({'t', 0});
        }
        if (control_.in_training()) {
            possible.push_back({'p', 0});
        }
        auto const units = view();
        for (std::size_t i = 0; i < units.size(); ++i) {
            bool const repeats = i > 0 && units[i].place == units[i - 1].place && units[i].last == units[i - 1].last &&
                                 units[i].is_completed == units[i - 1].is_completed;
            if (repeats) {
                continue;
            }
            if (units[i].is_completed) {
                possible.push_back({'f', i});
            } else {
                possible.push_back({'o', i});
                possible.push_back({'d', i});
            }
        }
        return possible;
    }

    void check() {
        std::int64_t const size = control_.batch_size();
        for (unit_seen const& each : view()) {
            bool const is_expired = each.last < 0 && !each.is_completed && control_.options().surplus > 0;
            bool const is_in_bound = each.last >= 0 && each.place / (size + control_.options().surplus) <= each.last;
            if (!is_expired && !is_in_bound && each.place >= 0) {
                wrong_ = "bound";
            }
        }
        if (control_.options().surplus == 0) {
            check_readiness();
        }
    }

    /// Completes all that is in flight, from the front or from the back, and admits what fits, until a batch is ready.
    bool progresses(bool from_front) {
        if (control_.in_training()) {
            apply({'p', 0});
        }
        while (!control_.can_take()) {
            auto const units = view();
            auto const is_flying = [](unit_seen const& each) { return !each.is_completed; };
            auto const first = std::find_if(units.begin(), units.end(), is_flying);
            auto const last = std::find_if(units.rbegin(), units.rend(), is_flying);
            if (first != units.end()) {
                std::size_t const which = from_front ? static_cast<std::size_t>(first - units.begin())
                                                     : static_cast<std::size_t>(units.rend() - last) - 1;
                apply({'o', which});
            } else if (control_.admissible() > 0) {
                apply({'r', 0});
            } else {
                return false;
            }
        }
        return wrong_.empty();
    }

  private:
    bool occupy(unit_seen& unit) {
        ticket_status const status = control_.occupy(unit.ticket);
        unit.is_completed = status == ticket_status::ok;
        bool const is_legal =
            status == ticket_status::ok || (status == ticket_status::oversampled && control_.options().surplus > 0);
        wrong_ = is_legal ? wrong_ : "a unit found no place";
        return unit.is_completed;
    }
    bool drop(unit_seen const& unit, char call) {
        ticket_status const status = call == 'd' ? control_.discard(unit.ticket) : control_.filter(unit.ticket);
        wrong_ = status == ticket_status::ok ? wrong_ : "drop";
        return true;
    }
    void take() {
        std::vector<taken_unit<int>> batch(static_cast<std::size_t>(control_.batch_size()));
        if (!control_.take(batch)) {
            wrong_ = "take";
            return;
        }
        for (auto const& unit : batch) {
            std::size_t const known =
                std::erase_if(units_, [&](auto const& each) { return each.ticket.id == unit.id && each.is_completed; });
            if (known != 1 || unit.staleness < 0 || unit.staleness > control_.max_staleness()) {
                wrong_ = "taken unit";
            }
        }
    }
    void check_readiness() {
        std::vector<brute_force::unit> units;
        for (unit_seen const& each : view()) {
            units.push_back({each.last, each.is_completed, 1});
        }
        std::int64_t const batches = control_.version().value + control_.max_staleness() - control_.next_batch().value + 1;
        brute_force::batches const sizes(static_cast<std::size_t>(std::max<std::int64_t>(batches, 1)), control_.batch_size());
        if constexpr (std::is_same_v<Options, deadline_ledger_options>) {
            bool const is_ready = control_.readiness().state == readiness_state::ready;
            wrong_ = is_ready == brute_force::is_ready(units, sizes) ? wrong_ : "readiness";
        } else if (control_.state(control_.next_batch()) == buffer_state::ready) {  // then so is the ledger
            wrong_ = brute_force::is_ready(units, sizes) ? wrong_ : "ready although no choice is safe";
        }
    }

    Control control_;
    std::vector<unit_seen> units_;
    std::string wrong_;
};

/// Visits every reachable state; returns how many there are, or -1 after a failure.
template <typename Control, typename Options>
std::int64_t explore(Options const& options) {
    struct node {
        std::size_t parent;
        step last;
    };
    std::vector<node> nodes{{0, {}}};
    std::unordered_set<std::string> seen;
    auto const replay = [&](std::size_t index) {
        std::vector<step> path;
        for (; index != 0; index = nodes[index].parent) {
            path.push_back(nodes[index].last);
        }
        actor<Control, Options> one(options);
        std::for_each(path.rbegin(), path.rend(), [&](step const& each) { one.apply(each); });
        return one;
    };
    seen.insert(replay(0).key());
    for (std::size_t index = 0; index < nodes.size(); ++index) {
        auto here = replay(index);
        here.check();
        auto const possible = here.steps();
        bool const progresses = here.progresses(true) && replay(index).progresses(false);
        if (!here.wrong().empty() || !progresses) {
            auto const shown = replay(index);
            CAPTURE(shown.key(), here.wrong(), progresses);
            CHECK(false);
            return -1;
        }
        for (step const& next : possible) {
            auto there = replay(index);
            there.apply(next);
            if (!there.wrong().empty()) {
                CAPTURE(here.key(), next.call, there.wrong());
                CHECK(false);
                return -1;
            }
            if (seen.insert(there.key()).second) {
                nodes.push_back({index, next});
            }
        }
    }
    return static_cast<std::int64_t>(nodes.size());
}

}  // namespace

TEST_CASE("bound, conservation and progress hold in every state that a small slot buffer can reach", "[slot_buffer][states]") {
    auto const states = [](slot_buffer_options const& options) { return explore<slot_buffer<int>>(options); };
    REQUIRE(states({.batch_size = 1, .max_staleness = 0}) == 4);  // empty, reserved, occupied; in training
    std::int64_t total = 0;
    for (slot_buffer_options const& options : {slot_buffer_options{.batch_size = 1, .max_staleness = 1},
                                               {.batch_size = 1, .max_staleness = 2},
                                               {.batch_size = 1, .max_staleness = 3},
                                               {.batch_size = 2, .max_staleness = 1},
                                               {.batch_size = 3, .max_staleness = 1},
                                               {.batch_size = 2, .max_staleness = 1, .publish_interval = 2},
                                               {.batch_size = 1, .max_staleness = 1, .surplus = 1},
                                               {.batch_size = 3, .max_staleness = 2},
                                               {.batch_size = 1, .max_staleness = 4},
                                               {.batch_size = 2, .max_staleness = 1, .surplus = 1},
                                               {.batch_size = 2, .max_staleness = 2},
                                               {.batch_size = 2, .max_staleness = 1, .max_in_flight = 2}}) {
        std::int64_t const found = states(options);
        REQUIRE(found > 0);
        total += found;
    }
    REQUIRE(total > 10'000);
}

TEST_CASE("bound, conservation, progress and exact readiness hold in every state that a small ledger can reach",
          "[deadline_ledger][states]") {
    auto const states = [](deadline_ledger_options const& options) { return explore<deadline_ledger<int>>(options); };
    REQUIRE(states({.batch_size = 1, .max_staleness = 0}) == 4);
    std::int64_t total = 0;
    for (deadline_ledger_options const& options : {deadline_ledger_options{.batch_size = 1, .max_staleness = 1},
                                                   {.batch_size = 1, .max_staleness = 2},
                                                   {.batch_size = 1, .max_staleness = 3},
                                                   {.batch_size = 2, .max_staleness = 1},
                                                   {.batch_size = 2, .max_staleness = 2},
                                                   {.batch_size = 3, .max_staleness = 1},
                                                   {.batch_size = 2, .max_staleness = 1, .publish_interval = 2},
                                                   {.batch_size = 2, .max_staleness = 2, .pipeline_depth = 1},
                                                   {.batch_size = 1, .max_staleness = 2, .surplus = 1}}) {
        std::int64_t const found = states(options);
        REQUIRE(found > 0);
        total += found;
    }
    REQUIRE(total > 2000);
}
