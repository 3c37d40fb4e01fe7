// SPDX-License-Identifier: Apache-2.0
// Values worked out to twelve digits by an independent program, and small batches with which real systems went wrong.
#include "catch.hpp"
#include "support/cases.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

using namespace support;

namespace {

struct expected {
    double loss;
    double gradient;
    unsigned flags;
    double weight = 1;
};

oracle::method ppo(double low, double high, oracle::reduction reduce = oracle::reduction::token_mean) {
    oracle::method m;
    m.clip_low = low;
    m.clip_high = high;
    m.reduce = reduce;
    return m;
}
oracle::method tis(double cap) {
    oracle::method m;
    m.correction = oracle::weight::truncated;
    m.cap = cap;
    return m;
}
oracle::method mis(double low, double high) {
    oracle::method m;
    m.correction = oracle::weight::masked;
    m.low = low;
    m.high = high;
    return m;
}
oracle::method policy_gradient(oracle::reduction reduce = oracle::reduction::token_mean) {
    oracle::method m;
    m.loss = oracle::surrogate::policy_gradient;
    m.reduce = reduce;
    return m;
}

/// Runs the method on the rows in every precision and layout; the tokens come row after row, and `share` is the weight of
/// the gradient under the reduction.
void check_tokens(oracle::method const& m, oracle::batch const& rows, std::vector<expected> const& tokens, double share) {
    for (way const& w : every_way()) {
        laid_out const b(rows_for(w, rows), w.kinds, w.how);
        outputs out(b);
        (void)run(m, b, out);
        std::size_t next = 0;
        std::size_t at = 0;
        b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
            INFO(w.name << ", row " << r << ", position " << t);
            bool const inside = t < rows[r].size();  // the rest is padding
            expected const want = inside ? tokens[next] : expected{0, 0, 0, 0};
            next += inside ? 1 : 0;
            bool const single = w.kinds.single();
            REQUIRE(close(out.loss.get(r, t), want.loss, single));
            REQUIRE(close(out.gradient.get(r, t), want.gradient * share, single));
            REQUIRE(close(out.weight.get(r, t), want.weight, single));
            REQUIRE(out.flags(at) == want.flags);
            ++at;
        });
        REQUIRE(next == tokens.size());
        REQUIRE(out.guards_hold());
    }
}

void check_loss(oracle::method const& m, oracle::batch const& rows, double loss) {
    for (way const& w : every_way()) {
        INFO(w.name);
        laid_out const b(rows_for(w, rows), w.kinds, w.how);
        outputs out(b);
        REQUIRE(close(run(m, b, out).sums.loss, loss, w.kinds.single()));
    }
}

constexpr unsigned none = 0;
constexpr expected masked{0, 0, none, 0};

}  // namespace

TEST_CASE("PPO clip of the eight slots, bounds 0.2 / 0.2 and 0.2 / 0.28") {
    std::vector<expected> tokens{{-1.09828514031, -1.09828514031, none},
                                 {-1.06449445892, -1.06449445892, none},
                                 {-1.2, 0, oracle::high},
                                 {-0.687289278791, -0.687289278791, none},
                                 masked,
                                 {0.4, 0, oracle::low},
                                 {0.549142570154, 0.549142570154, none},
                                 {1.05850000831, 1.05850000831, none}};
    check_tokens(ppo(0.2, 0.2), eight_slots(), tokens, 1.0 / 7);
    tokens[2].loss = -1.28;
    check_tokens(ppo(0.2, 0.28), eight_slots(), tokens, 1.0 / 7);
}

TEST_CASE("TIS with cap 2 on the PPO loss of the eight slots") {
    check_tokens(tis(2), eight_slots(),
                 {{-1.13314845307, -1.13314845307, none, 1.0317434075},
                  {-1.0317434075, -1.0317434075, none, 0.969233234476},
                  {-1.35977814368, 0, oracle::high, 1.13314845307},
                  {-0.645648526428, -0.645648526428, none, 0.939413062813},
                  masked,
                  {0.425797783567, 0, oracle::low, 1.06449445892},
                  {0.566574226533, 0.566574226533, none, 1.0317434075},
                  {2.11700001661, 2.11700001661, oracle::capped, 2}},
                 1.0 / 7);
}

TEST_CASE("IcePop's mask [0.5, 2] on the PPO loss of the eight slots") {
    check_tokens(mis(0.5, 2), eight_slots(),
                 {{-1.13314845307, -1.13314845307, none, 1.0317434075},
                  {-1.0317434075, -1.0317434075, none, 0.969233234476},
                  {-1.35977814368, 0, oracle::high, 1.13314845307},
                  {-0.645648526428, -0.645648526428, none, 0.939413062813},
                  masked,
                  {0.425797783567, 0, oracle::low, 1.06449445892},
                  {0.566574226533, 0.566574226533, none, 1.0317434075},
                  {0, 0, oracle::rejected, 0}},
                 1.0 / 7);
}

TEST_CASE("the raw weights of the eight slots have 6.329 effective samples of 7, and the capped ones a mean of 1.167") {
    for (way const& w : every_way()) {
        INFO(w.name);
        laid_out const b(rows_for(w, eight_slots()), w.kinds, w.how);
        outputs out(b);
        oracle::method m;
        m.correction = oracle::weight::importance;
        asyncrl::loss_report const raw = run(m, b, out);
        REQUIRE(close(raw.effective_sample_share(), 6.32923176287 / 7, w.kinds.single()));
        asyncrl::loss_report const capped = run(tis(2), b, out);
        REQUIRE(close(capped.mean(&asyncrl::loss_report::sum_range::weight), 1.16711086061, w.kinds.single()));
        REQUIRE(close(capped.sums.mismatch, raw.sums.mismatch, w.kinds.single()));  // raw weights do not depend on the cap
        REQUIRE(close(capped.sums.log_mismatch, 0.90625, w.kinds.single()));
        REQUIRE(capped.share(&asyncrl::loss_report::count_range::capped) == 1.0 / 7);
    }
}

TEST_CASE("reductions of the PPO loss of the eight slots") {
    double const seven = 1.0 / 7;
    struct row {
        oracle::reduction reduce;
        double constant;
        double loss, weight0, weight1;
    };
    for (row const& r : {row{oracle::reduction::token_mean, 1, -0.291775185651, seven, seven},
                         row{oracle::reduction::token_sum, 1, -2.04242629956, 1, 1},
                         row{oracle::reduction::sequence_mean_token_mean, 1, -0.171651513342, 0.125, 1.0 / 6},
                         row{oracle::reduction::sequence_mean_token_sum, 1, -1.02121314978, 0.5, 0.5},
                         row{oracle::reduction::sequence_mean_token_sum, 8, -0.127651643722, 0.0625, 0.0625}}) {
        for (way const& w : every_way()) {
            INFO(w.name << ", loss " << r.loss);
            oracle::method m = ppo(0.2, 0.2, r.reduce);
            m.constant = r.constant;
            laid_out const b(rows_for(w, eight_slots()), w.kinds, w.how);
            outputs out(b);
            REQUIRE(close(run(m, b, out).sums.loss, r.loss, w.kinds.single()));
            REQUIRE(close(out.gradient.get(0, 0), -1.09828514031 * r.weight0, w.kinds.single()));
            REQUIRE(close(out.gradient.get(1, 1), 0.549142570154 * r.weight1, w.kinds.single()));
        }
    }
}

TEST_CASE("a rejected token leaves its denominator unless the reduction counts kept tokens") {
    oracle::batch rows = eight_slots();
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            t.rollout_log_prob = t.active ? t.old_log_prob : not_a_number;
        }
    }
    rows[1][2].rollout_log_prob = -4;  // old - rollout = 0.75: outside [0.5, 2]
    oracle::method m = mis(0.5, 2);
    check_loss(m, rows, -0.442989472552);
    m.over_kept = true;
    check_loss(m, rows, -0.51682105131);
}

TEST_CASE("at a bound the gradient flows, one step beyond it does not") {
    SECTION("an interval of one point") {
        check_tokens(ppo(0, 0), {{token_of(0, 0, 0, 1), token_of(0, 0, 0, -1)}}, {{-1, -1, none}, {1, 1, none}}, 0.5);
    }
    SECTION("in float, against the bound rounded to float") {
        // expm1(3/16) is no float, but the log bound it stands for is: 3/16.
        double const bound = 0.1875;
        auto const above = static_cast<double>(std::nextafter(0.1875F, 1.0F));
        double const ratio = 1.20623024942;
        laid_out const b({{token_of(0, 0, bound, 1), token_of(0, 0, above, 1)}});
        outputs out(b);
        (void)run(ppo(0.2, std::expm1(bound)), b, out);
        REQUIRE(close(out.loss.get(0, 0), -ratio, true));
        REQUIRE(close(out.gradient.get(0, 0), -ratio / 2, true));
        REQUIRE(out.flags(0) == none);
        REQUIRE(close(out.loss.get(0, 1), -ratio, true));
        REQUIRE(out.gradient.get(0, 1) == 0);
        REQUIRE(out.flags(1) == oracle::high);
    }
    SECTION("in double, both bounds") {
        double const high = std::log1p(0.28);
        double const low = std::log1p(-0.2);
        laid_out const b({{token_of(0, 0, high, 1), token_of(0, 0, std::nextafter(high, 1), 1), token_of(0, 0, low, -1),
                           token_of(0, 0, std::nextafter(low, -1), -1)}},
                         types::all(dtype::f64));
        outputs out(b);
        (void)run(ppo(0.2, 0.28), b, out);
        REQUIRE(out.flags(0) == none);
        REQUIRE(out.flags(1) == oracle::high);
        REQUIRE(out.flags(2) == none);
        REQUIRE(out.flags(3) == oracle::low);
        REQUIRE(out.gradient.get(0, 0) != 0);
        REQUIRE(out.gradient.get(0, 1) == 0);
        REQUIRE(out.gradient.get(0, 2) != 0);
        REQUIRE(out.gradient.get(0, 3) == 0);
    }
}

TEST_CASE("an advantage of either zero has no loss, no gradient and no flag, however far the ratio") {
    oracle::method m = tis(2);
    m.correction = oracle::weight::masked;
    for (double const zero : {0.0, -0.0}) {
        for (double const d : {1.0, -1.0, 30.0, -30.0, 1000.0, -1000.0}) {
            oracle::batch const rows{{token_of(-40, -1, -1 + d, zero), token_of(-1, -1, -1 + d, zero)}};
            check_tokens(m, rows, {{0, 0, none, 0}, {0, 0, none, 1}}, 0.5);
            check_tokens(policy_gradient(), rows, {{0, 0, none, 1}, {0, 0, none, 1}}, 0.5);
        }
    }
}

TEST_CASE("a zero advantage is zero under an infinite weight too") {
    oracle::method m;
    m.correction = oracle::weight::importance;
    for (way const& w : every_way()) {
        INFO(w.name);
        laid_out const b({{token_of(-1001, -1, -1, 0), token_of(-1001, -1, -1, -0.0), token_of(-1, -1, -1, 1)}}, w.kinds,
                         w.how);
        outputs out(b);
        asyncrl::loss_report const report = run(m, b, out);
        REQUIRE(report.counts.nonfinite == 0);
        REQUIRE(report.sums.loss == -1.0 / 3);
        REQUIRE(std::isfinite(report.sums.weight_squared));
        for (std::size_t const t : {0U, 1U}) {
            REQUIRE(out.loss.bits(0, t) == 0);
            REQUIRE(out.gradient.bits(0, t) == 0);
            REQUIRE(out.flags(t) == none);
        }
    }
}

TEST_CASE("far ratios: the clipped side is the bound, the other side keeps its whole gradient") {
    check_tokens(ppo(0.2, 0.2),
                 {{token_of(0, 0, 30, 1), token_of(0, 0, 30, -1), token_of(0, 0, -30, 1), token_of(0, 0, -30, -1)}},
                 {{-1.2, 0, oracle::high},
                  {1.06864745815e13, 1.06864745815e13, none},
                  {-9.35762296884e-14, -9.35762296884e-14, none},
                  {0.8, 0, oracle::low}},
                 0.25);
}

TEST_CASE("IcePop keeps its closed interval, and rejects weights of any size without a NaN") {
    double const low = std::exp(-0.6875);
    double const high = std::exp(0.75);
    auto const at = [](double e) { return token_of(-e, 0, 0, 1); };
    SECTION("in float") {
        auto const above = static_cast<double>(std::nextafter(0.75F, 1.0F));
        auto const below = static_cast<double>(std::nextafter(-0.6875F, -1.0F));
        laid_out const b({{at(0.75), at(above), at(-0.6875), at(below), at(1000), at(-1000)}});
        outputs out(b);
        asyncrl::loss_report const report = run(mis(low, high), b, out);
        std::vector<double> const weights{2.11700001661, 0, 0.502831577971, 0, 0, 0};
        for (std::size_t t = 0; t < weights.size(); ++t) {
            INFO(t);
            REQUIRE(close(out.weight.get(0, t), weights[t], true));
            REQUIRE(close(out.gradient.get(0, t), -weights[t] / 6, true));
            REQUIRE(out.flags(t) == (weights[t] > 0 ? none : oracle::rejected));
        }
        REQUIRE(report.counts.kept == 2);
        REQUIRE(report.counts.gated == 4);
        REQUIRE(std::isfinite(report.sums.mismatch_squared));
    }
    SECTION("in double") {
        double const top = std::log(high);
        double const bottom = std::log(low);
        laid_out const b(
            {{at(top), at(std::nextafter(top, 1)), at(bottom), at(std::nextafter(bottom, -1)), at(1000), at(-1000)}},
            types::all(dtype::f64));
        outputs out(b);
        asyncrl::loss_report const report = run(mis(low, high), b, out);
        for (std::size_t t = 0; t < 6; ++t) {
            INFO(t);
            bool const kept = t == 0 || t == 2;
            REQUIRE(out.flags(t) == (kept ? none : oracle::rejected));
            REQUIRE((out.weight.get(0, t) > 0) == kept);
        }
        REQUIRE(std::isfinite(report.sums.mismatch_squared));
    }
    SECTION("NaN at an active token is neither kept nor trained, and counted") {
        for (way const& w : every_way()) {
            INFO(w.name);
            layout how = w.how;
            how.unscored = -9999;
            laid_out const b({{token_of(not_a_number, 0, 0, 1), at(0)}}, w.kinds, how);
            outputs out(b);
            asyncrl::loss_report const report = run(mis(0.5, 5), b, out, {.on_nonfinite = asyncrl::nonfinite::drop});
            REQUIRE(out.flags(0) == oracle::bad);
            REQUIRE(out.weight.get(0, 0) == 0);
            REQUIRE(out.gradient.get(0, 0) == 0);
            REQUIRE(out.gradient.get(0, 1) == -0.5);
            REQUIRE(report.counts.nonfinite == 1);
            REQUIRE(report.counts.kept == 1);
        }
    }
}

// From here on: what went wrong in real systems.

TEST_CASE("one bad number under the mask does not make the loss or the gradient NaN") {
    oracle::batch rows{{token_of(0, 0, 0, 1), token_of(0, not_a_number, 0, 1, false)}};
    check_tokens(ppo(0.2, 0.2), rows, {{-1, -1, none}, masked}, 1);
    rows[0][1] = token_of(0, 0, 200, 1, false);  // finite, but its ratio overflows
    check_tokens(ppo(0.2, 0.2), rows, {{-1, -1, none}, masked}, 1);
    rows[0][1].advantage = -1;
    check_tokens(tis(2), rows, {{-1, -1, none}, masked}, 1);
}

TEST_CASE("a stale token whose raw weight overflows float is capped or rejected exactly") {
    oracle::batch const rows{{token_of(-91, -2, -2, 1), token_of(-2, -2, -2, 1)}};
    oracle::method m = policy_gradient();
    m.correction = oracle::weight::truncated;
    check_tokens(m, rows, {{4, -2, oracle::capped, 2}, {2, -1, none, 1}}, 0.5);
    m.correction = oracle::weight::masked;
    check_tokens(m, rows, {{0, 0, oracle::rejected, 0}, {2, -1, none, 1}}, 0.5);
    for (way const& w : every_way()) {
        INFO(w.name);
        laid_out const b(rows_for(w, rows), w.kinds, w.how);
        outputs out(b);
        asyncrl::loss_report const report = run(m, b, out);
        REQUIRE(out.gradient.get(0, 0) == 0);
        REQUIRE(std::isfinite(report.sums.mismatch));
        REQUIRE(std::isfinite(report.sums.mismatch_squared));
        REQUIRE(std::isfinite(report.sums.k3_mismatch));
        REQUIRE(report.maxima.absolute_log_mismatch == 89);
    }
}

TEST_CASE("a rejected token is selected away, not multiplied by zero") {
    oracle::batch const rows{{token_of(-100, 0, 0, 1), token_of(0, 0, 0, 1)}};
    check_tokens(mis(0.5, 5), rows, {{0, 0, oracle::rejected, 0}, {-1, -1, none, 1}}, 0.5);
    check_loss(mis(0.5, 5), rows, -0.5);
}

TEST_CASE("sums are not kept in the columns' type: 4096 ones in bfloat16 have the mean 1") {
    oracle::batch const rows{oracle::row(4096, token_of(-1, -1, -1, 1))};
    for (dtype const type : {dtype::bf16, dtype::f16, dtype::f32, dtype::f64}) {
        laid_out const b(rows, types::all(type));
        outputs out(b);
        REQUIRE(run(policy_gradient(), b, out).sums.loss == 1);
    }
}

TEST_CASE("columns of different types are computed in float") {
    // -10.03 is -10 in bfloat16: the loss of precision is the caller's, and shows.
    types kinds;
    kinds.rollout_log_prob = dtype::bf16;
    oracle::method m = policy_gradient();
    m.correction = oracle::weight::importance;
    laid_out const b({{token_of(-10.03, -10.03, -10.03, 1)}}, kinds);
    outputs out(b);
    (void)run(m, b, out);
    REQUIRE(close(out.weight.get(0, 0), std::exp(-10.03 + 10.0), true));
}

TEST_CASE("a token that the engine could not score trains with weight 1 and is counted; 0.0 is a log-prob") {
    for (double const sentinel : {not_a_number, -9999.0, 0.25, -infinity}) {
        for (way const& w : every_way()) {
            INFO(w.name << ", sentinel " << sentinel);
            layout how = w.how;
            how.unscored = sentinel;
            oracle::batch rows{{token_of(0, -1, -1.5, 1), token_of(0, -1, -1.5, 1), token_of(-1, -1, -1.5, 1)}};
            rows[0][0].scored = false;
            laid_out const b(rows, w.kinds, how);
            outputs out(b);
            asyncrl::loss_report const report = run(tis(5), b, out);
            double const ratio = std::exp(-0.5);
            bool const single = w.kinds.single();
            REQUIRE(close(out.weight.get(0, 0), 1, single));
            REQUIRE(close(out.gradient.get(0, 0), -ratio / 3, single));
            REQUIRE(out.flags(0) == oracle::unscored);
            REQUIRE(close(out.weight.get(0, 1), std::exp(-1), single));
            REQUIRE(close(out.gradient.get(0, 1), -ratio * std::exp(-1) / 3, single));
            REQUIRE(out.flags(1) == none);
            REQUIRE(report.counts.unscored == 1);
            REQUIRE(report.counts.nonfinite == 0);
            REQUIRE(report.counts.kept == 3);
        }
    }
}

TEST_CASE("the sentinel is recognised in every column type that cannot hold it exactly") {
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
        for (double const sentinel : {-9999.0, -9999.1, 0.1, -1.0 / 3}) {
            INFO(sentinel << " in type " << static_cast<int>(type));
            types kinds;
            kinds.rollout_log_prob = type;
            layout how;
            how.unscored = sentinel;
            oracle::batch rows{{token_of(0, -1, -1, 1), token_of(-2, -1, -1, 1)}};
            rows[0][0].scored = false;
            laid_out const b(rows, kinds, how);
            outputs out(b);
            REQUIRE(run(tis(2), b, out).counts.unscored == 1);
            REQUIRE(out.flags(0) == oracle::unscored);
            REQUIRE(out.weight.get(0, 0) == 1);
        }
    }
}

TEST_CASE("a row without an active token is no sequence, unless the caller counts it") {
    oracle::batch rows = rows_with_losses({{1, 1}, {5, 5}});
    for (oracle::token& t : rows[1]) {
        t.active = false;
    }
    oracle::method const m = policy_gradient(oracle::reduction::sequence_mean_token_mean);
    check_loss(m, rows, 1);
    for (way const& w : every_way()) {
        INFO(w.name);
        laid_out const b(rows, w.kinds, w.how);
        outputs out(b);
        asyncrl::totals sums = library::measure(m, b.batch, out.scratch);
        REQUIRE(sums.counts.sequences == 1);
        sums.counts.sequences = 2;
        REQUIRE(library::policy_loss(m, b.batch, sums, out.to(), out.scratch).sums.loss == 0.5);
    }
}

TEST_CASE("a batch without an active token has loss 0 and a gradient of +0 everywhere") {
    oracle::batch const rows{oracle::row(5, garbage()), oracle::row(5, garbage())};
    for (int reduce = 0; reduce < 4; ++reduce) {
        for (bool const kept : {false, true}) {
            for (way const& w : every_way()) {
                INFO(w.name << ", reduction " << reduce);
                oracle::method m = mis(0.5, 5);
                m.reduce = static_cast<oracle::reduction>(reduce);
                m.over_kept = kept;
                laid_out const b(rows, w.kinds, w.how);
                outputs out(b);
                asyncrl::loss_report const report = run(m, b, out);
                b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
                    REQUIRE(out.gradient.bits(r, t) == 0);
                    REQUIRE(out.loss.bits(r, t) == 0);
                    REQUIRE(out.weight.bits(r, t) == 0);
                });
                REQUIRE(report.sums.loss == 0);
                REQUIRE(report.counts.tokens == 0);
                REQUIRE(report.effective_sample_share() == 0);
                REQUIRE(report.mean(&asyncrl::loss_report::sum_range::weight) == 0);
                REQUIRE(report.share(&asyncrl::loss_report::count_range::kept) == 0);
                REQUIRE(out.guards_hold());
            }
        }
    }
}

TEST_CASE("after a rejection either denominator can be had") {
    oracle::batch rows{{}};
    for (double const e : {0.1, -1.5, 0.8, -10.0, 0.3}) {
        rows[0].push_back(token_of(-1 - e, -1, -1, 1));  // unit loss under a policy gradient
    }
    oracle::method m = mis(0.5, 2);
    m.loss = oracle::surrogate::policy_gradient;
    check_loss(m, rows, (std::exp(0.1) + std::exp(0.3)) / 5);
    m.over_kept = true;
    check_loss(m, rows, (std::exp(0.1) + std::exp(0.3)) / 2);
}

TEST_CASE("only a binding bound counts as clipped") {
    double const up = std::log(1.5);
    double const down = std::log(0.5);
    oracle::batch const rows{{token_of(0, 0, up, 1), token_of(0, 0, up, -1), token_of(0, 0, down, 1), token_of(0, 0, down, -1),
                              token_of(0, 0, up, 1, false)}};
    check_tokens(ppo(0.2, 0.2), rows,
                 {{-1.2, 0, oracle::high}, {1.5, 1.5, none}, {-0.5, -0.5, none}, {0.8, 0, oracle::low}, masked}, 0.25);
    check_loss(ppo(0.2, 0.2), rows, 0.15);
    for (way const& w : every_way()) {
        laid_out const b(rows, w.kinds, w.how);
        outputs out(b);
        asyncrl::loss_report const report = run(ppo(0.2, 0.2), b, out);
        REQUIRE(report.share(&asyncrl::loss_report::count_range::clipped_high) == 0.25);
        REQUIRE(report.share(&asyncrl::loss_report::count_range::clipped_low) == 0.25);
    }
}

TEST_CASE("five reductions of rows with losses 1 1 1 1, 6 and 2 4") {
    oracle::batch const rows = rows_with_losses({{1, 1, 1, 1}, {6}, {2, 4}});
    check_loss(policy_gradient(oracle::reduction::token_mean), rows, 16.0 / 7);
    check_loss(policy_gradient(oracle::reduction::sequence_mean_token_mean), rows, 10.0 / 3);
    check_loss(policy_gradient(oracle::reduction::sequence_mean_token_sum), rows, 16.0 / 3);
    check_loss(policy_gradient(oracle::reduction::token_sum), rows, 16);
    oracle::method m = policy_gradient(oracle::reduction::sequence_mean_token_sum);
    m.constant = 8;
    check_loss(m, rows, 2.0 / 3);
    m.reduce = oracle::reduction::token_sum;
    check_loss(m, rows, 2);
}

TEST_CASE("tokens that are masked away are not counted: 25 unit losses of 30 tokens have the mean 1") {
    oracle::batch rows = rows_with_losses({std::vector<double>(30, 1.0)});
    for (std::size_t i = 25; i < 30; ++i) {
        rows[0][i].active = false;
    }
    check_loss(policy_gradient(), rows, 1);
    check_loss(policy_gradient(oracle::reduction::sequence_mean_token_mean), rows, 1);
}

TEST_CASE("the weight is old over rollout, not new over rollout") {
    oracle::method m;
    m.correction = oracle::weight::importance;
    check_tokens(m, {{token_of(-1.5, -1.1, -1, 1)}}, {{-1.6487212707, -1.6487212707, none, 1.49182469764}}, 1);
}

TEST_CASE("where the rollout log-prob is also the old one the weight is 1, and nothing is counted twice") {
    oracle::method m;
    m.correction = oracle::weight::importance;
    check_tokens(m, {{token_of(-1.5, -1.5, -1.2, 1)}}, {{-1.2, 0, oracle::high, 1}}, 1);
}

TEST_CASE("no gradient flows through the weight") {
    oracle::method m = policy_gradient();
    m.correction = oracle::weight::importance;
    check_tokens(m, {{token_of(-2 - std::log(1.5), -2, -2, 1)}}, {{3, -1.5, none, 1.5}}, 1);
}

TEST_CASE("zeros in a log-prob column are log-probs: a probability of one") {
    check_tokens(ppo(0.2, 0.2), {{token_of(0, 0, -0.125, 1), token_of(0, -0.125, 0, 1)}},
                 {{-std::exp(-0.125), -std::exp(-0.125), none}, {-std::exp(0.125), -std::exp(0.125), none}}, 0.5);
}
