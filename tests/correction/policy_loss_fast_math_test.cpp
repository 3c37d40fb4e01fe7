// SPDX-License-Identifier: Apache-2.0
// Compiled with -ffast-math, under which x != x is always false: finiteness is still tested, and the sentinel still found.
#include "catch.hpp"

#include <asyncrl/correction/mismatch.hpp>
#include <asyncrl/correction/policy_loss.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#ifndef __FAST_MATH__
#error "this test is about -ffast-math"
#endif

namespace {

constexpr std::size_t tokens = 37;
constexpr std::size_t place = 21;

template <typename Number>
struct columns {
    std::vector<Number> log_prob = std::vector<Number>(tokens, Number(-1));
    std::vector<Number> old_log_prob = std::vector<Number>(tokens, Number(-1.0625));
    std::vector<Number> rollout_log_prob = std::vector<Number>(tokens, Number(-1.5));
    std::vector<Number> advantage = std::vector<Number>(tokens, Number(1));
    std::vector<Number> gradient = std::vector<Number>(tokens, Number(7));
    std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(tokens, std::uint8_t{1});

    [[nodiscard]] asyncrl::token_batch batch() const {
        asyncrl::token_batch b;
        b.rows = 1;
        b.tokens = tokens;
        b.log_prob = asyncrl::per_token(log_prob.data());
        b.old_log_prob = asyncrl::per_token(old_log_prob.data());
        b.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data());
        b.advantage = asyncrl::per_token(advantage.data());
        b.mask = asyncrl::per_token(mask.data());
        return b;
    }
    [[nodiscard]] std::vector<Number>& at(int column) {
        std::vector<Number>* const all[] = {&log_prob, &old_log_prob, &rollout_log_prob, &advantage};
        return *all[column];
    }
    [[nodiscard]] bool gradient_is_zero() const {
        for (Number const g : gradient) {
            if (g != 0) {
                return false;
            }
        }
        return true;
    }
};

template <typename Number>
void check() {
    auto const objective = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::tis{}, asyncrl::token_mean{});
    using limits = std::numeric_limits<Number>;
    for (int column = 0; column < 4; ++column) {
        for (Number const value : {limits::quiet_NaN(), limits::infinity(), -limits::infinity()}) {
            columns<Number> c;
            c.at(column)[place] = value;
            asyncrl::token_batch batch = c.batch();
            batch.unscored = -9999;
            asyncrl::workspace scratch(batch);
            asyncrl::totals const sums = asyncrl::measure(objective, batch, scratch);
            asyncrl::output_column const gradient = asyncrl::per_token(c.gradient.data());
            INFO("column " << column);
            REQUIRE_THROWS_AS(asyncrl::policy_loss(objective, batch, sums, gradient, scratch), asyncrl::nonfinite_error);
            REQUIRE(c.gradient_is_zero());
            asyncrl::loss_report const report =
                asyncrl::policy_loss(objective, batch, sums, gradient, scratch, {.on_nonfinite = asyncrl::nonfinite::drop});
            REQUIRE(report.counts.nonfinite == 1);
            REQUIRE(report.first_nonfinite == static_cast<std::int64_t>(place));
            REQUIRE(c.gradient[place] == 0);
            REQUIRE(c.gradient[place + 1] < 0);
            REQUIRE(asyncrl::mismatch(batch, scratch).counts.nonfinite == (column == 1 || column == 2 ? 1 : 0));

            c.mask[place] = 0;  // under the mask it is inert
            asyncrl::loss_report const masked = asyncrl::policy_loss(objective, batch, sums, gradient, scratch);
            REQUIRE(masked.counts.nonfinite == 0);
            REQUIRE(masked.counts.tokens == static_cast<std::int64_t>(tokens) - 1);
            REQUIRE(masked.sums.loss < 0);
            REQUIRE(masked.sums.loss > -2);
            REQUIRE(c.gradient[place] == 0);
        }
    }
    columns<Number> c;
    c.rollout_log_prob[place] = limits::quiet_NaN();
    asyncrl::token_batch const batch = c.batch();  // NaN is the sentinel unless the batch names another
    asyncrl::workspace scratch(batch);
    asyncrl::totals const sums = asyncrl::measure(objective, batch, scratch);
    asyncrl::loss_report const report =
        asyncrl::policy_loss(objective, batch, sums, asyncrl::per_token(c.gradient.data()), scratch);
    REQUIRE(report.counts.unscored == 1);
    REQUIRE(report.counts.nonfinite == 0);
    REQUIRE(asyncrl::mismatch(batch, scratch).counts.unscored == 1);
}

}  // namespace

TEST_CASE("-ffast-math does not remove the tests of finiteness, in float") {
    check<float>();
}

TEST_CASE("-ffast-math does not remove the tests of finiteness, in double") {
    check<double>();
}
