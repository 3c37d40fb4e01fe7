// SPDX-License-Identifier: Apache-2.0
/// The gradient of every surrogate under every coupling and reduction is a derivative of the reported loss.
#include "catch.hpp"
#include "support/slopes.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

using namespace arrays;

namespace {

/// The weight of a token of this row by the reduction's definition.
[[nodiscard]] double share_of(slope_case const& c, batch const& b, int row) {
    std::vector<int> in_row(static_cast<std::size_t>(b.rows), 0);
    int tokens = 0;
    int sequences = 0;
    for (Eigen::Index i = 0; i < b.active.size(); ++i) {
        bool const counts = b.active(i) && (!c.over_kept || b.keep(i));
        in_row[static_cast<std::size_t>(b.row(i))] += counts ? 1 : 0;
        tokens += counts ? 1 : 0;
    }
    for (int const count : in_row) {
        sequences += count > 0 ? 1 : 0;
    }
    switch (c.reduce) {
        case reduction::token_mean:
            return 1.0 / tokens;
        case reduction::token_sum:
            return 1 / slope_constant;
        case reduction::sequence_mean_token_mean:
            return 1.0 / sequences / in_row[static_cast<std::size_t>(row)];
        case reduction::sequence_mean_token_sum:
            break;
    }
    return 1 / (sequences * slope_constant);
}

/// SAT's narrowed bounds move with the log-ratios, but carry no gradient: the loss at one counts as a constant.
[[nodiscard]] bool bound_is_detached(unsigned flags) {
    return (flags & asyncrl::tail) != 0 && (flags & (asyncrl::clipped_high | asyncrl::clipped_low)) != 0;
}

struct counts {
    int checked = 0;
    int at_kinks = 0;
    int flat = 0;
};

struct point {
    double whole;
    double own;
    std::vector<std::uint16_t> flags;
};

void check_slopes(slope_case const& c, memory& at, counts& seen) {
    constexpr double step = 1e-5;
    batch& b = at.source.values;
    asyncrl::workspace scratch(at.batch);
    asyncrl::totals sums = c.objective.measure(at.batch, scratch);
    sums.quantile *= 1.001;  // the order statistic is the log-ratio of some token, which would stand at a kink
    auto const evaluate_at = [&](Eigen::Index i) {
        at.write();
        double whole = c.objective.loss(at.batch, sums, at.to(), scratch).sums.loss;
        for (Eigen::Index j = 0; j < at.size(); ++j) {
            whole -= bound_is_detached(at.flags[static_cast<std::size_t>(j)]) ? at.loss(j) * share_of(c, b, b.row(j)) : 0;
        }
        return point{whole, bound_is_detached(at.flags[static_cast<std::size_t>(i)]) ? 0 : at.loss(i), at.flags};
    };
    for (Eigen::Index i = 0; i < at.size(); ++i) {
        if (!b.active(i)) {
            continue;
        }
        double const x = b.log_prob(i);
        double const anchor = b.anchor(i);
        point const here = evaluate_at(i);
        double const got = at.gradient(i);
        auto const moved = [&](double by) {
            b.log_prob(i) = x + by;
            b.anchor(i) = anchor + (c.what == derivative_of::the_score ? by : 0);
            point const there = evaluate_at(i);
            b.log_prob(i) = x;
            b.anchor(i) = anchor;
            return there;
        };
        point const up = moved(step);
        point const down = moved(-step);
        if (up.flags != here.flags || down.flags != here.flags) {
            ++seen.at_kinks;
            continue;
        }
        double want = (up.whole - down.whole) / (2 * step);
        if (c.what == derivative_of::its_own_term) {
            int tokens = 0;
            for (Eigen::Index j = 0; j < at.size(); ++j) {
                tokens += b.active(j) && b.sequence(j) == b.sequence(i) ? 1 : 0;
            }
            want = (up.own - down.own) / (2 * step) * tokens * share_of(c, b, b.row(i));
        } else if (c.what == derivative_of::the_turned && b.advantage(i) > 0) {
            want = -want;
        }
        INFO(c.name << ", position " << i << ": gradient " << got << ", difference " << want);
        CHECK(std::abs(got - want) <= 2e-9 + 1e-7 * std::abs(want));
        ++seen.checked;
        seen.flat += std::abs(got) < 1e-4 ? 1 : 0;
    }
    at.write();
}

void check_all(std::vector<slope_case> const& cases) {
    CHECK(!cases.empty());
    counts seen;
    for (slope_case const& c : cases) {
        counts of_case;
        for (bool const packed : {true, false}) {
            stream random(packed ? 5 : 6);
            shape how;
            how.packed = packed;
            how.segments = packed;
            how.lengths = {6, 1, 9, 3};
            how.unscored = 0;
            how.masked_rows = false;
            how.certain_tokens = false;
            memory at(random_positions(random, how), how);
            check_slopes(c, at, of_case);
        }
        INFO(c.name << ": " << of_case.flat << " flat, " << of_case.at_kinks << " at kinks of " << of_case.checked);
        CHECK(of_case.flat < of_case.checked * 9 / 10);
        seen.checked += of_case.checked;
        seen.at_kinks += of_case.at_kinks;
    }
    INFO(seen.at_kinks << " of " << seen.checked << " at kinks");
    CHECK(seen.at_kinks < seen.checked / 50);
}

}  // namespace

TEST_CASE("clips have the slope of the loss under every coupling and reduction") {
    check_all(narrow_clip_slopes());
    check_all(wide_clip_slopes());
}

TEST_CASE("tapers have the slope of the loss under every coupling and reduction") {
    check_all(taper_slopes());
}

TEST_CASE("scores have the slope of the loss with the ratio held fixed") {
    check_all(score_slopes());
}

TEST_CASE("weights, masks and penalties leave the slope that of the loss") {
    check_all(weighted_slopes());
}
