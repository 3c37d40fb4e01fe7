// SPDX-License-Identifier: Apache-2.0
// The gradient is the derivative of the reported loss with respect to the new log-prob, weights held fixed.
#include "catch.hpp"
#include "support/batches.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

using namespace support;

namespace {

/// Rows in which no token is so near a kink of PPO's clip that a finite difference would straddle it.
oracle::batch smooth_rows(source& random, std::vector<std::int64_t> const& lengths, oracle::method const& m) {
    oracle::batch rows = random_batch(random, lengths);
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            double const d = t.log_prob - t.old_log_prob;
            if (std::min(std::abs(d - std::log1p(m.clip_high)), std::abs(d - std::log1p(-m.clip_low))) < 1e-3) {
                t.log_prob += 3e-3;
            }
        }
    }
    return rows;
}

}  // namespace

TEST_CASE("central differences in double agree with the gradient, for every surrogate, weight, reduction and layout") {
    constexpr double step = 1e-5;
    source random(31);
    int checked = 0;
    for (int loss = 0; loss < 2; ++loss) {
        for (int weight = 0; weight < 4; ++weight) {
            for (int reduce = 0; reduce < 4; ++reduce) {
                for (bool const packed : {false, true}) {
                    oracle::method m;
                    m.loss = static_cast<oracle::surrogate>(loss);
                    m.correction = static_cast<oracle::weight>(weight);
                    m.reduce = static_cast<oracle::reduction>(reduce);
                    m.over_kept = random.chance(0.5);
                    m.clip_high = 0.28;
                    m.constant = 3;
                    m.high = 1.5;
                    layout how;
                    how.packed = packed;
                    how.unscored = -9999;
                    std::vector<std::int64_t> const lengths =
                        packed ? std::vector<std::int64_t>{9, 0, 4, 14} : std::vector<std::int64_t>{9, 9, 9};
                    laid_out b(smooth_rows(random, lengths, m), types::all(dtype::f64), how);
                    outputs out(b);
                    outputs scratch(b);
                    asyncrl::totals const sums = library::measure(m, b.batch, out.scratch);
                    (void)library::policy_loss(m, b.batch, sums, out.to(), out.scratch);
                    auto const loss_at = [&](std::size_t r, std::size_t t, double x) {
                        double const before = b.values[r][t].log_prob;
                        b.log_prob.put(r, t, x);
                        double const value = library::policy_loss(m, b.batch, sums, scratch.to(), scratch.scratch).sums.loss;
                        b.log_prob.put(r, t, before);
                        return value;
                    };
                    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
                        if (!b.values[r][t].active) {
                            return;
                        }
                        double const x = b.values[r][t].log_prob;
                        double const slope = (loss_at(r, t, x + step) - loss_at(r, t, x - step)) / (2 * step);
                        double const got = out.gradient.get(r, t);
                        INFO("loss " << loss << ", weight " << weight << ", reduction " << reduce << ", row " << r
                                     << ", position " << t << ": gradient " << got << ", difference " << slope);
                        REQUIRE(std::abs(got - slope) <= 1e-8 + 1e-8 * std::abs(slope));
                        checked += std::abs(got) > 1e-3 ? 1 : 0;
                    });
                }
            }
        }
    }
    REQUIRE(checked > 500);  // most gradients are not 0
}
