// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/softmax_rows.hpp"

#include <asyncrl/correction/routing_replay.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace support;
using asyncrl::gate_rule;
using asyncrl::routing_report;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

namespace {

using indices = std::vector<std::int32_t>;

constexpr gate_rule every_rule[] = {gate_rule::softmax_of_chosen, gate_rule::softmax_of_all, gate_rule::sigmoid};
constexpr dtype every_dtype[] = {dtype::f64, dtype::f32, dtype::bf16, dtype::f16};

double tolerance_of(dtype type) {
    return type == dtype::f64 ? 1e-12 : type == dtype::f32 ? 4e-6 : type == dtype::bf16 ? 0x1p-8 : 0x1p-10;
}

struct problem {
    dtype type = dtype::f64;
    std::vector<numbers> logits;
    std::vector<indices> experts;
    std::vector<numbers> slopes;  ///< of the gates
    gate_rule rule = gate_rule::softmax_of_chosen;
    numbers bias;  ///< empty: none
    std::int64_t gap = 0;
};

/// What the library makes of it: gates, the experts they are of, and the gradient.
class answers {
  public:
    explicit answers(problem const& p, executor const& execute = asyncrl::serial{}, bool in_place = false)
        : logits(p.type, p.logits, p.gap, p.gap),
          gates(p.type, static_cast<std::int64_t>(p.logits.size()), chosen(p), p.gap),
          gradient(p.type, static_cast<std::int64_t>(p.logits.size()), static_cast<std::int64_t>(p.logits.front().size()),
                   p.gap + 1),
          experts(p.logits.size() * static_cast<std::size_t>(chosen(p) + p.gap), guard) {
        indices recorded;
        for (indices const& row : p.experts) {
            recorded.insert(recorded.end(), row.begin(), row.end());
            recorded.resize(recorded.size() + static_cast<std::size_t>(p.gap), guard);
        }
        stride = chosen(p) + p.gap;
        asyncrl::expert_indices const given{recorded.data(), static_cast<std::int64_t>(p.logits.size()), chosen(p), stride};
        asyncrl::routing_options options;
        if (!p.bias.empty()) {
            options.selection_bias = asyncrl::per_token(p.bias.data());
        }
        report = asyncrl::routing_replay(logits.in(), given, p.rule, {gates.out(), experts.data(), stride}, options, execute);
        if (!p.slopes.empty()) {
            rows_in_memory const slopes(p.type, p.slopes, p.gap);
            gradient_report = asyncrl::routing_replay_gradient(logits.in(), given, p.rule, slopes.in(),
                                                               in_place ? logits.out() : gradient.out(), options, execute);
        }
    }
    [[nodiscard]] indices experts_of(std::size_t row, std::size_t count) const {
        auto const first = experts.begin() + static_cast<std::ptrdiff_t>(row) * stride;
        return {first, first + static_cast<std::ptrdiff_t>(count)};
    }
    [[nodiscard]] bool guards_hold() const {
        return gates.elements().guards_hold() && gradient.elements().guards_hold() && logits.elements().guards_hold();
    }

    static constexpr std::int32_t guard = -12345;
    rows_in_memory logits, gates, gradient;
    indices experts;
    std::int64_t stride = 0;
    routing_report report, gradient_report;

  private:
    static std::int64_t chosen(problem const& p) { return static_cast<std::int64_t>(p.experts.front().size()); }
};

/// The k experts with the highest scores, by a stable sort of all.
indices top_of(std::vector<long double> const& scores, std::size_t k) {
    indices all(scores.size());
    std::iota(all.begin(), all.end(), 0);
    std::stable_sort(all.begin(), all.end(), [&](std::int32_t a, std::int32_t b) {
        return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    all.resize(k);
    return all;
}

std::vector<long double> gates_of(numbers const& z, indices const& experts, gate_rule rule) {
    auto const weight = [&](std::size_t i) {
        long double const e = std::exp(static_cast<long double>(z[i]));
        return rule == gate_rule::sigmoid ? e / (1 + e) : e;
    };
    long double total = rule == gate_rule::sigmoid ? 1e-20L : 0;
    if (rule == gate_rule::softmax_of_all) {
        for (std::size_t i = 0; i < z.size(); ++i) {
            total += weight(i);
        }
    } else {
        for (std::int32_t const i : experts) {
            total += weight(static_cast<std::size_t>(i));
        }
    }
    std::vector<long double> gates;
    for (std::int32_t const i : experts) {
        gates.push_back(weight(static_cast<std::size_t>(i)) / total);
    }
    return gates;
}

class generator {
  public:
    explicit generator(unsigned seed) : random_(seed) {}
    numbers reals(std::size_t n, double spread) {
        std::normal_distribution<double> noise(0, spread);
        numbers all(n);
        for (double& x : all) {
            x = noise(random_);
        }
        return all;
    }
    indices some(std::size_t k, std::size_t of) {
        indices all(of);
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), random_);
        all.resize(k);
        return all;
    }

  private:
    std::mt19937 random_;
};

problem random_problem(unsigned seed, dtype type, gate_rule rule, std::size_t rows, std::size_t experts, std::size_t chosen) {
    generator make(seed);
    problem p;
    p.type = type;
    p.rule = rule;
    p.gap = seed % 3;
    for (std::size_t row = 0; row < rows; ++row) {
        p.logits.push_back(make.reals(experts, 2));
        for (double& x : p.logits.back()) {
            x = as_stored(type, x);
        }
        std::vector<long double> const scores(p.logits.back().begin(), p.logits.back().end());
        p.experts.push_back(row % 4 == 1   ? indices(chosen, -1)
                            : row % 4 == 2 ? top_of(scores, chosen)
                                           : make.some(chosen, experts));
        p.slopes.push_back(make.reals(chosen, 1));
        for (double& x : p.slopes.back()) {
            x = as_stored(type, x);
        }
    }
    return p;
}

std::string text_of_error(auto const& call) {
    try {
        call();
    } catch (std::invalid_argument const& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("gates of two replayed experts and their gradient, worked out to twelve digits") {
    struct expected {
        gate_rule rule;
        double gate0, gate3;
        numbers slope_of_gate0;
    };
    expected const table[] = {
        {gate_rule::softmax_of_chosen, 0.622459331202, 0.377540668798, {0.235003712202, 0, 0, -0.235003712202}},
        {gate_rule::softmax_of_all,
         0.268267797394,
         0.162712644133,
         {0.196300186275, -0.0339950923731, -0.118654531253, -0.0436505626497}},
        {gate_rule::sigmoid, 0.554549562642, 0.445450437358, {0.0932617365021, 0, 0, -0.123512172608}}};
    for (expected const& want : table) {
        for (dtype const type : {dtype::f64, dtype::f32}) {
            double const within = type == dtype::f64 ? 1e-12 : 1e-7;
            problem p;
            p.type = type;
            p.rule = want.rule;
            p.logits = {{0.5, -0.25, 1, 0}};  // its own top-2 is {2, 0}
            p.experts = {{0, 3}};
            p.slopes = {{1, 0}};
            answers const got(p);
            REQUIRE_THAT(got.gates.row(0)[0], WithinAbs(want.gate0, within));
            REQUIRE_THAT(got.gates.row(0)[1], WithinAbs(want.gate3, within));
            for (std::size_t i = 0; i < 4; ++i) {
                REQUIRE_THAT(got.gradient.row(0)[i], WithinAbs(want.slope_of_gate0[i], within));
            }
            REQUIRE(got.report.replayed == 1);
            REQUIRE(got.report.differing_share() == 1);
        }
    }
}

TEST_CASE("random rows agree with gates in long double; rows that were not recorded take their own top-k") {
    unsigned seed = 0;
    for (gate_rule const rule : every_rule) {
        for (dtype const type : every_dtype) {
            for (auto const& [experts, chosen] : std::vector<std::pair<std::size_t, std::size_t>>{
                     {1, 1}, {2, 1}, {8, 2}, {8, 8}, {64, 6}, {257, 8}, {200, 128}}) {
                CAPTURE(static_cast<int>(rule), static_cast<int>(type), experts, chosen);
                problem const p = random_problem(++seed, type, rule, 9, experts, chosen);
                answers const got(p);
                std::int64_t differing = 0;
                for (std::size_t row = 0; row < 9; ++row) {
                    numbers const& z = p.logits[row];
                    indices const top = top_of({z.begin(), z.end()}, chosen);
                    indices const used = row % 4 == 1 ? top : p.experts[row];
                    REQUIRE(got.experts_of(row, chosen) == used);
                    differing +=
                        std::set<std::int32_t>(used.begin(), used.end()) != std::set<std::int32_t>(top.begin(), top.end()) ? 1
                                                                                                                           : 0;
                    auto const want = gates_of(z, used, rule);
                    for (std::size_t k = 0; k < chosen; ++k) {
                        REQUIRE_THAT(got.gates.row(row)[k],
                                     WithinAbs(static_cast<double>(want[k]), tolerance_of(type) * static_cast<double>(want[k]) +
                                                                                 1e-7 * (type != dtype::f64)));
                    }
                }
                REQUIRE(got.report.replayed == 7);
                REQUIRE(got.report.fallen_back == 2);
                REQUIRE(got.report.differing == differing);
                REQUIRE(got.report.nonfinite == 0);
                REQUIRE(got.guards_hold());
                for (std::size_t i = 0; i < got.experts.size(); ++i) {
                    bool const gap = static_cast<std::int64_t>(i) % got.stride >= static_cast<std::int64_t>(chosen);
                    REQUIRE((got.experts[i] == answers::guard) == gap);
                }
            }
        }
    }
}

TEST_CASE("the gradient is the slope of the gates, and reaches no expert that the rule leaves out") {
    for (gate_rule const rule : every_rule) {
        CAPTURE(static_cast<int>(rule));
        problem const p = random_problem(3, dtype::f64, rule, 6, 7, 3);
        answers const got(p);
        auto const loss = [&](std::size_t row, numbers const& z) {
            auto const gates = gates_of(z, got.experts_of(row, 3), rule);
            long double sum = 0;
            for (std::size_t k = 0; k < 3; ++k) {
                sum += static_cast<long double>(p.slopes[row][k]) * gates[k];
            }
            return static_cast<double>(sum);
        };
        for (std::size_t row = 0; row < 6; ++row) {
            indices const used = got.experts_of(row, 3);
            for (std::size_t j = 0; j < 7; ++j) {
                constexpr double step = 1e-5;
                numbers up = p.logits[row];
                numbers down = up;
                up[j] += step;
                down[j] -= step;
                REQUIRE_THAT(got.gradient.row(row)[j], WithinAbs((loss(row, up) - loss(row, down)) / (2 * step), 1e-9));
                bool const in = std::find(used.begin(), used.end(), static_cast<std::int32_t>(j)) != used.end();
                if (!in && rule != gate_rule::softmax_of_all) {
                    REQUIRE(got.gradient.elements().bits(row, j) == 0);
                }
            }
        }
        REQUIRE(got.gradient_report.replayed == got.report.replayed);
        REQUIRE(got.gradient_report.fallen_back == got.report.fallen_back);
    }
}

TEST_CASE("of equal scores the lower index wins, and experts differ as sets, not as lists") {
    problem p;
    p.logits = {{1, 2, 2, 1, 2}, {1, 2, 2, 1, 2}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}};
    p.experts = {{-1, -1, -1}, {4, 2, 1}, {1, 0, 2}, {0, 1, 3}};
    answers const got(p);
    REQUIRE(got.experts_of(0, 3) == indices{1, 2, 4});
    REQUIRE(got.experts_of(1, 3) == indices{4, 2, 1});
    REQUIRE(got.report.differing == 1);
    REQUIRE(got.report.replayed == 3);
    REQUIRE_THAT(got.report.differing_share(), WithinRel(1.0 / 3, 1e-15));

    p.logits = {{1, 2, 2, 1, 2}};
    p.experts = {{-1, -1}};
    REQUIRE(answers(p).experts_of(0, 2) == indices{1, 2});
    REQUIRE(answers(p).report.differing_share() == 0);
}

TEST_CASE("a selection bias chooses experts and never weighs them") {
    problem p;
    p.rule = gate_rule::sigmoid;
    p.logits = {{2, 1, 0, -1}, {2, 1, 0, -1}};
    p.experts = {{-1, -1}, {3, 0}};
    p.slopes = {{1, 2}, {1, 2}};
    p.bias = {0, -10, 0, 0.9};  // sigmoid(-1) + 0.9 = 1.17 is the highest, sigmoid(2) = 0.88 the next
    answers const got(p);
    REQUIRE(got.experts_of(0, 2) == indices{3, 0});
    REQUIRE(got.report.differing == 0);
    auto const want = gates_of(p.logits[0], {3, 0}, p.rule);
    for (std::size_t const row : {0U, 1U}) {
        REQUIRE_THAT(got.gates.row(row)[0], WithinRel(static_cast<double>(want[0]), 1e-14));
        REQUIRE_THAT(got.gates.row(row)[1], WithinRel(static_cast<double>(want[1]), 1e-14));
    }
    REQUIRE(got.gradient.row(0) == got.gradient.row(1));
    REQUIRE(got.gradient.row(0)[1] == 0);
}

TEST_CASE("logits far out: gates stay gates") {
    for (gate_rule const rule : every_rule) {
        problem p;
        p.rule = rule;
        p.logits = {{1e4, -1e4, 9999, -infinity}, {-40, -40, -40, -40}, {-1e4, -1e4, -1e4, -1e4}};
        p.experts = {{0, 3}, {0, 3}, {0, 3}};
        p.slopes = {{1, -1}, {1, -1}, {1, -1}};
        answers const got(p);
        REQUIRE(got.report.nonfinite == 0);
        double const share = rule == gate_rule::softmax_of_all ? 1 / (1 + std::exp(-1.0)) : 1;
        REQUIRE_THAT(got.gates.row(0)[0], WithinRel(share, 1e-12));
        REQUIRE(got.gates.row(0)[1] == 0);
        double const half = rule == gate_rule::softmax_of_all ? 0.25 : 0.5;
        double const tiny = std::exp(-40.0);
        REQUIRE_THAT(got.gates.row(1)[0], WithinRel(rule == gate_rule::sigmoid ? tiny / (2 * tiny + 1e-20) : half, 1e-12));
        // Sigmoids of 0 each: 0 / 1e-20, and no NaN.
        REQUIRE_THAT(got.gates.row(2)[0], WithinRel(rule == gate_rule::sigmoid ? 0 : half, 1e-12));
        for (std::size_t row = 0; row < 3; ++row) {
            numbers const all = got.gradient.row(row);
            REQUIRE(std::all_of(all.begin(), all.end(), [](double x) { return std::isfinite(x); }));
        }
    }
}

TEST_CASE("what has no gates is NaN and counted, and only its row") {
    gate_rule const rule = GENERATE(gate_rule::softmax_of_chosen, gate_rule::softmax_of_all, gate_rule::sigmoid);
    double const bad = GENERATE(not_a_number, infinity);
    problem p = random_problem(1, dtype::f32, rule, 5, 6, 2);
    p.logits[2][5] = bad;
    p.slopes[4][1] = bad;
    answers const got(p);
    REQUIRE(got.report.nonfinite == 1);
    REQUIRE(got.report.first_nonfinite == 2);
    REQUIRE(got.gradient_report.nonfinite == 2);
    REQUIRE(got.gradient_report.first_nonfinite == 2);
    for (std::size_t row = 0; row < 5; ++row) {
        numbers const gates = got.gates.row(row);
        REQUIRE(std::isnan(gates[0] + gates[1]) == (row == 2));
        numbers const all = got.gradient.row(row);
        bool const spoiled = row == 2 || row == 4;
        indices const used = got.experts_of(row, 2);
        for (std::size_t j = 0; j < 6; ++j) {
            bool const in = std::find(used.begin(), used.end(), static_cast<std::int32_t>(j)) != used.end();
            REQUIRE(std::isnan(all[j]) == (spoiled && (in || rule == gate_rule::softmax_of_all)));
        }
    }
    problem empty;
    empty.rule = gate_rule::softmax_of_chosen;
    empty.logits = {{1, -infinity, -infinity}};
    empty.experts = {{1, 2}};
    REQUIRE(answers(empty).report.nonfinite == 1);
}

TEST_CASE("a row whose slopes are 0 is +0 whatever its logits are") {
    problem p = random_problem(2, dtype::bf16, gate_rule::softmax_of_all, 3, 6, 2);
    p.logits[1].assign(6, not_a_number);
    p.slopes[1] = {0, -0.0};
    answers const got(p);
    for (std::size_t j = 0; j < 6; ++j) {
        REQUIRE(got.gradient.elements().bits(1, j) == 0);
    }
    REQUIRE(got.gradient_report.nonfinite == 0);
    REQUIRE(got.gradient_report.replayed + got.gradient_report.fallen_back == 2);
}

TEST_CASE("in place, elsewhere and by any executor: the same bits") {
    for (gate_rule const rule : every_rule) {
        for (dtype const type : every_dtype) {
            problem const p = random_problem(4, type, rule, 400, 64, 6);
            answers const first(p);
            for (executor const& execute : {executor(backwards), executor(on_three_threads)}) {
                answers const other(p, execute, true);
                REQUIRE(first.gates.elements().bytes() == other.gates.elements().bytes());
                REQUIRE(first.experts == other.experts);
                REQUIRE(first.report.differing == other.report.differing);
                REQUIRE(other.guards_hold());
                for (std::size_t row = 0; row < 400; ++row) {
                    for (std::size_t j = 0; j < 64; ++j) {
                        if (first.gradient.elements().bits(row, j) != other.logits.elements().bits(row, j)) {
                            FAIL("row " << row << ", expert " << j);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("misuse names row and value, and writes nothing") {
    rows_in_memory const logits(dtype::f32, std::vector<numbers>(3, numbers{1, 2, 3, 4}));
    rows_in_memory gates(dtype::f32, 3, 2);
    rows_in_memory gradient(dtype::f32, 3, 4);
    indices recorded{0, 1, -1, -1, 2, 3};
    asyncrl::matrix z = logits.in();
    asyncrl::expert_indices experts{recorded.data(), 3, 2, 2};
    gate_rule rule = gate_rule::softmax_of_chosen;
    asyncrl::routing_outputs outputs{gates.out()};
    asyncrl::matrix slopes = logits.in();
    slopes.columns = 2;
    asyncrl::output_matrix to = gradient.out();
    asyncrl::routing_options options;
    auto const forward = [&] {
        return text_of_error([&] { asyncrl::routing_replay(z, experts, rule, outputs, options, executor(backwards)); });
    };
    auto const backward = [&] {
        return text_of_error(
            [&] { asyncrl::routing_replay_gradient(z, experts, rule, slopes, to, options, executor(on_three_threads)); });
    };
    SECTION("an index outside the experts; the first row is named") {
        recorded = {0, 1, 4, 0, -2, 0};
        experts.data = recorded.data();
        REQUIRE(forward() == "asyncrl: experts[1][0] = 4, must be in [0, 4), or -1 throughout the row");
        REQUIRE(backward() == forward());
        recorded[2] = 3;
        REQUIRE(forward() == "asyncrl: experts[2][0] = -2, must be in [0, 4), or -1 throughout the row");
    }
    SECTION("a row that is recorded in part, or names an expert twice") {
        recorded[5] = -1;
        REQUIRE(forward() == "asyncrl: experts[2][1] = -1, must be in [0, 4), or -1 throughout the row");
        recorded[5] = 2;
        REQUIRE(forward() == "asyncrl: experts[2][1] = 2, must be named once in its row");
        REQUIRE(backward() == forward());
    }
    SECTION("shapes") {
        experts.rows = 2;
        REQUIRE(forward() == "asyncrl: experts.rows = 2, must be that of the logits, 3");
        experts.rows = 3;
        experts.chosen = 5;
        REQUIRE(forward() == "asyncrl: experts.chosen = 5, must be in [1, 4]");
        experts.chosen = 2;
        z.columns = 5000;
        REQUIRE(forward() == "asyncrl: logits.columns = 5000, must be at most 4096");
        z.columns = 4;
        outputs.gates.columns = 3;
        REQUIRE(forward() == "asyncrl: gates.columns = 3, must be 2");
        slopes.rows = 1;
        REQUIRE(backward() == "asyncrl: gate_slopes.rows = 1, must be that of the logits, 3");
        slopes.rows = 3;
        to.type = dtype::f64;
        REQUIRE(backward().find("gradient has dtype f64") != std::string::npos);
        indices place(6);
        outputs = {gates.out(), place.data(), 1};
        REQUIRE(forward() == "asyncrl: routing_outputs.experts_stride = 1, must be at least experts.chosen, 2");
        experts.data = nullptr;
        REQUIRE(forward() == "asyncrl: experts.data is absent");
    }
    SECTION("a bias where there is none, or a rule that is none") {
        float const bias[4] = {};
        options.selection_bias = asyncrl::per_token(bias);
        REQUIRE(forward() == "asyncrl: routing_options.selection_bias is given, but only gate_rule::sigmoid has one");
        rule = static_cast<gate_rule>(7);
        REQUIRE(forward() == "asyncrl: gate_rule = 7, must be one of its enumerators");
    }
    REQUIRE(gates.elements().untouched());
    REQUIRE(gradient.elements().untouched());
}

TEST_CASE("no rows are an answer") {
    for (gate_rule const rule : every_rule) {
        REQUIRE(asyncrl::routing_replay({}, {}, rule, {}).differing_share() == 0);
        REQUIRE(asyncrl::routing_replay_gradient({}, {}, rule, {}, {}).nonfinite == 0);
    }
}
