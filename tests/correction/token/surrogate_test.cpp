// SPDX-License-Identifier: Apache-2.0
// Surrogates and weights as functors over double; the same values in a loop are policy_loss_test.cpp's.
#include "catch.hpp"

#include <asyncrl/correction/token/surrogate.hpp>
#include <asyncrl/correction/token/weight.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

using namespace asyncrl;

namespace {

token<double> token_at(double d, double advantage) {
    return {.log_prob = -1, .log_ratio = d, .ratio = std::exp(d), .log_mismatch = 0, .mismatch = 1, .advantage = advantage};
}
token<double> mismatched(double e) {
    return {.log_prob = -1, .log_ratio = 0, .ratio = 1, .log_mismatch = e, .mismatch = std::exp(e), .advantage = 1};
}

}  // namespace

TEST_CASE("PPO's loss is the larger of the clipped and the unclipped one") {
    auto const op = ppo_clip{.low = 0.2, .high = 0.28}.bind<double>();
    for (double const advantage : {2.0, -2.0}) {
        for (double d = -2; d <= 2; d += 0.01) {
            double const r = std::exp(d);
            double const clipped = std::min(std::max(r, 0.8), 1.28);
            double const want = std::max(-advantage * r, -advantage * clipped);
            term<double> const got = op(token_at(d, advantage));
            INFO("d " << d << ", advantage " << advantage);
            REQUIRE(got.value == want);
            bool const binds = want != -advantage * r;
            REQUIRE(got.slope == (binds ? 0 : -advantage * r));
            REQUIRE(has(got.flags, clipped_high) == (binds && advantage > 0));
            REQUIRE(has(got.flags, clipped_low) == (binds && advantage < 0));
        }
    }
}

TEST_CASE("the policy gradient is linear in the log-prob") {
    auto const op = policy_gradient{}.bind<double>();
    token<double> t = token_at(0, 3);
    t.log_prob = -2;
    term<double> const got = op(t);
    REQUIRE(got.value == 6);
    REQUIRE(got.slope == -3);
    REQUIRE(got.flags == 0);
}

TEST_CASE("a weight is w, min(w, cap), or w inside the band") {
    auto const raw = importance_weight{}.bind<double>();
    auto const capped_at_2 = tis{.cap = 2}.bind<double>();
    auto const band = mis{.low = 0.5, .high = 5}.bind<double>();
    for (double e = -3; e <= 3; e += 0.01) {
        double const w = std::exp(e);
        INFO("e " << e);
        REQUIRE(raw(mismatched(e)).value == w);
        REQUIRE(raw(mismatched(e)).keep);
        factor<double> const t = capped_at_2(mismatched(e));
        REQUIRE(t.value == std::min(w, 2.0));
        REQUIRE(t.keep);
        REQUIRE(has(t.flags, capped) == (w > 2));
        factor<double> const m = band(mismatched(e));
        REQUIRE(m.keep == (w >= 0.5 && w <= 5));
        REQUIRE(m.value == w);
        REQUIRE(m.flags == 0);
    }
}

TEST_CASE("a weight that overflows is capped or rejected by its logarithm") {
    double const infinity = std::numeric_limits<double>::infinity();
    token<double> t = mismatched(1000);
    REQUIRE(t.mismatch == infinity);
    REQUIRE(tis{.cap = 2}.bind<double>()(t).value == 2);
    REQUIRE_FALSE(mis{}.bind<double>()(t).keep);
    REQUIRE(mis{.low = 0, .high = infinity}.bind<double>()(t).keep);
    REQUIRE_FALSE(mis{}.bind<double>()(mismatched(-1000)).keep);
    REQUIRE(mis{.low = 0}.bind<double>()(mismatched(-1000)).keep);
}
