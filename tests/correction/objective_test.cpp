// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/cases.hpp"

#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/policy_loss.hpp>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

using namespace asyncrl;

namespace {

template <typename... Parts>
constexpr std::uint32_t needs = objective<Parts...>::needs;

// What is loaded and computed follows from the parts.
static_assert(needs<policy_gradient, token_mean> == scores);
static_assert(needs<ppo_clip, token_mean> == (uses_ratio | reads_old));
static_assert(needs<policy_gradient, tis, token_mean> ==
              (scores | uses_mismatch | weighs_mismatch | reads_old | reads_rollout | has_weights));
static_assert(needs<policy_gradient, importance_weight, token_mean> == needs<policy_gradient, tis, token_mean>);
static_assert(needs<policy_gradient, mis, token_mean> == (needs<policy_gradient, tis, token_mean> | may_reject));
static_assert(needs<ppo_clip, tis, token_mean> ==
              ((needs<ppo_clip, token_mean> | needs<policy_gradient, tis, token_mean>)&~scores));
static_assert(needs<ppo_clip, anchor_rollout, token_mean> == (uses_ratio | reads_rollout | anchors_rollout));
static_assert(needs<token_mean, mis, ppo_clip> == needs<ppo_clip, mis, token_mean>);

// Numbers are run-time values; the reduction is not part of what a loop is compiled for.
using bound = decltype(make_objective(ppo_clip{.low = 0.1}, tis{.cap = 3}, token_mean{}).bind<float>());
static_assert(std::is_same_v<bound, decltype(make_objective(ppo_clip{}, tis{}, sequence_mean_token_sum{}).bind<float>())>);
static_assert(std::is_trivially_copyable_v<bound>);
static_assert(std::is_same_v<decltype(make_objective(ppo_clip{.low = 0.1}, token_mean{})),
                             decltype(make_objective(ppo_clip{.high = 0.3}, token_mean{.over = counted::kept}))>);

/// The text with which constructing refuses.
template <typename... Parts>
std::string refusal(Parts... parts) {
    try {
        (void)make_objective(parts...);
    } catch (std::invalid_argument const& error) {
        return error.what();
    }
    return "";
}

bool names(std::string const& text, std::string const& field) {
    return text.rfind("asyncrl: " + field + " = ", 0) == 0;
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("a part's number that cannot be meant is refused by name at construction") {
    for (double const x : {-0.1, 1.0, 1.5, not_a_number, infinite, -infinite}) {
        INFO(x);
        REQUIRE(names(refusal(ppo_clip{.low = x}, token_mean{}), "ppo_clip.low"));
    }
    for (double const x : {-0.1, not_a_number, infinite, -infinite}) {
        INFO(x);
        REQUIRE(names(refusal(ppo_clip{.high = x}, token_mean{}), "ppo_clip.high"));
    }
    for (double const x : {0.0, -1.0, not_a_number, infinite}) {
        INFO(x);
        REQUIRE(names(refusal(policy_gradient{}, tis{.cap = x}, token_mean{}), "tis.cap"));
        REQUIRE(names(refusal(policy_gradient{}, token_sum{.divisor = x}), "token_sum.divisor"));
        REQUIRE(names(refusal(policy_gradient{}, sequence_mean_token_sum{.horizon = x}), "sequence_mean_token_sum.horizon"));
    }
    for (double const x : {-0.1, not_a_number, infinite}) {
        INFO(x);
        REQUIRE(names(refusal(policy_gradient{}, mis{.low = x, .high = infinite}, token_mean{}), "mis.low"));
    }
    for (double const x : {0.5, 0.4, -1.0, not_a_number}) {
        INFO(x);
        REQUIRE(names(refusal(policy_gradient{}, mis{.low = 0.5, .high = x}, token_mean{}), "mis.high"));
    }
}

TEST_CASE("numbers at the edge of what can be meant are accepted") {
    REQUIRE(refusal(ppo_clip{.low = 0, .high = 0}, token_mean{}) == "");
    REQUIRE(refusal(ppo_clip{.low = 0.999, .high = 1e9}, token_mean{}) == "");
    REQUIRE(refusal(policy_gradient{}, tis{.cap = 1e-9}, token_mean{}) == "");
    REQUIRE(refusal(policy_gradient{}, mis{.low = 0, .high = infinite}, token_mean{}) == "");
}

TEST_CASE("defaults are those of the papers") {
    REQUIRE(ppo_clip{}.low == 0.2);
    REQUIRE(ppo_clip{}.high == 0.2);
    REQUIRE(mis{}.low == 0.5);
    REQUIRE(mis{}.high == 5);
    REQUIRE(tis{}.cap == 2);
    REQUIRE(token_mean{}.over == counted::active);
    REQUIRE(sequence_mean_token_mean{}.over == counted::active);
    REQUIRE(token_sum{}.divisor == 1);
    REQUIRE(sequence_mean_token_sum{}.horizon == 1);
}

TEST_CASE("bounds are computed in double and rounded once") {
    token<float> t{};
    t.advantage = 1;
    t.ratio = 1.25F;
    auto const objective = make_objective(ppo_clip{.low = 0.2, .high = 0.28}, token_mean{}).bind<float>();
    auto const bound = static_cast<float>(std::log1p(0.28));
    t.log_ratio = bound;
    REQUIRE_FALSE(has(objective(t, detail::no_sequence<float>(), detail::host_math{}).flags, clipped_high));
    t.log_ratio = std::nextafter(bound, 1.0F);
    REQUIRE(has(objective(t, detail::no_sequence<float>(), detail::host_math{}).flags, clipped_high));
    REQUIRE(objective(t, detail::no_sequence<float>(), detail::host_math{}).value == -static_cast<float>(1 + 0.28));
}

TEST_CASE("anchored at the rollout policy, the ratio is new over rollout and the old column is not read") {
    using namespace support;
    auto const objective = make_objective(ppo_clip{.low = 0.2, .high = 0.28}, anchor_rollout{}, token_mean{});
    oracle::method plain;
    plain.clip_high = 0.28;
    source random(51);
    for (dtype const type : {dtype::f32, dtype::f64}) {
        oracle::batch rows = random_batch(random, {150, 150});
        laid_out const b(rows, types::all(type));
        outputs got(b);
        token_batch without_old = b.batch;
        without_old.old_log_prob = {};
        totals const sums = measure(objective, without_old, got.scratch);
        loss_report const report = policy_loss(objective, without_old, sums, got.to(), got.scratch);

        // The same by the oracle of another program: PPO whose old policy is the rollout policy, or the new one where there is
        // none.
        rows = b.values;
        std::int64_t unscored_tokens = 0;
        for (oracle::row& r : rows) {
            for (oracle::token& t : r) {
                t.old_log_prob = t.scored ? t.rollout_log_prob : t.log_prob;
                unscored_tokens += t.active && !t.scored ? 1 : 0;
            }
        }
        laid_out const swapped(rows, types::all(type));
        outputs want(swapped);
        loss_report const expected = run(plain, swapped, want);
        REQUIRE(unscored_tokens > 0);
        REQUIRE(report.counts.unscored == unscored_tokens);
        REQUIRE(report.counts.clipped_high == expected.counts.clipped_high);
        REQUIRE(report.sums.loss == expected.sums.loss);
        REQUIRE(report.sums.absolute_log_ratio == expected.sums.absolute_log_ratio);
        REQUIRE(report.sums.mismatch == 0);
        REQUIRE(got.gradient.bytes() == want.gradient.bytes());
        REQUIRE(got.loss.bytes() == want.loss.bytes());
    }
}

TEST_CASE("the order of the parts does not matter") {
    using namespace support;
    source random(52);
    laid_out const b(random_batch(random, {100, 100}));
    outputs first(b);
    outputs second(b);
    auto const one = make_objective(token_mean{.over = counted::kept}, mis{.high = 1.5}, ppo_clip{});
    totals const sums = measure(one, b.batch, first.scratch);
    (void)policy_loss(one, b.batch, sums, first.to(), first.scratch);
    oracle::method m;
    m.correction = oracle::weight::masked;
    m.high = 1.5;
    m.over_kept = true;
    (void)run(m, b, second);
    REQUIRE(first.same_bits(second));
}
