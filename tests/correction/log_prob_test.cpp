// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/softmax_rows.hpp"

#include <asyncrl/correction/log_prob.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace support;
using asyncrl::log_prob_report;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

namespace {

struct bounds {
    double relative, absolute;
};
bounds bounds_of(dtype type) {
    switch (type) {
        case dtype::f64:
            return {1e-12, 1e-14};
        case dtype::bf16:
            return {0x1p-8, 1e-7};
        case dtype::f16:
            return {0x1p-10, 1e-7};
        default:
            return {4e-6, 1e-7};
    }
}

/// Rows, their targets and supports, and everything a call can be told about them.
struct problem {
    dtype type = dtype::f64;
    std::vector<numbers> rows;
    std::vector<std::int64_t> targets;
    std::vector<std::vector<std::int64_t>> supports;  ///< empty: no lists at all
    std::vector<std::uint8_t> mask;                   ///< empty: none
    double temperature = 1;
    numbers g, h;  ///< empty: absent
    std::int64_t gap = 0, shift = 0;
    bool narrow_ids = false;

    [[nodiscard]] bool active(std::size_t row) const { return mask.empty() || mask[row] != 0; }
    [[nodiscard]] double slope(numbers const& of, std::size_t row) const { return of.empty() ? 0 : of[row]; }
    [[nodiscard]] std::vector<std::size_t> elements(std::size_t row) const {
        if (supports.empty() || supports[row].empty()) {
            return all_of(rows[row]);
        }
        std::set<std::size_t> chosen{static_cast<std::size_t>(targets[row])};
        for (std::int64_t const id : supports[row]) {
            chosen.insert(static_cast<std::size_t>(id));
        }
        return {chosen.begin(), chosen.end()};
    }
};

/// The library's answers to a problem.
class answers {
  public:
    answers(problem const& p, executor execute = asyncrl::serial{}, dtype saved = dtype::f64, std::int64_t stride = 1)
        : logits(p.type, p.rows, p.gap, p.shift),
          log_prob(row_numbers(saved, p.rows.size(), stride)),
          log_sum_exp(row_numbers(saved, p.rows.size(), stride)),
          entropy(row_numbers(saved, p.rows.size(), stride)),
          problem_(p),
          execute_(std::move(execute)) {
        offsets_.push_back(0);
        for (auto const& support : p.supports) {
            ids_.insert(ids_.end(), support.begin(), support.end());
            offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
        }
        narrow_ids_.assign(ids_.begin(), ids_.end());
        narrow_offsets_.assign(offsets_.begin(), offsets_.end());
        narrow_targets_.assign(p.targets.begin(), p.targets.end());
        before_ = logits.elements().bytes();
        report = asyncrl::log_prob(logits.in(), targets(), outputs(), options(), execute_);
        inputs_untouched = before_ == logits.elements().bytes();
    }

    [[nodiscard]] asyncrl::log_prob_options options() const {
        asyncrl::log_prob_options o;
        o.temperature = problem_.temperature;
        if (!problem_.mask.empty()) {
            o.mask = asyncrl::per_token(problem_.mask.data());
        }
        if (!problem_.supports.empty()) {
            o.support.offsets = problem_.narrow_ids ? asyncrl::row_offsets(narrow_offsets_.data()) : offsets_.data();
            o.support.ids = problem_.narrow_ids ? asyncrl::token_ids(narrow_ids_.data()) : ids_.data();
        }
        return o;
    }
    [[nodiscard]] asyncrl::token_ids targets() const {
        return problem_.narrow_ids ? asyncrl::token_ids(narrow_targets_.data()) : problem_.targets.data();
    }
    [[nodiscard]] asyncrl::log_prob_outputs outputs() { return {log_prob.out(), log_sum_exp.out(), entropy.out()}; }

    /// The gradient in a buffer of its own.
    [[nodiscard]] rows_in_memory gradient(dtype type, std::int64_t gap = 0, std::int64_t shift = 0) {
        rows_in_memory to(type, static_cast<std::int64_t>(problem_.rows.size()),
                          static_cast<std::int64_t>(problem_.rows.front().size()), gap, shift);
        gradient_into(to.out());
        inputs_untouched = inputs_untouched && before_ == logits.elements().bytes();
        return to;
    }
    void gradient_in_place() { gradient_into(logits.out()); }

    rows_in_memory logits;
    memory log_prob, log_sum_exp, entropy;
    log_prob_report report, gradient_report;
    bool inputs_untouched = false;

  private:
    void gradient_into(asyncrl::output_matrix const& to) {
        asyncrl::log_prob_slopes slopes;
        if (!problem_.g.empty()) {
            slopes.log_prob = asyncrl::per_token(problem_.g.data());
        }
        if (!problem_.h.empty()) {
            slopes.entropy = asyncrl::per_token(problem_.h.data());
        }
        gradient_report = asyncrl::log_prob_gradient(logits.in(), targets(), outputs(), slopes, to, options(), execute_);
    }

    problem problem_;
    executor execute_;
    std::vector<std::int64_t> ids_, offsets_;
    std::vector<std::int32_t> narrow_ids_, narrow_offsets_, narrow_targets_;
    std::vector<unsigned char> before_;
};

/// Where the library and the textbook differ, as a sentence; empty where they agree.
std::string difference(problem const& p, dtype gradient_type, dtype saved = dtype::f64) {
    std::ostringstream found;
    found.precision(17);
    answers got(p, asyncrl::serial{}, saved, 3);
    rows_in_memory const gradient = got.gradient(gradient_type, 5, 1);
    bounds const fits = bounds_of(p.type == dtype::f64 ? dtype::f64 : dtype::f32);
    auto const check = [&](char const* name, std::size_t row, double value, long double want, bounds within, double size) {
        if (!(std::abs(value - static_cast<double>(want)) <= within.relative * size + within.absolute)) {
            found << name << " of row " << row << " is " << value << ", expected " << want << "; ";
        }
    };
    for (std::size_t row = 0; row < p.rows.size() && found.str().empty(); ++row) {
        numbers const logits = got.logits.row(row);
        auto const target = static_cast<std::size_t>(p.targets[row]);
        exact_softmax const exact(logits, p.elements(row), p.temperature);
        auto const whole = [&](char const* name, memory const& from, long double want) {
            double const size = std::abs(static_cast<double>(want));
            check(name, row, from.get(0, row), want, saved == dtype::f64 ? fits : bounds_of(dtype::f32), size);
        };
        whole("log_prob", got.log_prob, exact.log_p(target));
        whole("log_sum_exp", got.log_sum_exp, exact.log_sum_exp());
        whole("entropy", got.entropy, exact.entropy());

        double const g = p.slope(p.g, row);
        double const h = p.slope(p.h, row);
        numbers want(logits.size(), 0);
        numbers sizes(logits.size(), 0);
        std::vector<bool> inside(logits.size(), false);
        // The gradient knows log p through the saved log-sum-exp, whose digits count from its own size.
        double const lost = (saved == dtype::f64 ? 0x1p-50 : 0x1p-23) * std::abs(static_cast<double>(exact.log_sum_exp()));
        double const relative = std::max(bounds_of(gradient_type).relative, fits.relative);
        for (std::size_t const i : exact.elements()) {
            long double const q = exact.p(i);
            long double const pull = i == target ? exact.rest(i) : -q;
            long double const log_p = q > 0 ? exact.log_p(i) : 0;
            inside[i] = true;
            want[i] = static_cast<double>((g * pull - h * q * (log_p + exact.entropy())) / p.temperature);
            long double const moves = std::abs(g * pull) + std::abs(h) * q * (std::abs(log_p) + exact.entropy());
            // A float's log p has digits relative to its own size, and so has p.
            long double const shift = lost + (p.type == dtype::f64 ? 0 : 0x1p-22L * std::abs(log_p));
            long double const shifts = shift * q * (std::abs(g) + std::abs(h) * (1 + std::abs(log_p) + exact.entropy()));
            sizes[i] = static_cast<double>((relative * moves + shifts) / p.temperature);
        }
        numbers const values = gradient.row(row);
        double const underflow = gradient_type == dtype::f16 ? 0x1p-25 : gradient_type == dtype::f64 ? 1e-300 : 1e-35;
        for (std::size_t i = 0; i < values.size(); ++i) {
            check("gradient", row, values[i], want[i], {1, underflow}, sizes[i]);
            if (!inside[i] && gradient.elements().bits(row, i) != 0) {
                found << "gradient[" << i << "] outside the support of row " << row << " is " << values[i];
            }
        }
    }
    for (memory const* m : std::initializer_list<memory const*>{&got.log_prob, &got.log_sum_exp, &got.entropy,
                                                                &gradient.elements(), &got.logits.elements()}) {
        if (!m->guards_hold()) {
            found << "something beside the outputs was written";
        }
    }
    if (!got.inputs_untouched) {
        found << "an input was written";
    }
    return found.str();
}

class generator {
  public:
    explicit generator(unsigned seed) : random_(seed) {}
    numbers logits(std::size_t n, double spread) {
        std::normal_distribution<double> noise(0, spread);
        numbers all(n);
        for (double& x : all) {
            x = noise(random_);
        }
        return all;
    }
    std::int64_t below(std::size_t n) { return static_cast<std::int64_t>(random_() % n); }
    double slope() { return std::uniform_real_distribution<double>(-2, 2)(random_); }
    std::vector<std::int64_t> support(std::size_t vocabulary, std::size_t most) {
        std::set<std::int64_t> ids;
        for (std::size_t i = 0; i < most; ++i) {
            ids.insert(below(vocabulary));
        }
        return {ids.begin(), ids.end()};
    }

  private:
    std::mt19937 random_;
};

problem random_problem(unsigned seed, dtype type, std::size_t rows, std::size_t vocabulary, double spread, bool supported) {
    generator make(seed);
    problem p;
    p.type = type;
    p.temperature = std::vector<double>{1, 0.7, 1.6}[seed % 3];
    p.gap = static_cast<std::int64_t>(seed % 4);
    p.shift = static_cast<std::int64_t>(seed % 5);
    p.narrow_ids = seed % 2 == 0;
    for (std::size_t row = 0; row < rows; ++row) {
        p.rows.push_back(make.logits(vocabulary, spread));
        p.targets.push_back(make.below(vocabulary));
        p.g.push_back(make.slope());
        p.h.push_back(make.slope());
        if (supported) {
            p.supports.push_back(row % 3 == 2 ? std::vector<std::int64_t>{} : make.support(vocabulary, vocabulary / 2 + 1));
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

bool same_bits(memory const& a, memory const& b) {
    return a.bytes() == b.bytes();
}

constexpr dtype every_dtype[] = {dtype::f64, dtype::f32, dtype::bf16, dtype::f16};

}  // namespace

TEST_CASE("log-prob and gradient over everything and over a nucleus, worked out to twelve digits") {
    numbers const logits{0.5, -0.25, 1, 0};
    problem p;
    p.rows = {logits, logits, logits};
    p.targets = {0, 0, 0};
    p.supports = {{}, {0, 2}, {2}};  // in the last the target belongs to the support without being listed
    p.g = {1, 1, 1};
    numbers const full{0.731732202606, -0.126720734666, -0.442298823807, -0.162712644133};
    numbers const nucleus{0.622459331202, 0, -0.622459331202, 0};

    for (dtype const type : {dtype::f64, dtype::f32}) {
        p.type = type;
        double const within = type == dtype::f64 ? 6e-12 : 1e-6;
        answers got(p);
        rows_in_memory const gradient = got.gradient(type);
        REQUIRE_THAT(got.log_prob.get(0, 0), WithinAbs(-1.31576955338, within));
        for (std::size_t const row : {1U, 2U}) {
            REQUIRE_THAT(got.log_prob.get(0, row), WithinAbs(-0.97407698418, within));
        }
        for (std::size_t i = 0; i < 4; ++i) {
            REQUIRE_THAT(gradient.row(0)[i], WithinAbs(full[i], within));
            REQUIRE_THAT(gradient.row(1)[i], WithinAbs(nucleus[i], within));
            REQUIRE_THAT(gradient.row(2)[i], WithinAbs(nucleus[i], within));
        }
    }
}

TEST_CASE("random rows agree with a softmax in long double, for every dtype, length, stride and support") {
    unsigned seed = 0;
    for (std::size_t const vocabulary :
         std::initializer_list<std::size_t>{1, 2, 3, 31, 32, 33, 63, 64, 65, 500, 2047, 2048, 2049, 4097}) {
        for (dtype const type : every_dtype) {
            for (bool const supported : {false, true}) {
                ++seed;
                CAPTURE(vocabulary, static_cast<int>(type), supported);
                problem const p = random_problem(seed, type, 4, vocabulary, 3, supported);
                REQUIRE(difference(p, type) == "");
                if (type != dtype::f64) {
                    REQUIRE(difference(p, dtype::f32, dtype::f32) == "");
                }
            }
        }
    }
}

TEST_CASE("long rows keep their digits") {
    for (dtype const type : {dtype::f64, dtype::f32, dtype::bf16}) {
        for (std::size_t const vocabulary : std::initializer_list<std::size_t>{100'003, 262'144}) {
            CAPTURE(static_cast<int>(type), vocabulary);
            REQUIRE(difference(random_problem(1, type, 1, vocabulary, 3, false), type) == "");
            // Equal terms, whose roundings all go the same way.
            problem flat = random_problem(2, type, 1, vocabulary, 0.1, false);
            flat.rows[0].assign(vocabulary, -2.3);
            flat.rows[0][7] = 0;
            REQUIRE(difference(flat, type) == "");
        }
    }
}

TEST_CASE("the logits of a row may lie anywhere: far from zero, far apart, or -infinity") {
    generator make(3);
    for (dtype const type : every_dtype) {
        for (double const centre : {-1e4, -80.0, 80.0, 1e4}) {
            for (double const spread : {1.0, 30.0, 300.0}) {
                CAPTURE(static_cast<int>(type), centre, spread);
                problem p = random_problem(4, type, 3, 3000, spread, false);
                for (numbers& row : p.rows) {
                    for (double& x : row) {
                        x += centre;
                    }
                }
                p.rows[1].back() = p.rows[1][2000] = -infinity;
                std::fill_n(p.rows[2].begin(), 2500, -infinity);  // a whole block
                p.targets[1] = 5;
                p.targets[2] = 2999;
                REQUIRE(difference(p, type) == "");
            }
        }
    }
    problem extremes;
    extremes.type = dtype::f32;
    extremes.rows = {{3e38, -3e38, 0}, {-3e38, -3e38, -infinity}};
    extremes.targets = {0, 1};
    extremes.g = {1, 1};
    answers got(extremes);
    REQUIRE(got.log_prob.get(0, 0) == 0);
    REQUIRE_THAT(got.log_prob.get(0, 1), WithinRel(std::log(0.5), 1e-12));
    REQUIRE(got.report.nonfinite == 0);
}

TEST_CASE("what is left of a probability near 1 keeps its digits") {
    for (dtype const type : {dtype::f32, dtype::f64}) {
        for (double const gap : {5.0, 10.0, 15.0, 30.0, 38.0}) {
            double const close = type == dtype::f32 ? 4e-6 : 1e-11;
            problem p;
            p.type = type;
            p.rows = {numbers(50'000, -gap - 3)};
            p.rows[0][17] = 0;
            p.rows[0][40'000] = -gap;
            p.targets = {17};
            p.g = {1};
            answers got(p);
            exact_softmax const exact(got.logits.row(0), all_of(p.rows[0]), 1);
            REQUIRE_THAT(got.log_prob.get(0, 0), WithinRel(static_cast<double>(exact.log_p(17)), close));
            REQUIRE_THAT(got.entropy.get(0, 0), WithinRel(static_cast<double>(exact.entropy()), close));
            REQUIRE_THAT(got.gradient(type).row(0)[17], WithinRel(static_cast<double>(exact.rest(17)), close));
        }
    }
}

TEST_CASE("the gradient is the slope of the outputs") {
    bool const supported = GENERATE(false, true);
    double const temperature = GENERATE(0.6, 1.0, 2.5);
    for (int const which : {1, 2, 3}) {  // g alone, h alone, both
        problem p = random_problem(7, dtype::f64, 6, 12, 2, supported);
        p.temperature = temperature;
        if (which == 1) {
            p.h.clear();
        }
        if (which == 2) {
            p.g.clear();
        }
        answers at(p);
        rows_in_memory const gradient = at.gradient(dtype::f64);
        auto const loss = [&](problem const& q, std::size_t row) {
            answers const got(q);
            return q.slope(q.g, row) * got.log_prob.get(0, row) + q.slope(q.h, row) * got.entropy.get(0, row);
        };
        for (std::size_t row = 0; row < p.rows.size(); ++row) {
            for (std::size_t i = 0; i < p.rows[row].size(); ++i) {
                constexpr double step = 1e-5;
                problem up = p;
                problem down = p;
                up.rows[row][i] += step;
                down.rows[row][i] -= step;
                REQUIRE_THAT(gradient.row(row)[i], WithinAbs((loss(up, row) - loss(down, row)) / (2 * step), 2e-9));
            }
        }
    }
}

TEST_CASE("one token alone has probability 1, and nothing pulls at its logit") {
    for (dtype const type : every_dtype) {
        problem p;
        p.type = type;
        p.rows = {{-7.5}, {3}};
        p.targets = {0, 0};
        p.g = {1, -2};
        p.h = {1, 1};
        p.temperature = 0.5;
        answers got(p);
        REQUIRE(got.log_prob.get(0, 0) == 0);
        REQUIRE(got.log_sum_exp.get(0, 0) == -15);
        REQUIRE(got.entropy.get(0, 1) == 0);
        REQUIRE(got.gradient(type).row(0)[0] == 0);
        REQUIRE(got.gradient(type).row(1)[0] == 0);
    }
}

TEST_CASE("a chosen token of probability 0 has log-prob -infinity, and a gradient that raises it") {
    problem p;
    p.type = dtype::f32;
    p.rows = {{-infinity, 1, 1}};
    p.targets = {0};
    p.g = {1};
    p.h = {0.5};
    answers got(p);
    REQUIRE(got.log_prob.get(0, 0) == -infinity);
    REQUIRE_THAT(got.entropy.get(0, 0), WithinRel(std::log(2.0), 1e-6));
    numbers const gradient = got.gradient(dtype::f32).row(0);
    REQUIRE(gradient[0] == 1);
    REQUIRE_THAT(gradient[1], WithinRel(-0.5, 1e-6));
}

TEST_CASE("a row without a softmax is NaN and counted, and only it") {
    double const bad = GENERATE(not_a_number, infinity);
    std::size_t const place = GENERATE(0U, 1U, 2047U, 2048U, 2999U);
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16, dtype::f16);
    problem p = random_problem(6, type, 4, 3000, 2, false);
    p.supports = {{1, 2}, {}, {5, 6}, {}};
    p.targets = {1, 1, 5, 7};
    p.rows[1][place] = bad;
    p.rows[3].assign(3000, -infinity);
    if (place > 2) {
        p.rows[0][place] = bad;  // outside the support
    }
    answers got(p);
    rows_in_memory const gradient = got.gradient(type);
    REQUIRE(got.report.rows == 4);
    REQUIRE(got.report.nonfinite == 2);
    REQUIRE(got.report.first_nonfinite == 1);
    REQUIRE(got.gradient_report.nonfinite == 2);
    REQUIRE(got.gradient_report.first_nonfinite == 1);
    for (std::size_t const row : {1U, 3U}) {
        REQUIRE(std::isnan(got.log_prob.get(0, row)));
        REQUIRE(std::isnan(got.log_sum_exp.get(0, row)));
        REQUIRE(std::isnan(got.entropy.get(0, row)));
        numbers const all = gradient.row(row);
        REQUIRE(std::all_of(all.begin(), all.end(), [](double x) { return std::isnan(x); }));
    }
    for (std::size_t const row : {0U, 2U}) {
        REQUIRE(std::isfinite(got.log_prob.get(0, row)));
        numbers const all = gradient.row(row);
        REQUIRE(std::all_of(all.begin(), all.end(), [](double x) { return std::isfinite(x); }));
    }
}

TEST_CASE("an unusable number in the support, among the slopes or among what was saved spoils the row's support alone") {
    problem p = random_problem(6, dtype::f32, 1, 10, 2, false);
    p.supports = {{2, 4, 5}};
    p.targets = {7};
    auto const spoiled = [](numbers const& row) {
        std::vector<std::size_t> places;
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (std::isnan(row[i])) {
                places.push_back(i);
            } else {
                REQUIRE(row[i] == 0);
            }
        }
        return places;
    };
    std::vector<std::size_t> const support{2, 4, 5, 7};
    SECTION("a listed logit") {
        p.rows[0][4] = not_a_number;
        answers got(p);
        REQUIRE(got.report.nonfinite == 1);
        REQUIRE(spoiled(got.gradient(dtype::f32).row(0)) == support);
    }
    SECTION("the target's logit, which is not listed") {
        p.rows[0][7] = infinity;
        answers got(p);
        REQUIRE(got.report.nonfinite == 1);
        REQUIRE(std::isnan(got.log_prob.get(0, 0)));
        REQUIRE(spoiled(got.gradient(dtype::f32).row(0)) == support);
    }
    SECTION("a slope") {
        p.g[0] = infinity;
        answers got(p);
        REQUIRE(got.report.nonfinite == 0);
        REQUIRE(spoiled(got.gradient(dtype::f32).row(0)) == support);
        REQUIRE(got.gradient_report.nonfinite == 1);
    }
    SECTION("the other slope") {
        p.h[0] = not_a_number;
        answers got(p);
        REQUIRE(spoiled(got.gradient(dtype::f32).row(0)) == support);
    }
    SECTION("the saved log-sum-exp, or the entropy") {
        for (bool const sum : {true, false}) {
            answers got(p);
            (sum ? got.log_sum_exp : got.entropy).put(0, 0, not_a_number);
            REQUIRE(spoiled(got.gradient(dtype::f32).row(0)) == support);
        }
    }
    SECTION("a logit that turned bad between the calls") {
        answers got(p);
        got.logits.elements().put(0, 5, not_a_number);
        got.gradient_in_place();
        REQUIRE(spoiled(got.logits.row(0)) == support);
    }
    SECTION("the target's logit, not listed, that turned bad between the calls") {
        answers got(p);
        got.logits.elements().put(0, 7, infinity);
        got.gradient_in_place();
        REQUIRE(spoiled(got.logits.row(0)) == support);
    }
}

TEST_CASE("a masked row is +0 and nothing of it is read; so is the gradient of a row without slopes") {
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16, dtype::f16);
    problem clean = random_problem(8, type, 5, 2100, 2, true);
    clean.mask = {1, 0, 1, 0, 1};
    clean.g[2] = 0;
    clean.h[2] = -0.0;
    problem dirty = clean;
    dirty.rows[1].assign(2100, not_a_number);
    dirty.rows[3].assign(2100, infinity);
    dirty.targets[1] = -100;
    dirty.targets[3] = 1'000'000;
    dirty.g[1] = dirty.h[3] = not_a_number;
    for (std::int64_t& id : dirty.supports[1]) {
        id = -5;
    }
    answers a(clean);
    answers b(dirty);
    rows_in_memory const of_clean = a.gradient(type);
    // The third row's logits and what was saved of it may be anything by the time of the gradient.
    for (std::size_t i = 0; i < 2100; ++i) {
        b.logits.elements().put(2, i, not_a_number);
    }
    memory const saved = b.log_prob;
    b.log_sum_exp.put(0, 2, not_a_number);
    b.entropy.put(0, 2, not_a_number);
    rows_in_memory const of_dirty = b.gradient(type);
    REQUIRE(same_bits(a.log_prob, saved));
    REQUIRE(same_bits(of_clean.elements(), of_dirty.elements()));
    REQUIRE(b.report.rows == 3);
    REQUIRE(b.report.nonfinite == 0);
    REQUIRE(b.gradient_report.rows == 2);
    REQUIRE(b.gradient_report.nonfinite == 0);
    for (std::size_t const row : {1U, 3U}) {
        REQUIRE(b.log_prob.bits(0, row) == 0);
        REQUIRE(b.log_sum_exp.bits(0, row) == 0);
        REQUIRE(b.entropy.bits(0, row) == 0);
    }
    for (std::size_t const row : {1U, 2U, 3U}) {
        for (std::size_t i = 0; i < 2100; ++i) {
            REQUIRE(of_dirty.elements().bits(row, i) == 0);
        }
    }
}

TEST_CASE("in place, elsewhere, at any stride and alignment, by any executor and for any set of outputs: the same bits") {
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16, dtype::f16);
    bool const supported = GENERATE(false, true);
    problem p = random_problem(12, type, 40, 2060, 3, supported);
    p.gap = p.shift = 0;
    answers first(p);
    rows_in_memory const gradient = first.gradient(type);
    for (executor const& execute : {executor(asyncrl::serial{}), executor(backwards), executor(on_three_threads)}) {
        problem moved = p;
        moved.gap = 3;
        moved.shift = 1;
        answers other(moved, execute);
        REQUIRE(same_bits(first.log_prob, other.log_prob));
        REQUIRE(same_bits(first.log_sum_exp, other.log_sum_exp));
        REQUIRE(same_bits(first.entropy, other.entropy));
        other.gradient_in_place();
        REQUIRE(other.gradient_report.rows == 40);
        REQUIRE(other.logits.elements().guards_hold());
        for (std::size_t row = 0; row < 40; ++row) {
            for (std::size_t i = 0; i < 2060; ++i) {
                if (gradient.elements().bits(row, i) != other.logits.elements().bits(row, i)) {
                    FAIL("row " << row << ", logit " << i);
                }
            }
        }
    }
    memory alone = row_numbers(dtype::f64, 40);
    asyncrl::log_prob_outputs only;
    only.entropy = alone.out();
    asyncrl::log_prob(first.logits.in(), first.targets(), only, first.options());
    REQUIRE(same_bits(alone, first.entropy));
}

TEST_CASE("a slope of stride 0 is every row's, and an absent one is 0") {
    problem p = random_problem(9, dtype::f32, 3, 20, 2, false);
    p.g = {0.5, 0.5, 0.5};
    p.h = {0, 0, 0};
    answers spelled_out(p);
    rows_in_memory const want = spelled_out.gradient(dtype::f32);
    rows_in_memory got(dtype::f32, 3, 20);
    float const g = 0.5F;
    asyncrl::log_prob_slopes slopes;
    slopes.log_prob = {&g, dtype::f32, 0, 0};
    asyncrl::log_prob_outputs saved = spelled_out.outputs();
    saved.entropy = {};
    asyncrl::log_prob_gradient(spelled_out.logits.in(), spelled_out.targets(), saved, slopes, got.out(), spelled_out.options());
    REQUIRE(same_bits(got.elements(), want.elements()));
}

TEST_CASE("misuse names row and value, and writes nothing") {
    problem p = random_problem(10, dtype::f32, 4, 10, 1, true);
    p.supports = {{1, 2}, {3, 5, 9}, {}, {0}};
    p.narrow_ids = false;
    answers fine(p);
    rows_in_memory gradient(dtype::f32, 4, 10);
    asyncrl::log_prob_options options = fine.options();
    asyncrl::log_prob_slopes slopes{asyncrl::per_token(p.g.data()), asyncrl::per_token(p.h.data())};
    std::vector<std::int64_t> targets = p.targets;
    memory log_prob = row_numbers(dtype::f32, 4);
    asyncrl::log_prob_outputs outputs{log_prob.out()};
    asyncrl::log_prob_outputs saved = fine.outputs();
    asyncrl::matrix logits = fine.logits.in();
    asyncrl::output_matrix to = gradient.out();

    auto const forward = [&] {
        return text_of_error([&] { asyncrl::log_prob(logits, targets.data(), outputs, options, executor(backwards)); });
    };
    auto const backward = [&] {
        return text_of_error([&] {
            asyncrl::log_prob_gradient(logits, targets.data(), saved, slopes, to, options, executor(on_three_threads));
        });
    };
    SECTION("a target outside the vocabulary: the first one is named") {
        targets[3] = -1;
        targets[2] = 10;
        REQUIRE(forward() == "asyncrl: targets[2] of row 2 = 10, must be in [0, 10)");
        REQUIRE(backward() == forward());
        targets[2] = 9;
        REQUIRE(forward() == "asyncrl: targets[3] of row 3 = -1, must be in [0, 10)");
    }
    SECTION("a support id outside the vocabulary, or out of order") {
        std::vector<std::int32_t> ids{1, 2, 3, 10, 9, 0};
        options.support.ids = ids.data();
        REQUIRE(forward() == "asyncrl: support.ids[3] of row 1 = 10, must be in [0, 10)");
        REQUIRE(backward() == forward());
        ids[3] = 3;
        REQUIRE(forward() == "asyncrl: support.ids[3] of row 1 = 3, must be greater than the id before it");
    }
    SECTION("support offsets that descend, or ids that are absent") {
        std::vector<std::int64_t> offsets{0, 2, 1, 3, 4};
        options.support.offsets = offsets.data();
        REQUIRE(forward() == "asyncrl: support.offsets[2] = 1, must be at least the offset before it, 2");
        options = fine.options();
        options.support.ids = {};
        REQUIRE(forward() == "asyncrl: support.ids is absent, but support.offsets count some");
    }
    SECTION("a temperature that is none") {
        for (double const bad : {0.0, -1.0, infinity, not_a_number}) {
            options.temperature = bad;
            REQUIRE(forward().find("log_prob_options.temperature") != std::string::npos);
            REQUIRE(backward() == forward());
        }
    }
    SECTION("shapes and types") {
        logits.type = dtype::u8;
        REQUIRE(forward() == "asyncrl: logits have dtype u8, must be f32, f64, bf16 or f16");
        logits = fine.logits.in();
        logits.data = nullptr;
        REQUIRE(forward() == "asyncrl: logits.data is absent");
        logits = fine.logits.in();
        logits.columns = 0;
        REQUIRE(forward() == "asyncrl: logits.columns = 0, must be >= 1");
        logits = fine.logits.in();
        outputs.log_prob.type = dtype::bf16;
        REQUIRE(forward() == "asyncrl: log_prob_outputs.log_prob has dtype bf16, must be f32 or f64");
        outputs.log_prob = log_prob.out();
        outputs.log_prob.token_stride = 0;
        REQUIRE(forward() ==
                "asyncrl: log_prob_outputs.log_prob has a stride of 0: an output needs an element of its own for every row");
        options.mask = asyncrl::per_token(p.g.data());
        REQUIRE(backward() == "asyncrl: log_prob_options.mask has dtype f64, must be u8");
    }
    SECTION("of the gradient") {
        to.type = dtype::f64;
        REQUIRE(backward().find("gradient has dtype f64, but the logits have f32") != std::string::npos);
        to = gradient.out();
        to.row_stride = 9;
        REQUIRE(backward() == "asyncrl: gradient.row_stride = 9, must be at least gradient.columns, 10");
        to = fine.logits.out();
        to.type = dtype::bf16;
        REQUIRE(backward() == "asyncrl: gradient lies in the logits, but has dtype bf16 and not f32");
        to = fine.logits.out();
        to.row_stride += 1;
        REQUIRE(backward().find("that of the logits in which it lies") != std::string::npos);
        to = gradient.out();
        to.rows = 3;
        REQUIRE(backward() == "asyncrl: gradient.rows = 3, must be that of the logits, 4");
        to = gradient.out();
        saved.entropy = {};
        REQUIRE(backward() == "asyncrl: saved.entropy is absent, but the gradient of the entropy needs it");
        saved.log_sum_exp = {};
        REQUIRE(backward() == "asyncrl: saved.log_sum_exp is absent, but the gradient needs it");
    }
    REQUIRE(log_prob.untouched());
    REQUIRE(gradient.elements().untouched());
}

TEST_CASE("no rows are an answer") {
    REQUIRE(asyncrl::log_prob({}, {}, {}).rows == 0);
    REQUIRE(asyncrl::log_prob_gradient({}, {}, {}, {}, {}).first_nonfinite == -1);
}
