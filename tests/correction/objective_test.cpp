// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/cases.hpp"

#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/policy_loss.hpp>
#include <asyncrl/correction/presets.hpp>

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

TEST_CASE("so is every number of the other parts") {
    auto const with = [](auto part) { return refusal(ppo_clip{}, part, token_mean{}); };
    auto const alone = [](auto part) { return refusal(part, token_mean{}); };
    for (double const x : {-0.1, not_a_number}) {
        INFO(x);
        REQUIRE(names(alone(dual_clip{.low = x}), "dual_clip.low"));
        REQUIRE(names(alone(dual_clip{.high = x}), "dual_clip.high"));
        REQUIRE(names(alone(delta_clip{.low = x}), "delta_clip.low"));
        REQUIRE(names(alone(delta_clip{.high = x}), "delta_clip.high"));
        REQUIRE(names(alone(sat_clip{.low = x}), "sat_clip.low"));
        REQUIRE(names(alone(sat_clip{.hill = x}), "sat_clip.hill"));
        REQUIRE(names(alone(cispo{.low = x}), "cispo.low"));
        REQUIRE(names(alone(cispo{.high = x}), "cispo.high"));
        REQUIRE(names(alone(topr{.cap = x}), "topr.cap"));
        REQUIRE(names(alone(topr_by_score{.cap = x}), "topr_by_score.cap"));
        REQUIRE(names(alone(aspo{.low = x}), "aspo.low"));
        REQUIRE(names(alone(aspo{.high = x}), "aspo.high"));
        REQUIRE(names(alone(aspo{.cap_positive = x}), "aspo.cap_positive"));
        REQUIRE(names(alone(aspo{.cap_negative = x}), "aspo.cap_negative"));
        REQUIRE(names(alone(vespo{.power_positive = x}), "vespo.power_positive"));
        REQUIRE(names(alone(vespo{.rate_positive = x}), "vespo.rate_positive"));
        REQUIRE(names(alone(vespo{.power_negative = x}), "vespo.power_negative"));
        REQUIRE(names(alone(vespo{.rate_negative = x}), "vespo.rate_negative"));
        REQUIRE(names(alone(spo{.epsilon = x}), "spo.epsilon"));
        REQUIRE(names(alone(drpo{.delta = x}), "drpo.delta"));
        REQUIRE(names(alone(sapo{.tau_positive = x}), "sapo.tau_positive"));
        REQUIRE(names(alone(sapo{.tau_negative = x}), "sapo.tau_negative"));
        REQUIRE(names(with(two_sided_tis{.low = x}), "two_sided_tis.low"));
        REQUIRE(names(with(staleness_power{.exponent = x}), "staleness_power.exponent"));
        REQUIRE(names(with(staleness_exponential{.rate = x}), "staleness_exponential.rate"));
        REQUIRE(names(with(staleness_hinge{.slope = x}), "staleness_hinge.slope"));
        REQUIRE(names(with(staleness_hinge{.flat = x}), "staleness_hinge.flat"));
        REQUIRE(names(with(mismatch_gate{.low = x}), "mismatch_gate.low"));
        REQUIRE(names(with(lag_gate{.low = x}), "lag_gate.low"));
        REQUIRE(names(with(engine_gate{.low = x}), "engine_gate.low"));
        REQUIRE(names(with(kpop_gate{.limit = x}), "kpop_gate.limit"));
        REQUIRE(names(with(tv_gate{.low = x}), "tv_gate.low"));
        REQUIRE(names(with(tv_gate{.high = x}), "tv_gate.high"));
        REQUIRE(names(with(kl_gate{.limit = x}), "kl_gate.limit"));
        REQUIRE(names(with(divergence_gate{.limit = x}), "divergence_gate.limit"));
        REQUIRE(names(with(ipo_gate{.limit = x}), "ipo_gate.limit"));
        REQUIRE(names(with(staleness_gate{.limit = x}), "staleness_gate.limit"));
        REQUIRE(names(with(k1_penalty{.coefficient = x}), "k1_penalty.coefficient"));
        REQUIRE(names(with(k3_penalty{.coefficient = 1, .clamp = x}), "k3_penalty.clamp"));
        REQUIRE(names(with(squared_log_ratio_penalty{.coefficient = x}), "squared_log_ratio_penalty.coefficient"));
        REQUIRE(names(with(sequence_tis{.cap = x}), "sequence_tis.cap"));
        REQUIRE(names(with(sequence_gate{.low = x, .high = 2}), "sequence_gate.low"));
        REQUIRE(names(with(band_veto{.low = x}), "band_veto.low"));
        REQUIRE(names(with(band_veto{.most_tokens = x}), "band_veto.most_tokens"));
        REQUIRE(names(with(band_veto{.most_share = x}), "band_veto.most_share"));
        REQUIRE(names(with(opsm{.delta = x}), "opsm.delta"));
        REQUIRE(names(with(log_ratio_clamp{.limit = x}), "log_ratio_clamp.limit"));
        REQUIRE(names(with(clipped_geometric_ratio{.limit = x}), "clipped_geometric_ratio.limit"));
    }
    for (double const x : {0.4, 0.5, not_a_number}) {
        INFO(x);
        REQUIRE(names(with(mismatch_gate{.low = 0.5, .high = x}), "mismatch_gate.high"));
        REQUIRE(names(with(lag_gate{.low = 0.5, .high = x}), "lag_gate.high"));
        REQUIRE(names(with(engine_gate{.low = 0.5, .high = x}), "engine_gate.high"));
        REQUIRE(names(with(sequence_gate{.low = 0.5, .high = x}), "sequence_gate.high"));
        REQUIRE(names(with(band_veto{.low = 0.5, .high = x}), "band_veto.high"));
    }
    REQUIRE(names(with(two_sided_tis{.low = 0.5, .high = 0.4}), "two_sided_tis.high"));
    REQUIRE(names(alone(dual_clip{.cap = 1}), "dual_clip.cap"));
    REQUIRE(names(alone(dual_clip{.cap = infinite}), "dual_clip.cap"));
    REQUIRE(names(alone(delta_clip{.high = 0.28, .delta = 1.2}), "delta_clip.delta"));
    REQUIRE(names(alone(cispo{.low = 1.1}), "cispo.low"));
    REQUIRE(names(alone(aspo{.cap_positive = 0.9}), "aspo.cap_positive"));
    REQUIRE(names(with(log_ratio_clamp{.limit = 81}), "log_ratio_clamp.limit"));
    REQUIRE(names(with(band_veto{.most_share = 1.1}), "band_veto.most_share"));
    REQUIRE(names(with(mean_divergence_gate{.limit = not_a_number}), "mean_divergence_gate.limit"));
    REQUIRE(names(with(largest_divergence_gate{.limit = not_a_number}), "largest_divergence_gate.limit"));
    for (fraction const x : {fraction{0, 10}, fraction{11, 10}, fraction{-1, 10}}) {
        REQUIRE(names(alone(sat_clip{.quantile = x}), "sat_clip.quantile.numerator"));
    }
    REQUIRE(names(alone(sat_clip{.quantile = {1, 0}}), "sat_clip.quantile.denominator"));
    REQUIRE(names(alone(sat_clip{.cap = 1}), "sat_clip.cap"));
}

TEST_CASE("numbers at the edge of what can be meant are accepted") {
    REQUIRE(refusal(ppo_clip{}, kpop_gate{.limit = infinite}, token_mean{}) == "");
    REQUIRE(refusal(cispo{.low = 1, .high = 0}, token_mean{}) == "");
    REQUIRE(refusal(ppo_clip{}, k3_penalty{.coefficient = 0, .clamp = infinite}, token_mean{}) == "");
    REQUIRE(refusal(ppo_clip{}, opsm{.delta = 0}, token_mean{}) == "");
    REQUIRE(refusal(delta_clip{.high = 0.28, .delta = 1 + 0.28}, token_mean{}) == "");
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

TEST_CASE("presets are what their methods are made of") {
    STATIC_REQUIRE(std::is_same_v<decltype(presets::dapo()), objective<ppo_clip, token_mean>>);
    STATIC_REQUIRE(std::is_same_v<decltype(presets::verl_tis()), objective<dual_clip, tis, token_mean>>);
    STATIC_REQUIRE(std::is_same_v<decltype(presets::prime_rl()), decltype(presets::dppo_tv())>);
    STATIC_REQUIRE((decltype(presets::gspo())::needs & has_coupling) != 0);
    STATIC_REQUIRE((decltype(presets::sat_grpo())::needs & (anchors_rollout | batch_quantile | reads_reference)) ==
                   (anchors_rollout | batch_quantile | reads_reference));
    STATIC_REQUIRE((decltype(presets::a3po())::needs & reads_old) == 0);
    STATIC_REQUIRE((decltype(presets::kimi_k15())::needs & scores) != 0);
    REQUIRE(presets::sat_gspo().quantile().numerator == 9);
    REQUIRE(presets::sat_gspo().quantile().denominator == 10);
    REQUIRE_FALSE(presets::sat_gspo().interpolates_quantile());
    REQUIRE_THROWS_AS(presets::dr_grpo(0), std::invalid_argument);
    REQUIRE_THROWS_AS(presets::grpo(-1), std::invalid_argument);
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
