// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/columns.hpp"

#include <asyncrl/correction/advantage.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace support;
using asyncrl::recursion_report;
using Catch::Matchers::WithinAbs;

namespace {

struct token {
    double reward = 0;
    double value = 0;
    double action_value = 0;
    double old_log_prob = -1;
    double rollout_log_prob = -1;
    bool active = true;
    bool scored = true;
};

struct sequence {
    std::vector<token> tokens;
    double bootstrap = 0;
};

enum class method { gae, vtrace, retrace };

struct settings {
    double gamma = 1;
    double lambda = 1;
    double rho_bar = 1;
    double c_bar = 1;
};

struct layout {
    bool packed = false;
    std::int64_t token_stride = 1;
    std::int64_t row_gap = 0;
    double unscored = not_a_number;
};

/// Sequences as columns in memory. Rows of a padded batch have equal lengths.
class laid_out {
  public:
    laid_out(std::vector<sequence> rows, dtype type, layout how = {}) : values(std::move(rows)), kind(type) {
        where.packed = how.packed;
        offsets.push_back(0);
        for (sequence const& s : values) {
            where.lengths.push_back(static_cast<std::int64_t>(s.tokens.size()));
            offsets.push_back(offsets.back() + where.lengths.back());
        }
        std::int64_t const reach = std::abs(how.token_stride);
        strides const step{how.packed ? 0 : where.tokens() * reach + how.row_gap, how.token_stride};
        for (memory* m : {&reward, &value, &action_value, &old_log_prob, &rollout_log_prob, &advantage, &target}) {
            *m = memory(type, step, where);
        }
        mask = memory(dtype::u8, step, where, 0x5a);
        grid const sequences{false, std::vector<std::int64_t>(values.size(), 1)};
        bootstrap = memory(type, {1, 0}, sequences);
        where.each([&](std::size_t b, std::size_t t, std::int64_t, std::int64_t) {
            token& x = values[b].tokens[t];
            x.rollout_log_prob = x.scored ? x.rollout_log_prob : how.unscored;
            put(reward, b, t, x.reward);
            put(value, b, t, x.value);
            put(action_value, b, t, x.action_value);
            put(old_log_prob, b, t, x.old_log_prob);
            put(rollout_log_prob, b, t, x.rollout_log_prob);
            mask.put(b, t, x.active ? 1 + static_cast<double>(t % 3) : 0);  // any nonzero byte is active
        });
        for (std::size_t b = 0; b < values.size(); ++b) {
            put(bootstrap, b, 0, values[b].bootstrap);
        }

        batch.rows = where.rows();
        batch.tokens = where.tokens();
        if (how.packed) {
            batch.offsets = offsets.data();
        }
        batch.old_log_prob = old_log_prob.in();
        batch.rollout_log_prob = rollout_log_prob.in();
        batch.mask = mask.in();
        batch.unscored = how.unscored;
        columns.reward = reward.in();
        columns.value = value.in();
        columns.action_value = action_value.in();
        columns.bootstrap = bootstrap.in();
    }
    laid_out(laid_out const&) = delete;
    laid_out& operator=(laid_out const&) = delete;

    template <typename Executor = asyncrl::serial>
    recursion_report run(method m, settings const& s, Executor const& execute = {}) {
        return run(m, s, {advantage.out(), target.out()}, execute);
    }
    template <typename Executor = asyncrl::serial>
    recursion_report run(method m, settings const& s, asyncrl::advantage_outputs const& to, Executor const& execute = {}) {
        switch (m) {
            case method::gae:
                return asyncrl::gae(batch, columns, to, {.gamma = s.gamma, .lambda = s.lambda}, execute);
            case method::vtrace:
                return asyncrl::vtrace(batch, columns, to,
                                       {.gamma = s.gamma, .lambda = s.lambda, .rho_bar = s.rho_bar, .c_bar = s.c_bar}, execute);
            case method::retrace:
                break;
        }
        return asyncrl::retrace(batch, columns, to, {.gamma = s.gamma, .lambda = s.lambda}, execute);
    }
    [[nodiscard]] bool same_outputs(laid_out const& other) const {
        return advantage.bytes() == other.advantage.bytes() && target.bytes() == other.target.bytes();
    }

    std::vector<sequence> values;
    dtype kind;
    grid where;
    memory reward, value, action_value, old_log_prob, rollout_log_prob, mask, bootstrap, advantage, target;
    asyncrl::token_batch batch;
    asyncrl::value_columns columns;

  private:
    /// Stores the number and leaves in its place what the memory holds.
    void put(memory& to, std::size_t row, std::size_t position, double& x) {
        x = as_stored(kind, x);
        to.put(row, position, x);
    }

    std::vector<std::int64_t> offsets;
};

struct answer {
    double advantage = 0;
    double target = 0;
};

/// The definitions as sums over all later active tokens, nothing carried from one to the next.
std::vector<answer> by_direct_sums(sequence const& s, method m, settings const& o) {
    std::vector<token> x;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < s.tokens.size(); ++i) {
        if (s.tokens[i].active) {
            x.push_back(s.tokens[i]);
            places.push_back(i);
        }
    }
    std::size_t const n = x.size();
    auto const value_at = [&](std::size_t t) { return t < n ? x[t].value : s.bootstrap; };
    auto const ratio_at = [&](std::size_t t) { return x[t].scored ? std::exp(x[t].old_log_prob - x[t].rollout_log_prob) : 1; };
    auto const own_at = [&](std::size_t t) { return m == method::retrace ? x[t].action_value : x[t].value; };
    auto const correction_at = [&](std::size_t from) {
        double sum = 0;
        double trace = 1;  // the product of c over the tokens between
        for (std::size_t t = from; t < n; ++t) {
            double const error = x[t].reward + o.gamma * value_at(t + 1) - own_at(t);
            if (m == method::retrace && t > from) {
                trace *= o.lambda * std::min(1.0, ratio_at(t));
            }
            double const rho = m == method::vtrace ? std::min(o.rho_bar, ratio_at(t)) : 1;
            sum += std::pow(o.gamma, static_cast<double>(t - from)) * trace * rho * error;
            if (m == method::gae) {
                trace *= o.lambda;
            } else if (m == method::vtrace) {
                trace *= o.lambda * std::min(o.c_bar, ratio_at(t));
            }
        }
        return sum;
    };
    std::vector<answer> all(s.tokens.size());
    for (std::size_t t = 0; t < n; ++t) {
        double const correction = correction_at(t);
        answer& a = all[places[t]];
        a.target = own_at(t) + correction;
        if (m == method::vtrace) {
            double const next = t + 1 < n ? value_at(t + 1) + correction_at(t + 1) : s.bootstrap;
            a.advantage = std::min(o.rho_bar, ratio_at(t)) * (x[t].reward + o.gamma * next - x[t].value);
        } else {
            a.advantage = a.target - x[t].value;
        }
    }
    return all;
}

/// Where the outputs differ from the direct sums, empty if nowhere. `size` is what the sums are about as large as.
std::string difference(laid_out const& b, method m, settings const& o, double size = 1) {
    double tolerance = 1e-12;
    tolerance = b.kind == dtype::f32 ? 4e-6 : b.kind == dtype::f16 ? 0x1p-10 : b.kind == dtype::bf16 ? 0x1p-7 : tolerance;
    std::ostringstream text;
    text.precision(17);
    for (std::size_t row = 0; row < b.values.size(); ++row) {
        std::vector<answer> const want = by_direct_sums(b.values[row], m, o);
        for (std::size_t t = 0; t < want.size() && text.str().empty(); ++t) {
            auto const compare = [&](char const* name, memory const& got, double expected) {
                double const x = got.get(row, t);
                if (!b.values[row].tokens[t].active) {
                    if (got.bits(row, t) != 0) {
                        text << name << "[" << row << "][" << t << "] is masked and not +0";
                    }
                } else if (!(std::abs(x - expected) <= tolerance * (size + std::abs(expected)))) {
                    text << name << "[" << row << "][" << t << "] is " << x << ", expected " << expected;
                }
            };
            compare("advantage", b.advantage, want[t].advantage);
            compare("target", b.target, want[t].target);
        }
    }
    if (!b.advantage.guards_hold() || !b.target.guards_hold()) {
        text << "something beside the outputs was written";
    }
    return text.str();
}

double garbage(std::mt19937_64& random) {
    double const kinds[] = {not_a_number, infinity, -infinity, 1e30, -9999, 0};
    return kinds[random() % 6];
}

sequence random_sequence(std::mt19937_64& random, std::size_t length, double active_share) {
    std::uniform_real_distribution<double> uniform;
    std::normal_distribution<double> bell;
    sequence s;
    s.bootstrap = random() % 3 == 0 ? 0 : bell(random);
    for (std::size_t i = 0; i < length; ++i) {
        token x;
        x.active = uniform(random) < active_share;
        x.scored = random() % 16 != 0;
        x.reward = random() % 4 == 0 ? bell(random) : 0;
        x.value = bell(random);
        x.action_value = x.value + 0.5 * bell(random);
        x.old_log_prob = -3 * uniform(random);
        x.rollout_log_prob = x.old_log_prob + 0.5 * bell(random);
        if (!x.active) {
            x.scored = true;
            for (double* field : {&x.reward, &x.value, &x.action_value, &x.old_log_prob, &x.rollout_log_prob}) {
                *field = garbage(random);
            }
        }
        s.tokens.push_back(x);
    }
    return s;
}

/// Rows of a padded batch: the given ones, each filled up with masked tokens.
std::vector<sequence> filled_up(std::vector<sequence> rows, std::mt19937_64& random) {
    std::size_t longest = 0;
    for (sequence const& s : rows) {
        longest = std::max(longest, s.tokens.size());
    }
    for (sequence& s : rows) {
        while (s.tokens.size() < longest) {
            s.tokens.push_back(random_sequence(random, 1, 0).tokens.front());
        }
    }
    return rows;
}

/// Four tokens whose numbers are exact in every dtype.
std::vector<sequence> four_tokens(bool masked) {
    sequence s;
    s.bootstrap = 0.125;
    double const reward[] = {0, 0.25, 0, 1};
    double const value[] = {0.5, 0.25, 0.75, 0.5};
    double const log_ratio[] = {0.25, -0.5, 0, 0.125};
    for (std::size_t i = 0; i < 4; ++i) {
        token x;
        x.reward = reward[i];
        x.value = value[i];
        x.action_value = value[i];
        x.old_log_prob = -2 + log_ratio[i];
        x.rollout_log_prob = -2;
        x.active = !masked || i != 2;
        s.tokens.push_back(x);
    }
    return {s};
}

settings const fractions{.gamma = 15.0 / 16, .lambda = 0.75};

void require_column(memory const& got, double const (&want)[4], dtype type) {
    for (std::size_t t = 0; t < 4; ++t) {
        double const tolerance = type == dtype::f64   ? 1e-12 * std::max(1.0, std::abs(want[t]))
                                 : type == dtype::f32 ? 4e-6
                                 : type == dtype::f16 ? 0x1p-10
                                                      : 0x1p-7;
        CAPTURE(t);
        REQUIRE_THAT(got.get(0, t), WithinAbs(want[t], tolerance));
    }
}

void on_two_threads(std::int64_t count, asyncrl::task_ref task) {
    std::atomic<std::int64_t> next{0};
    auto const work = [&] {
        for (std::int64_t i = next++; i < count; i = next++) {
            task(i);
        }
    };
    std::jthread const other(work);
    work();
}

void backwards(std::int64_t count, asyncrl::task_ref task) {
    while (count > 0) {
        task(--count);
    }
}

}  // namespace

TEST_CASE("GAE over four tokens of which one is masked has these values", "[advantage]") {
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16, dtype::f16);
    bool const packed = GENERATE(false, true);
    laid_out b(four_tokens(true), type, {.packed = packed, .token_stride = 2});
    recursion_report const report = b.run(method::gae, fractions);
    // From the last: 1 + 15/128 - 1/2; masked; 1/4 + 15/32 - 1/4 + 45/64 A_3; 15/64 - 1/2 + 45/64 A_1.
    require_column(b.advantage, {0.369092941284, 0.902709960938, 0, 0.6171875}, type);
    require_column(b.target, {0.869092941284, 1.1527099609375, 0, 1.1171875}, type);
    REQUIRE(report.tokens == 3);
    REQUIRE(report.unscored == 0);
    REQUIRE(report.nonfinite == 0);
}

TEST_CASE("V-trace over four tokens has these values", "[advantage]") {
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16, dtype::f16);
    bool const packed = GENERATE(false, true);
    laid_out b(four_tokens(false), type, {.packed = packed, .token_stride = -1});
    b.run(method::vtrace, fractions);
    require_column(b.advantage, {0.195243071112, 0.513301188878, 0.29736328125, 0.6171875}, type);
    require_column(b.target, {0.580026053334, 0.741592609186, 0.902709960938, 1.1171875}, type);
}

TEST_CASE("Retrace over four tokens has these values", "[advantage]") {
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16, dtype::f16);
    laid_out b(four_tokens(false), type);
    b.run(method::retrace, fractions);
    require_column(b.advantage, {0.080026053334, 0.810499191284, 0.152709960938, 0.6171875}, type);
    require_column(b.target, {0.580026053334, 1.060499191284, 0.902709960938, 1.1171875}, type);
}

TEST_CASE("random batches agree with sums written out over all later tokens", "[advantage]") {
    std::mt19937_64 random(static_cast<std::mt19937_64::result_type>(GENERATE(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)));
    dtype const type = random() % 2 == 0 ? dtype::f64 : dtype::f32;
    layout how;
    how.packed = random() % 2 == 0;
    how.token_stride = random() % 3 == 0 ? 3 : 1;
    how.row_gap = random() % 2 == 0 ? 0 : 5;
    how.unscored = random() % 2 == 0 ? not_a_number : -9999;
    std::vector<sequence> rows;
    for (std::size_t const length : {1U, 0U, 5U, 17U, 255U, 256U, 257U, 600U, 0U}) {
        rows.push_back(random_sequence(random, length, random() % 4 == 0 ? 0 : 0.8));
    }
    if (!how.packed) {
        rows = filled_up(std::move(rows), random);
    }
    settings o;
    double const shares[] = {0, 0.5, 0.9, 1};
    o.gamma = shares[1 + random() % 3];
    o.lambda = shares[random() % 4];
    double const bars[] = {0.5, 1, 2};
    o.rho_bar = bars[random() % 3];
    o.c_bar = std::min(1.0, bars[random() % 3]);  // larger ones let the traces grow without bound over 600 tokens
    for (method const m : {method::gae, method::vtrace, method::retrace}) {
        laid_out b(rows, type, how);
        recursion_report const report = b.run(m, o);
        std::int64_t tokens = 0;
        std::int64_t unscored = 0;
        for (sequence const& s : rows) {
            for (token const& x : s.tokens) {
                tokens += x.active ? 1 : 0;
                unscored += x.active && !x.scored && m != method::gae ? 1 : 0;
            }
        }
        CAPTURE(static_cast<int>(m), o.gamma, o.lambda, o.rho_bar, o.c_bar, how.packed);
        REQUIRE(difference(b, m, o, 30) == "");
        REQUIRE(report.tokens == tokens);
        REQUIRE(report.unscored == unscored);
        REQUIRE(report.nonfinite == 0);
    }
}

TEST_CASE("bars above one, and none, let larger ratios through", "[advantage]") {
    std::mt19937_64 random(21);
    settings const o{.gamma = 0.9,
                     .lambda = 0.8,
                     .rho_bar = GENERATE(values<double>({2, infinity})),
                     .c_bar = GENERATE(values<double>({1.5, infinity}))};
    laid_out b({random_sequence(random, 9, 0.9), random_sequence(random, 9, 0.9)}, dtype::f64);
    b.run(method::vtrace, o);
    REQUIRE(difference(b, method::vtrace, o) == "");
}

TEST_CASE("half-precision columns are read exactly and each result is rounded once", "[advantage]") {
    dtype const type = GENERATE(dtype::bf16, dtype::f16);
    std::mt19937_64 random(22);
    laid_out narrow({random_sequence(random, 40, 1)}, type);
    laid_out wide(narrow.values, dtype::f64);
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    narrow.run(m, {.gamma = 0.9, .lambda = 0.8});
    wide.run(m, {.gamma = 0.9, .lambda = 0.8});
    for (std::size_t t = 0; t < 40; ++t) {
        REQUIRE(narrow.advantage.get(0, t) == as_stored(type, wide.advantage.get(0, t)));
        REQUIRE(narrow.target.get(0, t) == as_stored(type, wide.target.get(0, t)));
    }
}

TEST_CASE("with lambda 0 the advantage is the error of one step, with lambda 1 the return less the value", "[advantage]") {
    std::mt19937_64 random(23);
    laid_out b({random_sequence(random, 30, 1)}, dtype::f64);
    std::vector<token> const& x = b.values[0].tokens;
    b.run(method::gae, {.gamma = 0.9, .lambda = 0});
    for (std::size_t t = 0; t < 29; ++t) {
        REQUIRE_THAT(b.advantage.get(0, t), WithinAbs(x[t].reward + 0.9 * x[t + 1].value - x[t].value, 1e-14));
    }
    b.run(method::gae, {.gamma = 1, .lambda = 1});
    double to_go = b.values[0].bootstrap;
    for (std::size_t t = 30; t-- > 0;) {
        to_go += x[t].reward;
        REQUIRE_THAT(b.target.get(0, t), WithinAbs(to_go, 1e-13));
    }
}

TEST_CASE("on policy the targets of V-trace, Retrace and GAE are the same", "[advantage]") {
    std::mt19937_64 random(24);
    std::vector<sequence> rows{random_sequence(random, 30, 0.8), random_sequence(random, 30, 0.8)};
    for (sequence& s : rows) {
        for (token& x : s.tokens) {
            x.rollout_log_prob = x.old_log_prob;
            x.action_value = x.value;
        }
    }
    settings const o{.gamma = 0.9, .lambda = 1};
    laid_out g(rows, dtype::f64);
    laid_out v(rows, dtype::f64);
    laid_out r(rows, dtype::f64);
    g.run(method::gae, o);
    v.run(method::vtrace, o);
    r.run(method::retrace, o);
    for (std::size_t row = 0; row < 2; ++row) {
        for (std::size_t t = 0; t < 30; ++t) {
            REQUIRE_THAT(v.target.get(row, t), WithinAbs(g.target.get(row, t), 1e-13));
            REQUIRE_THAT(v.advantage.get(row, t), WithinAbs(g.advantage.get(row, t), 1e-13));
            REQUIRE_THAT(r.target.get(row, t), WithinAbs(g.target.get(row, t), 1e-13));
        }
    }
}

TEST_CASE("a long row of floats is added up in double", "[advantage]") {
    sequence s;
    s.tokens.assign(20000, token{});
    for (token& x : s.tokens) {
        x.reward = 0.1;
    }
    laid_out b({s}, dtype::f32);
    b.run(method::gae, {.gamma = 1, .lambda = 1});
    REQUIRE(b.target.get(0, 0) == as_stored(dtype::f32, 20000 * static_cast<double>(0.1F)));  // in float 1.5 too much
}

TEST_CASE("what stands under a mask changes no bit, and masked outputs are +0", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16);
    std::mt19937_64 random(25);
    std::vector<sequence> const rows{random_sequence(random, 300, 0.7), random_sequence(random, 300, 0),
                                     random_sequence(random, 300, 0.7)};
    std::vector<sequence> zeros = rows;
    for (sequence& s : zeros) {
        for (token& x : s.tokens) {
            x = x.active ? x : token{0, 0, 0, 0, 0, false, true};
        }
    }
    laid_out a(rows, type, {.row_gap = 3});
    laid_out b(zeros, type, {.row_gap = 3});
    recursion_report const of_a = a.run(m, fractions);
    recursion_report const of_b = b.run(m, fractions);
    REQUIRE(a.same_outputs(b));
    REQUIRE(of_a.tokens == of_b.tokens);
    REQUIRE(of_a.unscored == of_b.unscored);
    REQUIRE(of_a.nonfinite == 0);
    REQUIRE(of_b.nonfinite == 0);
    a.where.each([&](std::size_t row, std::size_t t, std::int64_t, std::int64_t) {
        if (!rows[row].tokens[t].active) {
            REQUIRE(a.advantage.bits(row, t) == 0);
            REQUIRE(a.target.bits(row, t) == 0);
        }
    });
    REQUIRE(a.advantage.guards_hold());
    REQUIRE(a.target.guards_hold());
}

TEST_CASE("a masked token is as if it were not there", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    std::mt19937_64 random(26);
    sequence const all = random_sequence(random, 700, 0.5);
    sequence kept;
    kept.bootstrap = all.bootstrap;
    std::copy_if(all.tokens.begin(), all.tokens.end(), std::back_inserter(kept.tokens),
                 [](token const& x) { return x.active; });
    laid_out a({all}, dtype::f64);
    laid_out b({kept}, dtype::f64);
    a.run(m, fractions);
    b.run(m, fractions);
    std::size_t at = 0;
    for (std::size_t t = 0; t < 700; ++t) {
        if (all.tokens[t].active) {
            REQUIRE(a.advantage.bits(0, t) == b.advantage.bits(0, at));
            REQUIRE(a.target.bits(0, t) == b.target.bits(0, at));
            ++at;
        }
    }
}

TEST_CASE("padded and packed batches give the same bits, whatever the strides", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::f16);
    std::mt19937_64 random(27);
    std::vector<sequence> rows;
    for (std::size_t const length : {3U, 0U, 301U, 256U, 1U}) {
        rows.push_back(random_sequence(random, length, 0.8));
    }
    laid_out packed(rows, type, {.packed = true});
    packed.run(m, fractions);
    laid_out padded(filled_up(rows, random), type, {.token_stride = GENERATE(1, 2, -1), .row_gap = 7});
    padded.run(m, fractions);
    packed.where.each([&](std::size_t row, std::size_t t, std::int64_t, std::int64_t) {
        REQUIRE(packed.advantage.bits(row, t) == padded.advantage.bits(row, t));
        REQUIRE(packed.target.bits(row, t) == padded.target.bits(row, t));
    });
}

TEST_CASE("every executor gives the same bits and counts", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    std::mt19937_64 random(28);
    std::vector<sequence> rows;
    for (std::size_t i = 0; i < 40; ++i) {
        rows.push_back(random_sequence(random, 1 + 7 * i, 0.8));
    }
    laid_out a(rows, dtype::f32, {.packed = true});
    laid_out b(rows, dtype::f32, {.packed = true});
    laid_out c(rows, dtype::f32, {.packed = true});
    recursion_report const serially = a.run(m, fractions);
    recursion_report const threaded = b.run(m, fractions, on_two_threads);
    b.run(m, fractions, backwards);
    recursion_report const reversed = c.run(m, fractions, backwards);
    REQUIRE(a.same_outputs(b));
    REQUIRE(a.same_outputs(c));
    for (recursion_report const& other : {threaded, reversed}) {
        REQUIRE(other.tokens == serially.tokens);
        REQUIRE(other.unscored == serially.unscored);
        REQUIRE(other.nonfinite == serially.nonfinite);
    }
}

TEST_CASE("an output that is not wanted changes nothing in the other", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    std::mt19937_64 random(29);
    std::vector<sequence> const rows{random_sequence(random, 20, 0.8)};
    laid_out both(rows, dtype::f32);
    laid_out first(rows, dtype::f32);
    laid_out second(rows, dtype::f32);
    both.run(m, fractions);
    first.run(m, fractions, {first.advantage.out(), {}});
    second.run(m, fractions, {{}, second.target.out()});
    REQUIRE(first.advantage.bytes() == both.advantage.bytes());
    REQUIRE(first.target.untouched());
    REQUIRE(second.advantage.untouched());
    REQUIRE(second.target.bytes() == both.target.bytes());
}

TEST_CASE("what is absent has a default: no mask, no bootstrap", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    std::mt19937_64 random(30);
    sequence s = random_sequence(random, 20, 1);
    s.bootstrap = 0;
    laid_out whole({s}, dtype::f64);
    laid_out bare({s}, dtype::f64);
    bare.batch.mask = {};
    bare.columns.bootstrap = {};
    whole.run(m, fractions);
    bare.run(m, fractions);
    REQUIRE(whole.same_outputs(bare));
}

TEST_CASE("only the named columns are looked at", "[advantage]") {
    std::mt19937_64 random(31);
    std::vector<sequence> const rows{random_sequence(random, 20, 0.8)};
    laid_out whole(rows, dtype::f64);
    laid_out bare(rows, dtype::f64);
    bare.columns.action_value = {};
    whole.run(method::vtrace, fractions);
    bare.run(method::vtrace, fractions);
    REQUIRE(whole.same_outputs(bare));
    bare.batch.old_log_prob = {};
    bare.batch.rollout_log_prob = {};
    whole.run(method::gae, fractions);
    bare.run(method::gae, fractions);
    REQUIRE(whole.same_outputs(bare));
}

TEST_CASE("a log ratio goes beside a rollout column that repeats one zero", "[advantage]") {
    laid_out pair(four_tokens(false), dtype::f64);
    pair.run(method::vtrace, fractions);
    laid_out ratio(four_tokens(false), dtype::f64);
    for (std::size_t t = 0; t < 4; ++t) {
        ratio.old_log_prob.put(0, t, pair.values[0].tokens[t].old_log_prob + 2);
    }
    double const zero = 0;
    ratio.batch.rollout_log_prob = {&zero, dtype::f64, 0, 0};
    ratio.run(method::vtrace, fractions);
    REQUIRE(pair.same_outputs(ratio));
}

TEST_CASE("a token without a rollout log-prob has ratio one and is counted", "[advantage]") {
    method const m = GENERATE(method::vtrace, method::retrace);
    dtype const type = GENERATE(dtype::f64, dtype::f32, dtype::bf16);
    double const sentinel = GENERATE(values<double>({not_a_number, -9999}));  // in bfloat16 -9984
    std::vector<sequence> rows = four_tokens(false);
    rows[0].tokens[1].scored = false;
    laid_out missing(rows, type, {.unscored = sentinel});
    rows[0].tokens[1].scored = true;
    rows[0].tokens[1].rollout_log_prob = rows[0].tokens[1].old_log_prob;
    laid_out equal(rows, type, {.unscored = sentinel});
    REQUIRE(missing.run(m, fractions).unscored == 1);
    REQUIRE(equal.run(m, fractions).unscored == 0);
    REQUIRE(missing.same_outputs(equal));
}

TEST_CASE("an active number that is not finite reaches the earlier tokens of its row, and the report", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    double const bad = GENERATE(values<double>({not_a_number, infinity, -infinity}));
    int const field = GENERATE(0, 1, 2, 3);
    std::mt19937_64 random(32);
    std::vector<sequence> rows{random_sequence(random, 6, 1), random_sequence(random, 6, 1)};
    for (sequence& s : rows) {
        for (token& x : s.tokens) {
            x.scored = true;
        }
    }
    laid_out good(rows, dtype::f64);
    good.run(m, fractions);
    token& x = rows[0].tokens[3];
    (field == 0 ? x.reward : field == 1 ? x.value : field == 2 ? x.action_value : x.old_log_prob) = bad;
    if ((m != method::retrace && field == 2) || (m == method::gae && field == 3)) {
        return;  // a column that is not read
    }
    laid_out b(rows, dtype::f64);
    recursion_report const report = b.run(m, fractions);
    std::int64_t nonfinite = 0;
    for (std::size_t t = 0; t < 6; ++t) {
        bool const finite = std::isfinite(b.advantage.get(0, t)) && std::isfinite(b.target.get(0, t));
        nonfinite += finite ? 0 : 1;
        bool const own_ratio = m == method::retrace && field == 3;  // enters the token before
        REQUIRE(finite == (t > 3 || (t == 3 && own_ratio)));
        REQUIRE(b.advantage.bits(1, t) == good.advantage.bits(1, t));
    }
    REQUIRE(report.nonfinite == nonfinite);
    REQUIRE(report.tokens == 12);
}

TEST_CASE("batches without tokens, and rows without active ones, are an answer", "[advantage]") {
    method const m = GENERATE(method::gae, method::vtrace, method::retrace);
    laid_out none({}, dtype::f32);
    laid_out empty_rows({{}, {}}, dtype::f32);
    laid_out packed_rows({{}, {}}, dtype::f32, {.packed = true});
    for (laid_out* b : {&none, &empty_rows, &packed_rows}) {
        recursion_report const report = b->run(m, fractions);
        REQUIRE(report.tokens == 0);
    }
    asyncrl::token_batch const nothing;
    REQUIRE(asyncrl::gae(nothing, {}, {}).tokens == 0);

    std::mt19937_64 random(33);
    laid_out masked({random_sequence(random, 5, 0)}, dtype::f32);
    REQUIRE(masked.run(m, fractions).tokens == 0);
    for (std::size_t t = 0; t < 5; ++t) {
        REQUIRE(masked.advantage.bits(0, t) == 0);
        REQUIRE(masked.target.bits(0, t) == 0);
    }
}

namespace {

/// The call throws a sentence with `words`, and writes nothing.
template <typename Change>
void refuses(std::string const& words, method m, settings const& o, Change change) {
    std::mt19937_64 random(34);
    laid_out b({random_sequence(random, 4, 1), random_sequence(random, 4, 1)}, dtype::f32);
    asyncrl::advantage_outputs to{b.advantage.out(), b.target.out()};
    change(b, to);
    std::string sentence = "nothing was thrown";
    try {
        b.run(m, o, to);
    } catch (std::invalid_argument const& error) {
        sentence = error.what();
    }
    CAPTURE(sentence, words);
    REQUIRE(sentence.find("asyncrl: " + words) == 0);
    REQUIRE(b.advantage.untouched());
    REQUIRE(b.target.untouched());
}

}  // namespace

TEST_CASE("options outside their limits are refused by name and value", "[advantage]") {
    auto const nothing = [](laid_out&, asyncrl::advantage_outputs&) {};
    refuses("gae_options.gamma = 1.5, must be in [0, 1]", method::gae, {.gamma = 1.5}, nothing);
    refuses("gae_options.gamma = nan", method::gae, {.gamma = not_a_number}, nothing);
    refuses("gae_options.lambda = -0.5", method::gae, {.lambda = -0.5}, nothing);
    refuses("vtrace_options.gamma = -1", method::vtrace, {.gamma = -1}, nothing);
    refuses("vtrace_options.lambda = 2", method::vtrace, {.lambda = 2}, nothing);
    refuses("vtrace_options.rho_bar = 0, must be > 0", method::vtrace, {.rho_bar = 0}, nothing);
    refuses("vtrace_options.rho_bar = nan", method::vtrace, {.rho_bar = not_a_number}, nothing);
    refuses("vtrace_options.c_bar = -1", method::vtrace, {.c_bar = -1}, nothing);
    refuses("retrace_options.gamma = 2", method::retrace, {.gamma = 2}, nothing);
    refuses("retrace_options.lambda = 2", method::retrace, {.lambda = 2}, nothing);
}

TEST_CASE("columns that are absent or of another precision are refused by name", "[advantage]") {
    using outputs = asyncrl::advantage_outputs;
    auto const gae = [](std::string const& words, auto change) { refuses(words, method::gae, {}, change); };
    gae("value_columns.reward is absent", [](laid_out& b, outputs&) { b.columns.reward = {}; });
    gae("value_columns.value is absent", [](laid_out& b, outputs&) { b.columns.value = {}; });
    gae("value_columns.value has dtype u8", [](laid_out& b, outputs&) { b.columns.value.type = dtype::u8; });
    gae("value_columns.reward has dtype f64, but value_columns.value has f32",
        [](laid_out& b, outputs&) { b.columns.reward.type = dtype::f64; });
    gae("value_columns.bootstrap has dtype u8", [](laid_out& b, outputs&) { b.columns.bootstrap.type = dtype::u8; });
    gae("token_batch.mask has dtype f32, must be u8", [](laid_out& b, outputs&) { b.batch.mask.type = dtype::f32; });
    gae("advantage_outputs.advantage has dtype f64", [](laid_out&, outputs& to) { to.advantage.type = dtype::f64; });
    gae("advantage_outputs.target has dtype u8", [](laid_out&, outputs& to) { to.target.type = dtype::u8; });
    gae("advantage_outputs.target has a stride of 0", [](laid_out&, outputs& to) { to.target.token_stride = 0; });
    gae("advantage_outputs.advantage has a stride of 0", [](laid_out&, outputs& to) { to.advantage.row_stride = 0; });
    gae("token_batch.rows = -1", [](laid_out& b, outputs&) { b.batch.rows = -1; });
    std::int64_t const offsets[] = {0, 5, 4};
    gae("token_batch.offsets[2] = 4", [&](laid_out& b, outputs&) { b.batch.offsets = offsets; });
    refuses("token_batch.old_log_prob is absent", method::vtrace, {}, [](laid_out& b, outputs&) { b.batch.old_log_prob = {}; });
    refuses("token_batch.rollout_log_prob is absent", method::retrace, {},
            [](laid_out& b, outputs&) { b.batch.rollout_log_prob = {}; });
    refuses("value_columns.action_value is absent", method::retrace, {},
            [](laid_out& b, outputs&) { b.columns.action_value = {}; });
}
