// SPDX-License-Identifier: Apache-2.0
/// @file A part that the library does not have, written as CONTRIBUTING.md shows, and used in an objective.
#include <asyncrl/correction.hpp>

#include <array>
#include <cmath>

// [snippet: part]
namespace mine {

using asyncrl::mark, asyncrl::select;  // by name for float and double; a SIMD register's are found by its type

template <typename Number>
struct clamped_weight_op {
    Number log_low, log_high, low, high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE asyncrl::factor<Real> operator()(asyncrl::token<Real> const& t) const {
        auto const over = t.log_mismatch > Real(log_high);
        auto const under = t.log_mismatch < Real(log_low);
        return {select(over, Real(high), select(under, Real(low), t.mismatch)), asyncrl::always<Real>(),
                mark(over | under, asyncrl::capped)};
    }
};

/// old / rollout held inside the closed interval [low, high]. Bounded both ways, so that no token is forgotten.
struct clamped_weight {
    double low = 0.5;  ///< > 0
    double high = 2;   ///< finite, >= low

    static constexpr asyncrl::role kind = asyncrl::role::weight;
    static constexpr std::uint32_t needs = asyncrl::uses_mismatch | asyncrl::weighs_mismatch;

    template <typename Number>
    [[nodiscard]] clamped_weight_op<Number> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high)), static_cast<Number>(low),
                static_cast<Number>(high)};
    }
};

}  // namespace mine
// [snippet: end]

int main() {
    std::array<double, 3> const log_prob{-1, -2, -3};
    std::array<double, 3> const rollout_log_prob{-1.5, -5, -1};  // weights exp(0.5), exp(3) and exp(-2)
    std::array<double, 3> const advantage{1, 1, 1};
    std::array<double, 3> gradient{};
    asyncrl::token_batch batch{.rows = 1, .tokens = 3};
    batch.log_prob = batch.old_log_prob = asyncrl::per_token(log_prob.data(), 3);
    batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data(), 3);
    batch.advantage = asyncrl::per_token(advantage.data(), 3);

    asyncrl::workspace workspace(batch);
    auto const objective =
        asyncrl::make_objective(asyncrl::ppo_clip{}, mine::clamped_weight{.low = 0.5, .high = 2}, asyncrl::token_sum{});
    auto const totals = asyncrl::measure(objective, batch, workspace);
    auto const report = asyncrl::policy_loss(objective, batch, totals, asyncrl::per_token(gradient.data(), 3), workspace);
    auto const is = [](double value, double expected) { return std::abs(value - expected) < 1e-12; };
    return is(gradient[0], -std::exp(0.5)) && is(gradient[1], -2) && is(gradient[2], -0.5) && report.counts.capped == 2 ? 0 : 1;
}
