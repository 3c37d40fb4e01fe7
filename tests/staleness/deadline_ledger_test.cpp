// SPDX-License-Identifier: Apache-2.0
#include "brute_force.hpp"
#include "catch.hpp"

#include <asyncrl/staleness/deadline_ledger.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace asyncrl;

namespace {

/// A ledger of letters that can be told what to do.
class stage {
  public:
    explicit stage(deadline_ledger_options const& options) : ledger(options) {}

    deadline_ledger<char> ledger;

    bool reserve(char unit) { return keep(unit, ledger.reserve(unit)); }
    bool reserve_under(std::int64_t served, char unit) { return keep(unit, ledger.reserve_under({served}, unit)); }
    bool reserve_all(std::string const& units) {
        return std::all_of(units.begin(), units.end(), [&](char unit) { return reserve(unit); });
    }
    ticket_status occupy(char unit) { return ledger.occupy(ticket(unit)); }
    bool occupy_all(std::string const& units) {
        return std::all_of(units.begin(), units.end(), [&](char unit) { return occupy(unit) == ticket_status::ok; });
    }
    std::string take() {
        std::vector<taken_unit<char>> batch(static_cast<std::size_t>(ledger.batch_size()));
        std::string units;
        if (ledger.take(batch)) {
            for (auto const& unit : batch) {
                units += unit.handle;
            }
        }
        return units;
    }
    std::string doomed() const {
        std::string units;
        ledger.for_each_doomed([&](unit_ticket const&, char unit) { units += unit; });
        std::sort(units.begin(), units.end());
        return units;
    }
    unit_ticket const& ticket(char unit) const { return tickets_.at(unit); }

  private:
    bool keep(char unit, std::optional<unit_ticket> const& ticket) {
        if (ticket) {
            tickets_[unit] = *ticket;
        }
        return ticket.has_value();
    }

    std::map<char, unit_ticket> tickets_;
};

}  // namespace

TEST_CASE("a unit that must be trained now blocks, is named by the certificate, and its leaving unblocks",
          "[deadline_ledger]") {
    stage s({.batch_size = 2, .max_staleness = 1});
    REQUIRE(s.reserve_all("ABCD"));
    REQUIRE_FALSE(s.reserve('E'));
    REQUIRE(s.ledger.readiness().missing == 2);
    REQUIRE(s.occupy_all("DC"));
    REQUIRE(s.ledger.readiness().state == readiness_state::ready);
    REQUIRE(s.take() == "DC");
    s.ledger.publish();
    REQUIRE(s.reserve_all("EF"));
    REQUIRE_FALSE(s.reserve('G'));
    REQUIRE(s.occupy_all("AEF"));
    batch_readiness const blocked = s.ledger.readiness();
    REQUIRE(blocked.state == readiness_state::blocked);
    REQUIRE(blocked.deadline == policy_version{1});
    REQUIRE(blocked.excess == 1);
    REQUIRE(blocked.blockers == 1);
    std::string blockers;
    s.ledger.for_each_in_flight(blocked.deadline, [&](unit_ticket const&, char unit) { blockers += unit; });
    REQUIRE(blockers == "B");
    REQUIRE(s.take().empty());
    REQUIRE(s.ledger.discard(s.ticket('B'), drop_reason::failed) == ticket_status::ok);
    REQUIRE(s.take() == "AE");
    REQUIRE(s.ledger.counters().dropped_for(drop_reason::failed) == 1);
}

TEST_CASE("an engine that lags is judged by Hall's condition: neither its own count nor the global one", "[deadline_ledger]") {
    SECTION("a count under the unit's own version would refuse what fits") {
        stage s({.batch_size = 1, .max_staleness = 2});
        REQUIRE(s.reserve('A'));
        REQUIRE(s.occupy('A') == ticket_status::ok);
        REQUIRE(s.take() == "A");
        s.ledger.publish();
        REQUIRE(s.reserve_all("BC"));  // deadlines 3
        REQUIRE(s.ledger.admission_under({0}) == admission_status::open);
        REQUIRE(s.reserve_under(0, 'D'));  // deadline 2
        REQUIRE(s.occupy_all("BCD"));
        REQUIRE(s.take() == "D");
    }
    SECTION("a count under the global version would admit what does not fit") {
        stage s({.batch_size = 1, .max_staleness = 1, .first_version = {1}});
        REQUIRE(s.ledger.admissible() == 2);
        REQUIRE(s.reserve_under(0, 'A'));  // deadline 1
        REQUIRE(s.ledger.admission_under({0}) == admission_status::no_place);
        REQUIRE_FALSE(s.reserve_under(0, 'B'));
        REQUIRE(s.ledger.admissible() == 1);
        REQUIRE(s.reserve('B'));
        REQUIRE(s.occupy('B') == ticket_status::ok);
        REQUIRE(s.ledger.readiness().state == readiness_state::blocked);  // A must be in batch 1
    }
    SECTION("a version whose batches are gone, and one from the future, are refused") {
        stage s({.batch_size = 1, .max_staleness = 1, .first_version = {3}});
        REQUIRE(s.ledger.admission_under({1}) == admission_status::stale_version);
        REQUIRE(s.ledger.admission_under({2}) == admission_status::open);
        REQUIRE(s.ledger.admission_under({5}) == admission_status::future_version);
        REQUIRE_FALSE(s.reserve_under(5, 'A'));
        REQUIRE_FALSE(s.reserve_under(1, 'A'));
        REQUIRE(s.ledger.counters().admitted == 0);
        stage first({.batch_size = 1, .max_staleness = 1});
        REQUIRE(first.ledger.admission_under({-1}) == admission_status::stale_version);
    }
}

TEST_CASE("every reason to refuse has a name", "[deadline_ledger]") {
    stage s({.batch_size = 2, .max_staleness = 2, .max_in_flight = 3, .pipeline_depth = 1});
    REQUIRE(s.reserve_all("ABC"));
    REQUIRE(s.ledger.admission_under({0}) == admission_status::max_in_flight);
    REQUIRE(s.occupy('A') == ticket_status::ok);
    REQUIRE(s.reserve('D'));
    REQUIRE(s.occupy('B') == ticket_status::ok);
    REQUIRE(s.ledger.admission_under({0}) == admission_status::pipeline_full);
    REQUIRE(s.ledger.admissible() == 0);
}

TEST_CASE("a shallow pipeline admits fewer, and a straggler may still use the whole bound", "[deadline_ledger]") {
    stage s({.batch_size = 1, .max_staleness = 3, .pipeline_depth = 0});
    REQUIRE(s.ledger.admissible() == 1);
    REQUIRE(s.reserve('A'));
    REQUIRE_FALSE(s.reserve('B'));
    REQUIRE(s.ledger.deadline(s.ticket('A')) == policy_version{3});
    stage deep({.batch_size = 1, .max_staleness = 3, .pipeline_depth = 1});
    REQUIRE(deep.reserve_all("AB"));
    REQUIRE(deep.occupy('B') == ticket_status::ok);
    for (std::string const unit : {"C", "D"}) {
        REQUIRE(deep.take().size() == 1);
        deep.ledger.publish();
        REQUIRE(deep.reserve_all(unit));
        REQUIRE(deep.occupy_all(unit));
    }
    REQUIRE(deep.take() == "D");  // A is in flight since version 0
    deep.ledger.publish();
    REQUIRE(deep.reserve('E'));
    REQUIRE(deep.occupy_all("E"));
    REQUIRE(deep.ledger.readiness().state == readiness_state::blocked);
    REQUIRE(deep.occupy('A') == ticket_status::ok);
    REQUIRE(deep.take() == "A");
}

TEST_CASE("retagging lowers demand, and masking unblocks without dropping", "[deadline_ledger]") {
    stage s({.batch_size = 1, .max_staleness = 1});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE(s.occupy('B') == ticket_status::ok);
    REQUIRE(s.take() == "B");
    s.ledger.publish();
    REQUIRE(s.reserve('C'));
    REQUIRE(s.occupy('C') == ticket_status::ok);
    REQUIRE(s.ledger.readiness().state == readiness_state::blocked);
    REQUIRE_THROWS_AS(s.ledger.retag(s.ticket('A'), {2}), std::invalid_argument);
    REQUIRE_THROWS_AS(s.ledger.retag(s.ticket('C'), {0}), std::invalid_argument);
    REQUIRE(s.ledger.retag(s.ticket('B'), {1}) == ticket_status::gone);

    SECTION("by hand") {
        REQUIRE(s.ledger.retag(s.ticket('A'), {1}) == ticket_status::ok);
        REQUIRE(s.ledger.deadline(s.ticket('A')) == policy_version{2});
        REQUIRE(s.take() == "C");
    }
    SECTION("as the least sacrifice") {
        std::string masked;
        auto const result = s.ledger.sacrifice(
            {.mode = sacrifice_mode::mask}, [](unit_ticket const&, char) { return unit_worth{}; },
            [&](unit_ticket const& ticket, char unit) {
                masked += unit;
                REQUIRE(ticket.version == policy_version{1});
            });
        REQUIRE((result.needed == 1 && result.done == 1));
        REQUIRE(masked == "A");
        REQUIRE(s.take() == "C");
        REQUIRE(s.ledger.counters().in_flight == 1);
    }
    s.ledger.publish();
    REQUIRE(s.occupy('A') == ticket_status::ok);
    std::vector<taken_unit<char>> batch(1);
    REQUIRE(s.ledger.take(batch));
    REQUIRE((batch[0].handle == 'A' && batch[0].version == policy_version{1} && batch[0].staleness == 1));
    REQUIRE(s.ledger.counters().dropped_total() == 0);
}

TEST_CASE("a completed unit can be retagged too", "[deadline_ledger]") {
    stage s({.batch_size = 1, .max_staleness = 2});
    REQUIRE(s.reserve_all("ABC"));
    REQUIRE(s.occupy_all("AB"));
    REQUIRE(s.take() == "A");
    s.ledger.publish();
    REQUIRE(s.reserve('D'));
    REQUIRE(s.occupy('D') == ticket_status::ok);
    REQUIRE(s.ledger.retag(s.ticket('B'), {1}) == ticket_status::ok);  // behind D in the order of completion
    REQUIRE(s.take() == "D");
    REQUIRE(s.ledger.filter(s.ticket('B')) == ticket_status::ok);
    REQUIRE(s.ledger.counters().completed == 0);
}

TEST_CASE("the least sacrifice keeps what is worth most, respects its budget, and favours those rejected before",
          "[deadline_ledger]") {
    stage s({.batch_size = 2, .max_staleness = 1});
    REQUIRE(s.reserve_all("ABCD"));
    REQUIRE(s.occupy_all("CD"));
    REQUIRE(s.take() == "CD");
    s.ledger.publish();
    REQUIRE(s.reserve_all("EF"));
    REQUIRE(s.occupy_all("EF"));  // A and B block: batch 1 belongs to them
    std::map<char, unit_worth> worth{{'A', {0, 10}}, {'B', {0, 20}}};
    std::string victims;
    auto const sacrifice = [&](sacrifice_options const& options) {
        victims.clear();
        return s.ledger.sacrifice(
            options, [&](unit_ticket const&, char unit) { return worth.at(unit); },
            [&](unit_ticket const&, char unit) { victims += unit; });
    };
    REQUIRE(s.ledger.readiness().excess == 2);
    auto const plan = sacrifice({.mode = sacrifice_mode::wait});
    REQUIRE((plan.needed == 2 && plan.done == 0 && victims.size() == 2));
    REQUIRE(s.ledger.counters().in_flight == 2);
    auto const too_many = sacrifice({.budget = 1});
    REQUIRE((too_many.needed == 2 && too_many.done == 0 && victims.empty()));
    REQUIRE(s.ledger.counters().in_flight == 2);

    SECTION("within the budget it happens") {
        REQUIRE(s.occupy('B') == ticket_status::ok);
        auto const result = sacrifice({.budget = 1, .reason = drop_reason::stuck_timeout});
        REQUIRE((result.needed == 1 && result.done == 1 && victims == "A"));
        REQUIRE(s.ledger.counters().dropped_for(drop_reason::stuck_timeout) == 1);
        REQUIRE(s.take() == "BE");
    }
    SECTION("no sacrifice when nothing is blocked") {
        REQUIRE(s.occupy_all("AB"));
        auto const result = sacrifice({});
        REQUIRE((result.needed == 0 && result.done == 0 && victims.empty()));
    }
}

TEST_CASE("of two that could go the cheaper one does, unless it was rejected before", "[deadline_ledger]") {
    for (bool const is_rejected : {false, true}) {
        stage s({.batch_size = 1, .max_staleness = 2});
        REQUIRE(s.reserve_all("ABC"));
        REQUIRE(s.occupy('C') == ticket_status::ok);
        REQUIRE(s.take() == "C");
        s.ledger.publish();
        REQUIRE(s.reserve('D'));
        REQUIRE(s.occupy('D') == ticket_status::ok);  // A and B have deadline 2, batches 1 and 2 are theirs: D waits
        REQUIRE(s.ledger.readiness().excess == 1);
        std::string victims;
        auto const result = s.ledger.sacrifice(
            {},
            [&](unit_ticket const&, char unit) {
                return unit_worth{.rejections = unit == 'A' && is_rejected ? 1 : 0, .value = unit == 'A' ? 1.0 : 2.0};
            },
            [&](unit_ticket const&, char unit) { victims += unit; });
        REQUIRE(result.done == 1);
        REQUIRE(victims == (is_rejected ? "B" : "A"));
        REQUIRE(s.take() == "D");
    }
}

TEST_CASE("with a surplus the slowest are left out, and named as soon as they are useless", "[deadline_ledger][surplus]") {
    // Two of three per batch, one batch of staleness; at batch 1 completed deadlines 1, 2, 2 and in flight 1, 1, 2.
    stage s({.batch_size = 2, .max_staleness = 1, .surplus = 1});
    REQUIRE(s.reserve_all("ABCDE"));
    REQUIRE(s.ledger.admissible() == 1);
    REQUIRE(s.occupy_all("DE"));
    REQUIRE(s.take() == "DE");
    s.ledger.publish();
    REQUIRE(s.reserve_all("FGH"));
    REQUIRE(s.ledger.admissible() == 0);
    REQUIRE(s.occupy_all("AFG"));
    REQUIRE(s.doomed().empty());
    REQUIRE(s.occupy('B') == ticket_status::ok);
    REQUIRE(s.doomed() == "CH");
    REQUIRE(s.take() == "AB");
    s.ledger.publish();
    REQUIRE(s.ledger.readiness().state == readiness_state::ready);
    REQUIRE(s.occupy('C') == ticket_status::oversampled);  // its batches are over
    REQUIRE(s.occupy('C') == ticket_status::gone);
    REQUIRE(s.doomed() == "H");
    REQUIRE(s.ledger.filter(s.ticket('F')) == ticket_status::ok);
    REQUIRE(s.doomed().empty());  // F's place is H's chance
    REQUIRE(s.occupy('H') == ticket_status::ok);
    REQUIRE(s.take() == "GH");
    REQUIRE(s.ledger.counters().dropped_for(drop_reason::oversampled) == 1);
}

TEST_CASE("batch sizes change from the first batch on that nothing is promised for", "[deadline_ledger]") {
    stage s({.batch_size = 2, .max_staleness = 1, .batch_size_limit = 3});
    REQUIRE(s.ledger.set_batch_size(3) == policy_version{2});
    REQUIRE(s.ledger.batch_size() == 2);
    REQUIRE(s.ledger.admissible() == 4);
    REQUIRE(s.reserve_all("ABCD"));
    REQUIRE(s.occupy_all("ABCD"));
    REQUIRE(s.take() == "AB");
    s.ledger.publish();
    REQUIRE(s.ledger.admissible() == 3);
    REQUIRE(s.ledger.set_batch_size(1) == policy_version{3});
    REQUIRE(s.reserve_all("EFG"));
    REQUIRE(s.take() == "CD");
    s.ledger.publish();
    REQUIRE(s.ledger.batch_size() == 3);
    REQUIRE(s.ledger.admissible() == 1);
    REQUIRE(s.occupy_all("EFG"));
    std::vector<taken_unit<char>> two(2);
    REQUIRE_THROWS_AS(s.ledger.take(two), std::invalid_argument);
    REQUIRE(s.take() == "EFG");
    REQUIRE_THROWS_AS(s.ledger.set_batch_size(4), std::invalid_argument);
    REQUIRE_THROWS_AS(s.ledger.set_batch_size(0), std::invalid_argument);
}

TEST_CASE("a lower bound holds for new units, and a higher one at once", "[deadline_ledger]") {
    stage s({.batch_size = 1, .max_staleness = 1, .max_staleness_limit = 3});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE_FALSE(s.reserve('C'));
    s.ledger.set_max_staleness(3);
    REQUIRE(s.ledger.admissible() == 2);
    REQUIRE(s.reserve('C'));
    REQUIRE(s.ledger.deadline(s.ticket('C')) == policy_version{3});
    s.ledger.set_max_staleness(0);
    REQUIRE_FALSE(s.reserve('D'));
    REQUIRE(s.occupy('C') == ticket_status::ok);
    REQUIRE(s.ledger.readiness().state == readiness_state::blocked);  // A and B need batches 0 and 1
    REQUIRE(s.occupy('B') == ticket_status::ok);
    REQUIRE(s.take() == "B");
    REQUIRE_FALSE(s.reserve('D'));
    s.ledger.publish();
    REQUIRE_FALSE(s.reserve('D'));  // batch 1 belongs to A
    REQUIRE(s.ledger.options().max_staleness == 0);
    REQUIRE_THROWS_AS(s.ledger.set_max_staleness(4), std::invalid_argument);
    REQUIRE_THROWS_AS(s.ledger.set_max_staleness(-1), std::invalid_argument);

    stage fixed({.batch_size = 2, .max_staleness = 2});  // without limits of their own the first values are the limits
    fixed.ledger.set_max_staleness(0);
    fixed.ledger.set_max_staleness(2);
    fixed.ledger.set_batch_size(1);
    fixed.ledger.set_batch_size(2);
    REQUIRE_THROWS_AS(fixed.ledger.set_max_staleness(3), std::invalid_argument);
    REQUIRE_THROWS_AS(fixed.ledger.set_batch_size(3), std::invalid_argument);
}

TEST_CASE("options outside their limits throw", "[deadline_ledger]") {
    using ledger = deadline_ledger<int>;
    REQUIRE_THROWS_AS(ledger({.batch_size = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.max_staleness = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.max_staleness = 1024}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.max_in_flight = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.surplus = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.batch_size = 2, .batch_size_limit = 1}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.max_staleness = 2, .max_staleness_limit = 1}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.batch_size = std::int64_t{1} << 30, .max_staleness = 1}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.max_staleness = 1, .publish_interval = 3}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.max_staleness = 3, .pipeline_depth = 1, .publish_interval = 3}), std::invalid_argument);
    REQUIRE_THROWS_AS(ledger({.first_version = {-1}}), std::invalid_argument);
}

// --- against brute force ------------------------------------------------------------------------------------------------

namespace {

/// A ledger driven at random, and a plain list of its units, from which brute force finds the right answers.
class witness {
  public:
    witness(deadline_ledger_options const& options, unsigned seed)
        : ledger_(options), random_(seed), size_(options.batch_size), bound_(options.max_staleness), surplus_(options.surplus) {
        plan();
    }

    /// One random event. Returns what went wrong, or nothing.
    std::string step() {
        switch (random_() % 12) {
            case 0:
            case 1:
            case 2:
                return reserve(version_);
            case 3:
                return reserve(version_ - std::min<std::int64_t>(version_, random_() % 3));
            case 4:
            case 5:
            case 6:
                return occupy();
            case 7:
                return drop();
            case 8:
                return retag();
            case 9:
                change();
                return {};
            default:
                return train();
        }
    }

    /// An event of a run in which the newest units complete first, so that the oldest block. Nothing is dropped.
    std::string step_that_blocks() {
        switch (random_() % 8) {
            case 0:
            case 1:
            case 2:
                return reserve(version_);
            case 3:
                return occupy();
            case 4:
            case 5: {
                auto const newest =
                    std::find_if(units_.rbegin(), units_.rend(), [](unit const& each) { return !each.is_completed; });
                if (newest != units_.rend()) {
                    newest->is_completed = true;
                    return ledger_.occupy(newest->ticket) == ticket_status::ok ? "" : "occupy";
                }
                return {};
            }
            default:
                return train();
        }
    }

    std::string check() {
        std::string const wrong = surplus_ == 0 ? check_exact() : check_surplus();
        unit_counters const& counters = ledger_.counters();
        bool const is_conserved =
            counters.admitted == counters.in_flight + counters.completed + counters.taken + counters.dropped_total();
        return is_conserved ? wrong : "conservation";
    }

    /// Lets the ledger make its least sacrifice, and compares it with the search through all subsets.
    std::string sacrifice(sacrifice_mode mode) {
        auto const state = units();
        if (surplus_ > 0 || completed() < sizes().front() || brute_force::is_ready(state, sizes())) {
            return {};
        }
        auto const least = brute_force::least_sacrifice(state, sizes());
        double lost = 0;
        std::vector<std::uint64_t> victims;
        auto const result = ledger_.sacrifice(
            {.mode = mode}, [&](unit_ticket const& ticket, int) { return unit_worth{.value = find(ticket.id).worth}; },
            [&](unit_ticket const& ticket, int) {
                victims.push_back(ticket.id);
                lost += find(ticket.id).worth;
            });
        ++sacrifices_;
        if (!least || result.needed != static_cast<std::int64_t>(least->units)) {
            return "size of the sacrifice";
        }
        if (mode == sacrifice_mode::mask && result.done == 0) {
            return {};  // with a lowered bound masks may not be enough
        }
        if (std::abs(lost - least->worth) > 1e-9) {
            return "worth of the sacrifice";
        }
        if (mode == sacrifice_mode::wait) {
            return result.done == 0 ? "" : "waiting changed something";
        }
        for (std::uint64_t const id : victims) {
            if (mode == sacrifice_mode::mask) {
                find(id).deadline = std::max(find(id).deadline, version_ + bound_);
                find(id).ticket.version = {version_};
            } else {
                forget(id);
            }
        }
        bool const is_ready = ledger_.readiness().state == readiness_state::ready;
        return is_ready && brute_force::is_ready(units(), sizes()) ? "" : "the sacrifice did not unblock";
    }

    std::int64_t sacrifices() const { return sacrifices_; }
    std::size_t outstanding() const { return units_.size(); }

  private:
    struct unit {
        unit_ticket ticket;
        std::int64_t deadline;
        bool is_completed;
        double worth;
    };

    void plan() {
        while (next_batch_ + static_cast<std::int64_t>(planned_.size()) <= version_ + bound_) {
            planned_.push_back(size_);
        }
    }
    brute_force::batches sizes() const {
        return planned_.empty() ? brute_force::batches{size_} : brute_force::batches(planned_.begin(), planned_.end());
    }
    std::vector<brute_force::unit> units() const {
        std::vector<brute_force::unit> seen;
        for (unit const& each : units_) {
            seen.push_back({each.deadline - next_batch_, each.is_completed, each.worth});
        }
        return seen;
    }
    std::int64_t completed() const {
        return std::count_if(units_.begin(), units_.end(), [](unit const& each) { return each.is_completed; });
    }
    unit& find(std::uint64_t id) {
        return *std::find_if(units_.begin(), units_.end(), [&](unit const& each) { return each.ticket.id == id; });
    }
    void forget(std::uint64_t id) { units_.erase(units_.begin() + (&find(id) - units_.data())); }
    unit* any(bool is_completed) {
        std::vector<unit*> fitting;
        for (unit& each : units_) {
            if (each.is_completed == is_completed) {
                fitting.push_back(&each);
            }
        }
        return fitting.empty() ? nullptr : fitting[random_() % fitting.size()];
    }

    bool fits_with(std::int64_t deadline) const {
        auto deadlines = brute_force::deadlines_of(units());
        deadlines.push_back(deadline - next_batch_);
        return brute_force::fits(deadlines, sizes());
    }
    /// Whether the completed units, and one more with this deadline, can all be trained.
    bool completed_fit_with(std::int64_t deadline) const {
        std::vector<std::int64_t> deadlines{deadline - next_batch_};
        for (unit const& each : units_) {
            if (each.is_completed) {
                deadlines.push_back(each.deadline - next_batch_);
            }
        }
        return brute_force::fits(deadlines, sizes());
    }

    std::string reserve(std::int64_t served) {
        std::int64_t const deadline = served + bound_;
        auto const ticket = served == version_ ? ledger_.reserve(1) : ledger_.reserve_under({served}, 1);
        if (surplus_ == 0 && ticket.has_value() != fits_with(deadline)) {
            return "admission";
        }
        if (ticket) {
            units_.push_back({*ticket, deadline, false, static_cast<double>(random_() % 100 + 1)});
        }
        return {};
    }
    std::string occupy() {
        if (unit* const one = any(false)) {
            bool const is_useful = surplus_ == 0 || completed_fit_with(one->deadline);
            ticket_status const status = ledger_.occupy(one->ticket);
            if (status != (is_useful ? ticket_status::ok : ticket_status::oversampled)) {
                return "status of a result";
            }
            one->is_completed = true;
            if (!is_useful) {
                forget(one->ticket.id);
            }
        }
        return {};
    }
    std::string drop() {
        bool const is_filter = random_() % 2 == 0;
        if (unit* const one = any(is_filter)) {
            auto const status = is_filter ? ledger_.filter(one->ticket) : ledger_.discard(one->ticket);
            forget(one->ticket.id);
            return status == ticket_status::ok ? "" : "drop";
        }
        return {};
    }
    std::string retag() {
        if (unit* const one = any(random_() % 2 == 0)) {
            std::int64_t const oldest =
                std::max(one->ticket.version.value, version_ - static_cast<std::int64_t>(random_() % 2));
            one->deadline = std::max(one->deadline, oldest + bound_);
            one->ticket.version = {oldest};
            return ledger_.retag(one->ticket, {oldest}) == ticket_status::ok ? "" : "retag";
        }
        return {};
    }
    void change() {
        deadline_ledger_options const& options = ledger_.options();
        if (random_() % 2 == 0) {
            std::int64_t const lowest = options.publish_interval - 1;
            bound_ = lowest + static_cast<std::int64_t>(random_()) % (*options.max_staleness_limit - lowest + 1);
            ledger_.set_max_staleness(bound_);
        } else {
            size_ = 1 + static_cast<std::int64_t>(random_()) % *options.batch_size_limit;
            ledger_.set_batch_size(size_);
        }
        plan();
    }
    std::string train() {
        bool const may_take = next_batch_ - version_ < ledger_.options().publish_interval;
        if (!may_take || (next_batch_ > version_ && random_() % 2 == 0)) {
            version_ = next_batch_;
            ledger_.publish();
            plan();
            return {};
        }
        std::vector<taken_unit<int>> batch(static_cast<std::size_t>(sizes().front()));
        bool const is_ready = surplus_ > 0 ? completed() >= sizes().front() : brute_force::is_ready(units(), sizes());
        if (ledger_.can_take() != is_ready || ledger_.take(batch).has_value() != is_ready) {
            return "readiness";
        }
        if (!is_ready) {
            return {};
        }
        std::int64_t last_deadline = next_batch_;
        for (auto const& taken : batch) {
            unit const& one = find(taken.id);
            if (!one.is_completed || one.deadline < last_deadline ||
                taken.staleness != next_batch_ - one.ticket.version.value || taken.version != one.ticket.version) {
                return "taken unit";
            }
            last_deadline = one.deadline;
            forget(taken.id);
        }
        ++next_batch_;
        planned_.erase(planned_.begin());
        if (surplus_ == 0 && !brute_force::fits(brute_force::deadlines_of(units()), planned_)) {
            return "the batch took a place that is promised";
        }
        return {};
    }

    std::string check_exact() {
        auto const state = units();
        for (std::int64_t served = std::max<std::int64_t>(version_ - 3, 0); served <= version_; ++served) {
            bool const is_open = ledger_.admission_under({served}) == admission_status::open;
            if (is_open != fits_with(served + bound_)) {
                return "admission";
            }
        }
        batch_readiness const seen = ledger_.readiness();
        bool const is_ready = brute_force::is_ready(state, sizes());
        if ((seen.state == readiness_state::ready) != is_ready) {
            return "readiness";
        }
        if (seen.state == readiness_state::pending && seen.missing != sizes().front() - completed()) {
            return "missing";
        }
        return seen.state == readiness_state::blocked ? check_certificate(seen, state) : "";
    }

    /// Whatever all others do the batch stays blocked, and so it does while fewer than `excess` blockers complete or leave.
    std::string check_certificate(batch_readiness const& seen, std::vector<brute_force::unit> state) {
        std::int64_t const deadline = seen.deadline.value - next_batch_;
        std::int64_t blockers = 0;
        for (auto& each : state) {
            bool const blocks = !each.is_completed && each.deadline <= deadline;
            blockers += blocks ? 1 : 0;
            bool const completes = !each.is_completed && (!blocks || blockers < seen.excess);
            each.is_completed = each.is_completed || completes;
        }
        if (blockers != seen.blockers || seen.excess < 1 || seen.excess > blockers) {
            return "blockers";
        }
        return brute_force::is_ready(state, sizes()) ? "excess" : "";
    }

    std::string check_surplus() {
        std::vector<std::uint64_t> doomed;
        ledger_.for_each_doomed([&](unit_ticket const& ticket, int) { doomed.push_back(ticket.id); });
        for (unit const& each : units_) {
            bool const is_named = std::find(doomed.begin(), doomed.end(), each.ticket.id) != doomed.end();
            bool const is_doomed = !each.is_completed && !completed_fit_with(each.deadline);
            if (is_named != is_doomed) {
                return "doomed";
            }
        }
        return {};
    }

    deadline_ledger<int> ledger_;
    std::mt19937 random_;
    std::int64_t size_;
    std::int64_t bound_;
    std::int64_t surplus_;
    std::int64_t version_ = 0;
    std::int64_t next_batch_ = 0;
    std::vector<std::int64_t> planned_;
    std::vector<unit> units_;
    std::int64_t sacrifices_ = 0;
};

}  // namespace

TEST_CASE("admission, readiness, certificate, doomed and sacrifice agree with brute force on random states",
          "[deadline_ledger][oracle]") {
    std::mt19937 random(7);
    auto const below = [&](int bound) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(bound)); };
    int states = 0;
    std::int64_t sacrifices = 0;
    for (int run = 0; run < 1500; ++run) {
        std::int64_t const bound = below(4);
        witness pair({.batch_size = 1 + below(2),
                      .max_staleness = bound,
                      .publish_interval = 1 + below(static_cast<int>(bound) + 1),
                      .surplus = run % 3 == 0 ? 1 + below(2) : 0,
                      .batch_size_limit = 3,
                      .max_staleness_limit = 3},
                     static_cast<unsigned>(random()));
        for (int i = 0; i < 60; ++i) {
            std::string wrong = pair.step();
            if (wrong.empty() && pair.outstanding() <= 9) {
                wrong = pair.check();
                ++states;
                if (wrong.empty() && i % 2 == 0) {
                    wrong = pair.sacrifice(static_cast<sacrifice_mode>(below(3)));
                }
            }
            if (!wrong.empty()) {
                CAPTURE(run, i, wrong);
                FAIL("ledger and brute force differ");
            }
        }
        sacrifices += pair.sacrifices();
    }
    REQUIRE(states >= 10'000);
    REQUIRE(sacrifices >= 300);
}

TEST_CASE("in ten thousand blocked states the least sacrifice is that of a search through all subsets",
          "[deadline_ledger][oracle]") {
    std::mt19937 random(8);
    auto const below = [&](int bound) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(bound)); };
    std::int64_t sacrifices = 0;
    for (int run = 0; sacrifices < 10'000; ++run) {
        REQUIRE(run < 5000);
        witness pair(
            {.batch_size = 1 + below(3), .max_staleness = 1 + below(3), .batch_size_limit = 3, .max_staleness_limit = 3},
            static_cast<unsigned>(random()));
        for (int i = 0; i < 80; ++i) {
            std::string wrong = pair.step_that_blocks();
            if (wrong.empty() && pair.outstanding() <= 9) {
                wrong = pair.sacrifice(i % 10 == 0 ? static_cast<sacrifice_mode>(below(3)) : sacrifice_mode::wait);
            }
            if (!wrong.empty()) {
                CAPTURE(run, i, wrong);
                FAIL("ledger and brute force differ");
            }
        }
        sacrifices += pair.sacrifices();
    }
}
