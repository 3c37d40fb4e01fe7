// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/cases.hpp"
#include "support/compare.hpp"

#include <asyncrl/correction/mismatch.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace support;
using asyncrl::mismatch_options;
using asyncrl::mismatch_report;
using asyncrl::policy_pair;
using sums = mismatch_report::sum_range;
using counts = mismatch_report::count_range;

namespace {

/// Tokens of one row with the given old - rollout.
oracle::row with_log_ratios(std::vector<double> const& e) {
    oracle::row r;
    for (double const x : e) {
        r.push_back(token_of(-1 - x, -1, -1, 1));
    }
    return r;
}

mismatch_report measured(laid_out const& b, mismatch_options const& options = {}) {
    asyncrl::workspace scratch(b.batch);
    return asyncrl::mismatch(b.batch, scratch, options);
}

/// The statistics once more, token by token in double.
struct brute_force {
    double log_ratio = 0, absolute = 0, k3 = 0, variation = 0, raw = 0, raw2 = 0, truncated = 0, truncated2 = 0, masked = 0,
           masked2 = 0;
    std::int64_t tokens = 0, sequences = 0, below_one = 0, at_cap = 0, out_of_band = 0, unscored = 0, bad = 0;
    double largest = -infinity, smallest = infinity, largest_sequence = -infinity, smallest_sequence = infinity;
    std::vector<double> magnitudes;

    brute_force(laid_out const& b, mismatch_options const& o) {
        bool const single = b.kinds().single();
        for (oracle::row const& r : b.values) {
            double whole = 0;
            std::int64_t counted = 0;
            for (oracle::token const& t : r) {
                double const numerator = o.pair == policy_pair::old_rollout ? t.old_log_prob : t.log_prob;
                bool const over_old = o.pair == policy_pair::new_old;
                double const denominator = over_old ? t.old_log_prob : t.rollout_log_prob;
                if (!t.active) {
                    continue;
                }
                if (!over_old && !t.scored) {
                    ++unscored;
                    bad += std::isfinite(numerator) ? 0 : 1;
                    continue;
                }
                if (!std::isfinite(numerator) || !std::isfinite(denominator)) {
                    ++bad;
                    continue;
                }
                double const e = oracle::rounded(numerator - denominator, single);
                double const w = std::exp(e);
                bool const over = e > oracle::rounded(std::log(o.cap), single);
                bool const inside =
                    e >= oracle::rounded(std::log(o.low), single) && e <= oracle::rounded(std::log(o.high), single);
                ++tokens;
                ++counted;
                whole += numerator - denominator;
                log_ratio += e;
                absolute += std::abs(e);
                k3 += std::expm1(e) - e;
                variation += std::abs(std::expm1(e)) / 2;
                raw += w;
                raw2 += w * w;
                truncated += over ? o.cap : w;
                truncated2 += over ? o.cap * o.cap : w * w;
                masked += inside ? w : 0;
                masked2 += inside ? w * w : 0;
                below_one += e < 0 ? 1 : 0;
                at_cap += over ? 1 : 0;
                out_of_band += inside ? 0 : 1;
                largest = std::max(largest, e);
                smallest = std::min(smallest, e);
                magnitudes.push_back(std::abs(e));
            }
            if (counted > 0) {
                ++sequences;
                largest_sequence = std::max(largest_sequence, whole);
                smallest_sequence = std::min(smallest_sequence, whole);
            }
        }
        std::sort(magnitudes.begin(), magnitudes.end());
    }
};

std::string difference(laid_out const& b, mismatch_options const& o, mismatch_report const& got) {
    brute_force const want(b, o);
    differences found;
    tolerance const fits = tolerance_of_sums(b.kinds().single());
    found.number("log_ratio", got.sums.log_ratio, want.log_ratio, want.absolute, fits);
    found.number("absolute_log_ratio", got.sums.absolute_log_ratio, want.absolute, fits);
    found.number("k3", got.sums.k3, want.k3, fits);
    found.number("total_variation", got.sums.total_variation, want.variation, fits);
    found.number("raw", got.sums.raw, want.raw, fits);
    found.number("raw_squared", got.sums.raw_squared, want.raw2, fits);
    found.number("truncated", got.sums.truncated, want.truncated, fits);
    found.number("truncated_squared", got.sums.truncated_squared, want.truncated2, fits);
    found.number("masked", got.sums.masked, want.masked, fits);
    found.number("masked_squared", got.sums.masked_squared, want.masked2, fits);
    found.count("tokens", got.counts.tokens, want.tokens);
    found.count("sequences", got.counts.sequences, want.sequences);
    found.count("below_one", got.counts.below_one, want.below_one);
    found.count("at_cap", got.counts.at_cap, want.at_cap);
    found.count("out_of_band", got.counts.out_of_band, want.out_of_band);
    found.count("unscored", got.counts.unscored, want.unscored);
    found.count("nonfinite", got.counts.nonfinite, want.bad);
    found.count("histogram", got.histogram.total(), want.tokens);
    if (want.tokens > 0) {
        found.check(got.maxima.log_ratio == want.largest, "largest ", got.maxima.log_ratio, ", expected ", want.largest);
        found.check(got.maxima.negated_log_ratio == -want.smallest, "smallest ", got.maxima.negated_log_ratio);
        tolerance const exact{1e-12, 1e-12};
        found.number("largest sequence", got.maxima.sequence_log_ratio, want.largest_sequence, exact);
        found.number("smallest sequence", -got.maxima.negated_sequence_log_ratio, want.smallest_sequence, exact);
        for (double const share : {0.0, 0.1, 0.5, 0.9, 0.99, 1.0}) {
            auto const rank = static_cast<std::size_t>(std::max(1.0, std::ceil(share * static_cast<double>(want.tokens))));
            double const exactly = want.magnitudes[rank - 1];
            double const quantile = got.absolute_log_ratio_quantile(share);
            found.check(quantile >= exactly && quantile <= exactly * (1 + 1.0 / 16) + 1e-38, "quantile ", share, " is ",
                        quantile, ", of the sorted numbers ", exactly);
        }
    }
    return found.text();
}

void on_two_threads(std::int64_t count, asyncrl::task_ref task) {
    std::atomic<std::int64_t> next{0};
    auto const work = [&] {
        for (std::int64_t i = next++; i < count; i = next++) {
            task(i);
        }
    };
    std::thread other(work);
    work();
    other.join();
}

bool same_bits(mismatch_report const& a, mismatch_report const& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

TEST_CASE("raw, truncated and masked means of weights 0.607, 12.18 and 0.819 are three different numbers") {
    for (way const& w : every_way()) {
        INFO(w.name);
        laid_out const b({with_log_ratios({-0.5, 2.5, -0.2})}, w.kinds, w.how);
        mismatch_report const r = measured(b, {.cap = 5, .low = 0.5, .high = 5});
        bool const single = w.kinds.single();
        double const low = std::exp(-0.5);
        double const mid = std::exp(-0.2);
        REQUIRE(close(r.mean(&sums::raw), (low + std::exp(2.5) + mid) / 3, single));  // 4.5359187
        REQUIRE(close(r.mean(&sums::truncated), (low + 5 + mid) / 3, single));        // 2.141754
        REQUIRE(close(r.mean(&sums::masked), (low + mid) / 3, single));               // 0.4750873
        REQUIRE(r.share(&counts::out_of_band) == 1.0 / 3);
        REQUIRE(r.share(&counts::at_cap) == 1.0 / 3);
        REQUIRE(r.share(&counts::below_one) == 2.0 / 3);
    }
}

TEST_CASE("a tool token's placeholder under the mask is not in the mean: 0.15, not 10.1") {
    oracle::batch const rows{{token_of(-1.1, -1, -1, 1), token_of(0, -30, -30, 1, false), token_of(-2.2, -2, -2, 1)}};
    for (way const& w : every_way()) {
        INFO(w.name);
        mismatch_report const r = measured(laid_out(rows, w.kinds, w.how));
        REQUIRE(close(r.mean(&sums::absolute_log_ratio), 0.15, w.kinds.single()));
        REQUIRE(r.counts.tokens == 2);
    }
}

TEST_CASE("a signed mean cancels where the absolute one does not") {
    mismatch_report const r = measured(laid_out({with_log_ratios({0.5, -0.5})}));
    REQUIRE(r.k1() == 0);
    REQUIRE(r.mean(&sums::absolute_log_ratio) == 0.5);
    REQUIRE(r.largest_absolute_log_ratio() == 0.5);
}

TEST_CASE("the eight slots: effective samples, divergences, and ratios of tokens and sequences") {
    for (way const& w : every_way()) {
        INFO(w.name);
        bool const single = w.kinds.single();
        mismatch_report const r = measured(laid_out(rows_for(w, eight_slots()), w.kinds, w.how));
        REQUIRE(r.counts.tokens == 7);
        REQUIRE(r.counts.sequences == 2);
        REQUIRE(close(r.effective_sample_share(&sums::raw, &sums::raw_squared), 6.32923176287 / 7, single));
        REQUIRE(close(r.mean(&sums::truncated), 1.16711086061, single));
        REQUIRE(close(r.k1(), -0.90625 / 7, single));
        REQUIRE(close(r.sums.k3, 4 * 0.00275953946394 + 3 * 0.123162627677, single));
        REQUIRE(close(r.largest_ratio(), 2.11700001661, single));
        REQUIRE(close(r.smallest_ratio(), 0.939413062813, single));
        REQUIRE(close(r.largest_sequence_ratio(), 2.32506966028, single));
        REQUIRE(close(r.smallest_sequence_ratio(), 1.06449445892, single));
        REQUIRE(close(r.largest_absolute_sequence_log_ratio(), 0.84375, single));
        double const variation =
            (0.0317434075 + 0.030766765524 + 0.13314845307 + 0.060586937187 + 0.06449445892 + 0.0317434075 + 1.11700001661) / 2;
        REQUIRE(std::abs(r.sums.total_variation - variation) < 1e-6);
    }
}

TEST_CASE("probabilities of truncated sampling bias every ratio by the kept mass") {
    mismatch_report const r = measured(laid_out({with_log_ratios(std::vector<double>(50, std::log(0.9)))}));
    REQUIRE(close(r.mean(&sums::raw), 0.9, true));
    REQUIRE(r.share(&counts::below_one) == 1);
}

TEST_CASE("equal policies: no divergence, every weight 1, and all quantiles 0") {
    mismatch_report const r = measured(laid_out({with_log_ratios(std::vector<double>(50, 0.0))}));
    REQUIRE(r.sums.k3 == 0);
    REQUIRE(r.sums.total_variation == 0);
    REQUIRE(r.sums.raw == 50);
    REQUIRE(r.effective_sample_share(&sums::raw, &sums::raw_squared) == 1);
    REQUIRE(r.absolute_log_ratio_quantile(0.99) == 0);
    REQUIRE(r.largest_ratio() == 1);
    REQUIRE(r.counts.below_one == 0);
}

TEST_CASE("k3 of tiny ratios does not cancel") {
    // Each is e^2/2 + e^3/6 = 5.0017e-7; exp(e) - 1 - e in float is far off.
    mismatch_report const r = measured(laid_out({with_log_ratios(std::vector<double>(64, 0.0009765625))}));
    double const e = 0.0009765625;
    REQUIRE_THAT(r.mean(&sums::k3), Catch::Matchers::WithinRel(e * e / 2 + e * e * e / 6, 1e-6));
}

TEST_CASE("a batch without a counted token is empty, and infinities mark its extremes") {
    for (oracle::batch const& rows : {oracle::batch{oracle::row(3, garbage())}, oracle::batch{}}) {
        laid_out const b(rows);
        mismatch_report const r = measured(b);
        REQUIRE(r.counts.tokens == 0);
        REQUIRE(r.counts.sequences == 0);
        REQUIRE(r.mean(&sums::raw) == 0);
        REQUIRE(r.k1() == 0);
        REQUIRE(r.effective_sample_share(&sums::raw, &sums::raw_squared) == 0);
        REQUIRE(r.absolute_log_ratio_quantile(0.5) == 0);
        REQUIRE(r.largest_absolute_log_ratio() == 0);
        REQUIRE(r.maxima.log_ratio == -infinity);
        REQUIRE(r.largest_ratio() == 0);
        REQUIRE(r.smallest_ratio() == infinity);
        mismatch_report whole = measured(laid_out({with_log_ratios({0.25})}));
        whole += r;
        REQUIRE(whole.largest_ratio() == std::exp(0.25));
        REQUIRE(whole.smallest_ratio() == std::exp(0.25));
    }
}

TEST_CASE("unscored tokens and non-finite ones are counted and left out of everything else") {
    for (double const sentinel : {not_a_number, -9999.0}) {
        for (way const& w : every_way()) {
            INFO(w.name << ", sentinel " << sentinel);
            layout how = w.how;
            how.unscored = sentinel;
            oracle::batch rows{with_log_ratios({0.5, 7, -0.25, 9, 8})};
            rows[0][1].scored = false;
            rows[0][3].rollout_log_prob = infinity;
            rows[0][4].old_log_prob = not_a_number;
            laid_out const b(rows, w.kinds, how);
            mismatch_report const r = measured(b);
            REQUIRE(r.counts.tokens == 2);
            REQUIRE(r.counts.unscored == 1);
            REQUIRE(r.counts.nonfinite == 2);
            REQUIRE(r.counts.sequences == 1);
            REQUIRE(r.sums.log_ratio == 0.25);
            REQUIRE(r.maxima.log_ratio == 0.5);
            REQUIRE(r.maxima.sequence_log_ratio == 0.25);
            REQUIRE(r.histogram.total() == 2);
        }
    }
}

TEST_CASE("weights beyond 2^30 enter the sums as 2^30 and are counted") {
    for (way const& w : every_way()) {
        INFO(w.name);
        mismatch_report const r = measured(laid_out({with_log_ratios({89, 1000, 0})}, w.kinds, w.how));
        REQUIRE(r.counts.overflow == 2);
        REQUIRE(close(r.sums.raw, 2 * 0x1p30 + 1, w.kinds.single()));  // e^(30 log 2), as exp gives it
        REQUIRE(close(r.sums.raw_squared, 2 * 0x1p60, w.kinds.single()));
        REQUIRE(r.sums.truncated == 5);
        REQUIRE(r.sums.masked == 1);
        REQUIRE(r.maxima.log_ratio == 1000);
        REQUIRE(std::isfinite(r.sums.k3));
        REQUIRE(std::isfinite(r.sums.total_variation));
    }
}

TEST_CASE("the pair is named: new or old over rollout, or new over old") {
    oracle::batch const rows{{token_of(-1.5, -1.25, -1, 1), token_of(-2, -1, -3, 1)}};
    for (way const& w : every_way()) {
        laid_out const b(rows, w.kinds, w.how);
        REQUIRE(measured(b).sums.log_ratio == 0.25 + 1);
        REQUIRE(measured(b, {.pair = policy_pair::new_rollout}).sums.log_ratio == 0.5 - 1);
        REQUIRE(measured(b, {.pair = policy_pair::new_old}).sums.log_ratio == 0.25 - 2);
    }
}

TEST_CASE("the sentinel is one of the rollout column: elsewhere it is a number, and NaN is not finite") {
    for (double const sentinel : {not_a_number, -9999.0}) {
        layout how;
        how.unscored = sentinel;
        oracle::batch rows{with_log_ratios({0.5, 0.25, 0.125})};
        rows[0][1].old_log_prob = sentinel;
        rows[0][2].rollout_log_prob = sentinel;
        laid_out const b(rows, types::all(dtype::f64), how);
        mismatch_report const r = measured(b, {.pair = policy_pair::new_old});
        REQUIRE(r.counts.unscored == 0);
        REQUIRE(r.counts.nonfinite == (std::isnan(sentinel) ? 1 : 0));
        REQUIRE(r.counts.tokens == (std::isnan(sentinel) ? 2 : 3));
    }
}

TEST_CASE("only the two columns of the pair are needed, and the one that is missing is named") {
    laid_out const b({with_log_ratios({0.5, -0.5})});
    asyncrl::workspace scratch(b.batch);
    struct need {
        policy_pair pair;
        bool log_prob, old, rollout;
    };
    for (need const& n : {need{policy_pair::old_rollout, false, true, true}, need{policy_pair::new_rollout, true, false, true},
                          need{policy_pair::new_old, true, true, false}}) {
        asyncrl::token_batch only = b.batch;
        only.advantage = {};
        only.log_prob = n.log_prob ? only.log_prob : asyncrl::column{};
        only.old_log_prob = n.old ? only.old_log_prob : asyncrl::column{};
        only.rollout_log_prob = n.rollout ? only.rollout_log_prob : asyncrl::column{};
        REQUIRE_NOTHROW(asyncrl::mismatch(only, scratch, {.pair = n.pair}));
        auto const refusal = [&](asyncrl::token_batch const& batch) {
            try {
                (void)asyncrl::mismatch(batch, scratch, {.pair = n.pair});
            } catch (std::invalid_argument const& error) {
                return std::string(error.what());
            }
            return std::string();
        };
        if (n.log_prob) {
            asyncrl::token_batch without = only;
            without.log_prob = {};
            REQUIRE(refusal(without).rfind("asyncrl: token_batch.log_prob is absent", 0) == 0);
        }
        if (n.old) {
            asyncrl::token_batch without = only;
            without.old_log_prob = {};
            REQUIRE(refusal(without).rfind("asyncrl: token_batch.old_log_prob is absent", 0) == 0);
        }
        if (n.rollout) {
            asyncrl::token_batch without = only;
            without.rollout_log_prob = {};
            REQUIRE(refusal(without).rfind("asyncrl: token_batch.rollout_log_prob is absent", 0) == 0);
            without.rollout_log_prob = {b.rollout_log_prob.in().data, dtype::f64, 2, 1};
            REQUIRE(refusal(without).rfind("asyncrl: token_batch.rollout_log_prob has dtype f64", 0) == 0);
        }
    }
}

TEST_CASE("options that cannot be meant are refused by name") {
    laid_out const b({with_log_ratios({0.5})});
    for (double const cap : {0.0, -1.0, infinity, not_a_number}) {
        REQUIRE_THROWS_AS(measured(b, {.cap = cap}), std::invalid_argument);
    }
    for (double const low : {-0.5, not_a_number}) {
        REQUIRE_THROWS_AS(measured(b, {.low = low}), std::invalid_argument);
    }
    for (double const high : {0.5, 0.25, not_a_number}) {
        REQUIRE_THROWS_AS(measured(b, {.low = 0.5, .high = high}), std::invalid_argument);
    }
    REQUIRE_NOTHROW(measured(b, {.low = 0, .high = infinity}));
    asyncrl::workspace none(asyncrl::token_batch{});
    REQUIRE_THROWS_AS(asyncrl::mismatch(b.batch, none), std::invalid_argument);
}

TEST_CASE("any batch in any layout and precision agrees with brute force") {
    source random(71);
    for (std::int64_t const size : {0, 1, 3, 4, 5, 8, 17, 100, 2047, 2049, 7000}) {
        for (int repeat = 0; repeat < 25; ++repeat) {
            layout how;
            how.packed = random.chance(0.5);
            how.masked = random.chance(0.8);
            how.token_stride = random.pick({1, 1, 2, -1});
            how.shift = random.below(3);
            how.unscored = random.pick({not_a_number, -9999.0, 2.0});
            types kinds = types::all(random.pick({dtype::f32, dtype::f64, dtype::bf16, dtype::f16}));
            if (kinds.single()) {
                kinds.rollout_log_prob = random.pick({dtype::f32, dtype::bf16, dtype::f16});
            }
            std::int64_t const rows = 1 + random.below(4);
            std::vector<std::int64_t> const lengths =
                how.packed ? random_lengths(random, size)
                           : std::vector<std::int64_t>(static_cast<std::size_t>(rows), (size + rows - 1) / rows);
            recipe shares;
            if (!how.masked) {
                shares.active = 1;
                shares.dead_rows = 0;
            }
            laid_out const b(random_batch(random, lengths, shares), kinds, how);
            mismatch_options options;
            options.pair = random.pick({policy_pair::old_rollout, policy_pair::new_rollout, policy_pair::new_old});
            options.cap = random.pick({0.5, 1.0, 1.5});
            options.low = random.pick({0.0, 0.8});
            options.high = random.pick({1.3, infinity});
            INFO("size " << size << ", repeat " << repeat << ", pair " << static_cast<int>(options.pair));
            REQUIRE(difference(b, options, measured(b, options)) == "");
        }
    }
}

TEST_CASE("parts merge to the whole: counts, histogram and extremes exactly, sums to rounding") {
    source random(72);
    oracle::batch const rows = random_batch(random, {300, 0, 2500, 17, 800});
    layout how;
    how.packed = true;
    laid_out const whole(rows, types::all(dtype::f64), how);
    mismatch_report const want = measured(whole);
    mismatch_report merged;
    for (oracle::row const& r : rows) {
        merged += measured(laid_out({r}, types::all(dtype::f64), how));
    }
    REQUIRE(difference(whole, {}, merged) == "");
    REQUIRE(std::memcmp(&merged.counts, &want.counts, sizeof want.counts) == 0);
    REQUIRE(std::memcmp(&merged.maxima, &want.maxima, sizeof want.maxima) == 0);
    REQUIRE(merged.histogram.buckets == want.histogram.buckets);
}

TEST_CASE("any executor gives the same bits, histogram included") {
    source random(73);
    for (dtype const type : {dtype::f32, dtype::f64}) {
        laid_out const b(random_batch(random, std::vector<std::int64_t>(40, 500)), types::all(type));
        asyncrl::workspace scratch(b.batch);
        mismatch_report const want = asyncrl::mismatch(b.batch, scratch);
        for (int repeat = 0; repeat < 5; ++repeat) {
            mismatch_report const got = asyncrl::mismatch(b.batch, scratch, {}, on_two_threads);
            REQUIRE(same_bits(got, want));
        }
    }
}

TEST_CASE("garbage under the mask changes no bit") {
    source random(74);
    recipe how;
    how.garbage = false;
    oracle::batch rows = random_batch(random, {500, 500}, how);
    mismatch_report const want = measured(laid_out(rows));
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            if (!t.active) {
                t.old_log_prob = random_garbage(random);
                t.rollout_log_prob = random_garbage(random);
                t.scored = true;
            }
        }
    }
    REQUIRE(same_bits(measured(laid_out(rows)), want));
}
