// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "counted_allocations.hpp"

#include <asyncrl/staleness/controller.hpp>
#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// What every staleness control promises, asked of slot_buffer and of deadline_ledger in the same words.

using namespace asyncrl;

namespace {

template <template <typename...> typename Control, typename Options>
struct kind {
    using options = Options;
    template <typename Handle>
    static auto make(Options const& options) {
        return Control<Handle>(options);
    }
};
template <typename Handle>
using slots_of = slot_buffer<Handle>;
using slots = kind<slots_of, slot_buffer_options>;
using ledger = kind<deadline_ledger, deadline_ledger_options>;

/// Runs check.operator()<Kind>() for both.
template <typename Check>
void for_both(Check check) {
    SECTION("slot_buffer") {
        check(std::type_identity<slots>{});
    }
    SECTION("deadline_ledger") {
        check(std::type_identity<ledger>{});
    }
}

template <typename Control>
std::vector<unit_ticket> fill(Control& control) {
    std::vector<unit_ticket> tickets;
    while (auto const ticket = control.reserve()) {
        tickets.push_back(*ticket);
    }
    return tickets;
}

template <typename Control>
std::vector<taken_unit<typename Control::handle_type>> take(Control& control) {
    std::vector<taken_unit<typename Control::handle_type>> batch(static_cast<std::size_t>(control.batch_size()));
    if (!control.take(batch)) {
        batch.clear();
    }
    return batch;
}

template <typename Control>
bool is_conserved(Control const& control) {
    unit_counters const& counters = control.counters();
    return counters.admitted == counters.in_flight + counters.completed + counters.taken + counters.dropped_total();
}

}  // namespace

TEST_CASE("a resumed run has the capacity of its bound, not of its history", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 4, .max_staleness = 2, .first_version = {10}});
        REQUIRE(control.admissible() == 12);
        REQUIRE(fill(control).size() == 12);
    });
}

TEST_CASE("staleness 0 admits one batch, and is synchronous", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 8, .max_staleness = 0});
        for (int number = 0; number < 3; ++number) {
            auto const tickets = fill(control);
            REQUIRE(tickets.size() == 8);
            for (unit_ticket const& ticket : tickets) {
                REQUIRE_FALSE(control.can_take());
                REQUIRE(control.occupy(ticket) == ticket_status::ok);
            }
            REQUIRE(take(control).size() == 8);
            REQUIRE(control.admissible() == 0);
            control.publish();
        }
    });
}

TEST_CASE("time in the queue counts, and staleness equal to the bound is kept", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 1, .max_staleness = 4, .first_version = {2}});
        for (unit_ticket const& ticket : fill(control)) {
            REQUIRE(control.occupy(ticket) == ticket_status::ok);  // all five are completed under version 2
        }
        for (std::int64_t age = 0; age <= 4; ++age) {
            auto const batch = take(control);
            REQUIRE(batch.size() == 1);
            REQUIRE(batch[0].staleness == age);
            REQUIRE(batch[0].version == policy_version{2});
            control.publish();
        }
    });
}

TEST_CASE("a unit is stamped with the version whose weights are in place", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 1, .max_staleness = 2, .first_version = {7}});
        REQUIRE_THROWS_AS(control.begin_publish(), std::invalid_argument);
        auto const first = control.reserve();
        REQUIRE(control.occupy(*first) == ticket_status::ok);
        REQUIRE(take(control).size() == 1);
        REQUIRE(control.begin_publish() == policy_version{8});
        auto const during = control.reserve();
        REQUIRE(during->version == policy_version{7});
        control.abort_publish();
        auto const aborted = control.reserve();
        REQUIRE(aborted->version == policy_version{7});
        REQUIRE(control.begin_publish() == policy_version{8});
        REQUIRE(control.commit_publish() == policy_version{8});
        REQUIRE(control.reserve()->version == policy_version{8});
        REQUIRE(control.occupy(*during) == ticket_status::ok);
        auto const batch = take(control);
        REQUIRE((batch[0].version == policy_version{7} && batch[0].staleness == 1));  // the publish relabelled nothing
    });
}

TEST_CASE("of ten completed units four and four leave, and the other two stay", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 4, .max_staleness = 2, .max_in_flight = 12});
        auto const tickets = fill(control);
        for (std::size_t i = 0; i < 10; ++i) {
            REQUIRE(control.occupy(tickets[i]) == ticket_status::ok);
        }
        std::set<std::uint64_t> seen;
        for (std::size_t const expected : {4U, 4U, 0U}) {
            auto const batch = take(control);
            REQUIRE(batch.size() == expected);
            for (auto const& unit : batch) {
                REQUIRE(seen.insert(unit.id).second);
            }
            if (expected != 0) {
                control.publish();
            }
        }
        REQUIRE(control.counters().completed == 2);
        REQUIRE(control.counters().in_flight == 2);
    });
}

TEST_CASE("a ticket names one admission for ever", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 1, .max_staleness = 0});
        auto const first = control.reserve(1);
        REQUIRE(control.filter(*first) == ticket_status::in_flight);
        REQUIRE(control.occupy(*first) == ticket_status::ok);
        REQUIRE(control.occupy(*first, 99) == ticket_status::duplicate);
        REQUIRE(control.discard(*first) == ticket_status::duplicate);
        REQUIRE(control.filter(*first) == ticket_status::ok);
        auto const second = control.reserve(2);  // at the same place
        REQUIRE(second->index == first->index);
        REQUIRE(control.occupy(*first, 99) == ticket_status::gone);
        REQUIRE(control.discard(*first) == ticket_status::gone);
        REQUIRE(control.filter(*first) == ticket_status::gone);
        REQUIRE(control.retag(*first, {0}) == ticket_status::gone);
        REQUIRE(control.counters().in_flight == 1);
        auto other = Kind::template make<int>({.batch_size = 1, .max_staleness = 0});
        REQUIRE(other.reserve());
        REQUIRE(other.occupy(*second) == ticket_status::foreign);
        REQUIRE(other.retag(*second, {0}) == ticket_status::foreign);
        REQUIRE(control.occupy(*second) == ticket_status::ok);
        REQUIRE(take(control)[0].handle == 2);
        REQUIRE(control.occupy(*second) == ticket_status::gone);
    });
}

TEST_CASE("what is dropped opens its place at once, under its reason", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<int>({.batch_size = 2, .max_staleness = 1});
        auto const tickets = fill(control);
        REQUIRE(control.admissible() == 0);
        REQUIRE(control.discard(tickets[0], drop_reason::rejected) == ticket_status::ok);
        REQUIRE(control.admissible() == 1);
        for (std::size_t i = 1; i < 4; ++i) {
            REQUIRE(control.occupy(tickets[i]) == ticket_status::ok);
        }
        for (std::size_t i = 1; i < 4; ++i) {
            REQUIRE(control.filter(tickets[i], drop_reason::stale) == ticket_status::ok);
        }
        REQUIRE(take(control).empty());  // never a batch of padding
        REQUIRE(control.admissible() == 4);
        REQUIRE(control.counters().dropped_for(drop_reason::stale) == 3);
        REQUIRE(control.counters().dropped_for(drop_reason::rejected) == 1);
        REQUIRE(is_conserved(control));
    });
}

TEST_CASE("handles move in and out, and are released when their unit leaves", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto control = Kind::template make<std::shared_ptr<int>>({.batch_size = 1, .max_staleness = 1});
        auto const payload = std::make_shared<int>(1);
        auto const first = control.reserve(payload);
        REQUIRE(control.reserve(payload));
        REQUIRE(payload.use_count() == 3);
        REQUIRE(control.occupy(*first) == ticket_status::ok);
        REQUIRE(control.filter(*first) == ticket_status::ok);
        REQUIRE(payload.use_count() == 2);
    });
}

TEST_CASE("two controls share nothing", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        auto one = Kind::template make<int>({});
        auto two = Kind::template make<int>({});
        REQUIRE(one.occupy(*one.reserve()) == ticket_status::ok);
        REQUIRE(take(one).size() == 1);
        one.publish();
        REQUIRE(one.version() == policy_version{1});
        REQUIRE(two.version() == policy_version{0});
        REQUIRE(two.counters().admitted == 0);
    });
}

TEST_CASE("a controller takes either control", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        controller shell(Kind::template make<int>({.batch_size = 1, .max_staleness = 0}));
        auto held = shell.try_reserve(5);
        REQUIRE(held);
        REQUIRE(shell.try_reserve().status == wait_status::timed_out);
        REQUIRE(held.unit.occupy() == ticket_status::ok);
        std::vector<taken_unit<int>> batch(1);
        REQUIRE(shell.try_take(batch));
        REQUIRE(batch[0].handle == 5);
        REQUIRE(shell.publish() == policy_version{1});
        auto late = shell.try_reserve();
        shell.close();
        REQUIRE(late.unit.occupy() == ticket_status::closed);
        REQUIRE(shell.try_take(batch).status == wait_status::closed);
    });
}

TEST_CASE("after construction nothing allocates, also not the calls of the extensions", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        constexpr bool has_slots = std::is_same_v<Kind, slots>;
        for (std::int64_t const surplus : {0, 2}) {
            typename Kind::options options{.batch_size = 4, .max_staleness = 2};
            options.surplus = surplus;
            options.max_staleness_limit = 3;
            if constexpr (has_slots) {
                options.stuck_timeout = std::chrono::duration<double>(0);
            }
            auto control = Kind::template make<int>(options);
            std::vector<unit_ticket> in_flight;
            in_flight.reserve(100);
            std::vector<taken_unit<int>> batch(4);
            std::mt19937 random(1);
            std::int64_t const before = allocations;
            for (int i = 0; i < 20'000; ++i) {
                if (auto const ticket = control.reserve(); ticket && in_flight.size() < 100) {
                    in_flight.push_back(*ticket);
                }
                if (!in_flight.empty()) {
                    std::swap(in_flight[random() % in_flight.size()], in_flight.back());
                    unit_ticket const ticket = in_flight.back();
                    if (i % 7 == 0 && ticket.version <= control.version()) {
                        control.retag(ticket, control.version());
                    }
                    i % 5 == 0 ? control.discard(ticket) : control.occupy(ticket);
                    in_flight.pop_back();
                }
                control.for_each_doomed([](unit_ticket const&, int) {});
                if (i % 50 == 0) {
                    control.set_max_staleness(i % 4);
                    if constexpr (has_slots) {
                        control.expire_stuck(std::chrono::duration<double>(i));
                    } else {
                        control.sacrifice(
                            {}, [](unit_ticket const&, int) { return unit_worth{}; }, [](unit_ticket const&, int) {});
                    }
                }
                if (control.take(batch)) {
                    control.publish();
                }
            }
            std::int64_t const during = allocations - before;
            REQUIRE(during == 0);
            REQUIRE(control.counters().taken > 1000);
        }
    });
}

namespace {

/// Random events of every kind that both controls know, with the promises checked after each.
template <typename Kind>
class trial {
  public:
    trial(typename Kind::options const& options, unsigned seed)
        : control_(Kind::template make<int>(options)),
          bound_(options.max_staleness),
          interval_(options.publish_interval),
          limit_(options.max_staleness_limit.value_or(options.max_staleness)),
          random_(seed) {}

    std::string run(int steps) {
        for (int i = 0; i < steps; ++i) {
            std::string const wrong = step();
            if (!wrong.empty() || !is_conserved(control_)) {
                return wrong.empty() ? "conservation" : wrong;
            }
        }
        return progresses() ? "" : "progress";
    }

    std::int64_t taken() const { return static_cast<std::int64_t>(trained_.size()); }

  private:
    std::string step() {
        switch (random_() % 16) {
            case 0:
            case 1:
            case 2:
            case 3:
            case 4:
                admit();
                return {};
            case 5:
            case 6:
            case 7:
            case 8:
                return in_flight_.empty() ? "" : complete();
            case 9: {
                auto& from = random_() % 2 == 0 ? in_flight_ : completed_;
                if (from.empty()) {
                    return {};
                }
                unit_ticket const ticket = pick(from);
                return &from == &in_flight_ ? (control_.discard(ticket) == ticket_status::ok ? "" : "discard")
                                            : (control_.filter(ticket) == ticket_status::ok ? "" : "filter");
            }
            case 10: {
                auto& from = random_() % 2 == 0 ? in_flight_ : completed_;
                if (!from.empty()) {
                    unit_ticket& ticket = from[random_() % from.size()];
                    ticket.version = std::max(ticket.version, control_.version());
                    return control_.retag(ticket, ticket.version) == ticket_status::ok ? "" : "retag";
                }
                return {};
            }
            case 11:
                bound_ = interval_ - 1 + static_cast<std::int64_t>(random_()) % (limit_ - interval_ + 2);
                control_.set_max_staleness(bound_);
                return {};
            default:
                return train();
        }
    }

    unit_ticket pick(std::vector<unit_ticket>& from) {
        std::swap(from[random_() % from.size()], from.back());
        unit_ticket const ticket = from.back();
        from.pop_back();
        return ticket;
    }
    void admit() {
        if (auto const ticket = control_.reserve()) {
            in_flight_.push_back(*ticket);
        }
    }
    std::string complete() {
        unit_ticket const ticket = pick(in_flight_);
        ticket_status const status = control_.occupy(ticket);
        if (status == ticket_status::ok) {
            completed_.push_back(ticket);
        }
        bool const is_legal =
            status == ticket_status::ok || (status == ticket_status::oversampled && control_.options().surplus > 0);
        return is_legal ? "" : "a unit found no place";
    }
    std::string train() {
        bool const wants_publish = control_.in_training() && random_() % 2 == 0;
        if (wants_publish) {
            control_.publish();
            return {};
        }
        std::int64_t const number = control_.next_batch().value;
        for (auto const& unit : take(control_)) {
            auto const known = std::find_if(completed_.begin(), completed_.end(),
                                            [&](unit_ticket const& ticket) { return ticket.id == unit.id; });
            if (known == completed_.end() || !trained_.insert(unit.id).second) {
                return "taken without a result, or twice";
            }
            if (unit.version != known->version || unit.staleness != number - unit.version.value || unit.staleness < 0 ||
                unit.staleness > limit_) {
                return "bound";
            }
            completed_.erase(known);
        }
        return control_.next_batch().value - control_.version().value > interval_ ? "trained too far ahead" : "";
    }
    bool progresses() {
        if (control_.in_training()) {
            control_.publish();
        }
        while (!control_.can_take() && (!in_flight_.empty() || control_.admissible() > 0)) {
            while (!in_flight_.empty()) {
                complete();
            }
            while (control_.admissible() > 0) {
                admit();
            }
        }
        return control_.can_take();
    }

    decltype(Kind::template make<int>(typename Kind::options{})) control_;
    std::int64_t bound_;
    std::int64_t interval_;
    std::int64_t limit_;
    std::mt19937 random_;
    std::vector<unit_ticket> in_flight_;
    std::vector<unit_ticket> completed_;
    std::set<std::uint64_t> trained_;
};

}  // namespace

TEST_CASE("bound, conservation, once-only and progress hold through random events of every kind", "[contract]") {
    for_both([]<typename Kind>(std::type_identity<Kind>) {
        std::mt19937 random(11);
        auto const below = [&](std::int64_t end) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(end)); };
        std::int64_t taken = 0;
        for (int run = 0; run < 1000; ++run) {
            typename Kind::options options{.batch_size = 1 + below(5), .max_staleness = below(5)};
            options.publish_interval = 1 + below(options.max_staleness + 1);
            options.surplus = run % 3 == 0 ? 1 + below(3) : 0;
            if (run % 2 == 0) {
                options.max_staleness_limit = options.max_staleness + below(3);
            }
            if (run % 5 == 0) {
                options.max_in_flight = 1 + below(6);
            }
            trial<Kind> trial(options, static_cast<unsigned>(random()));
            std::string const wrong = trial.run(300);
            if (!wrong.empty()) {
                CAPTURE(run, options.batch_size, options.max_staleness, options.surplus, options.publish_interval, wrong);
                FAIL("a promise is broken");
            }
            taken += trial.taken();
        }
        REQUIRE(taken > 10'000);
    });
}
