// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "counted_allocations.hpp"
#include "support/columns.hpp"

#include <asyncrl/correction/advantage.hpp>
#include <asyncrl/staleness/group_assembler.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace support;
using asyncrl::group_advantage;
using asyncrl::group_advantage_options;
using asyncrl::group_advantage_report;
using asyncrl::group_baseline;
using asyncrl::group_deviation;
using asyncrl::group_rewards;
using asyncrl::member_role;
using asyncrl::per_member;
using Catch::Matchers::WithinAbs;

namespace {

group_advantage_options const grpo{group_baseline::mean, group_deviation::population, 0};
group_advantage_options const unbiased_grpo{group_baseline::mean, group_deviation::unbiased, 0};
group_advantage_options const dr_grpo{group_baseline::mean, group_deviation::none, 0};
group_advantage_options const rloo{group_baseline::leave_one_out, group_deviation::none, 0};
group_advantage_options const all_options[] = {grpo, unbiased_grpo, dr_grpo, rloo};

struct outcome {
    std::vector<double> advantage;
    group_advantage_report report;
};

/// One group of doubles.
outcome of_group(std::vector<double> const& rewards, group_advantage_options const& options,
                 std::vector<member_role> const& roles = {}) {
    outcome out{std::vector<double>(rewards.size(), not_a_number), {}};
    group_rewards g;
    g.members = static_cast<std::int64_t>(rewards.size());
    g.group_size = g.members;
    g.reward = per_member(rewards.data());
    if (!roles.empty()) {
        g.role = per_member(roles.data());
    }
    out.report = group_advantage(g, per_member(out.advantage.data()), options);
    return out;
}

void require_close(std::vector<double> const& got, std::vector<double> const& want) {
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        REQUIRE_THAT(got[i], WithinAbs(want[i], 1e-12));
    }
}

void require_zero_bits(std::vector<double> const& got) {
    for (double const x : got) {
        REQUIRE(std::bit_cast<std::uint64_t>(x) == 0);
    }
}

constexpr member_role trained = member_role::trained;
constexpr member_role baseline_only = member_role::baseline_only;
constexpr member_role excluded = member_role::excluded;

/// The definitions once more: the baseline of the others as their mean, the variance by pairs.
double expected(std::vector<double> const& rewards, std::vector<member_role> const& roles, std::size_t i,
                group_advantage_options const& o) {
    auto const feeds = [&](std::size_t k) { return roles[k] != excluded && std::isfinite(rewards[k]); };
    if (roles[i] != trained || !feeds(i)) {
        return 0;
    }
    double sum = 0;
    double pairs = 0;
    double n = 0;
    for (std::size_t k = 0; k < rewards.size(); ++k) {
        if (feeds(k)) {
            ++n;
            sum += o.baseline == group_baseline::mean || k != i ? rewards[k] : 0;
            for (std::size_t l = 0; l < k; ++l) {
                pairs += feeds(l) ? (rewards[k] - rewards[l]) * (rewards[k] - rewards[l]) : 0;
            }
        }
    }
    if (pairs == 0) {
        return 0;
    }
    double const difference = rewards[i] - sum / (o.baseline == group_baseline::mean ? n : n - 1);
    switch (o.deviation) {
        case group_deviation::population:
            return difference / (std::sqrt(pairs / (n * n)) + o.epsilon);
        case group_deviation::unbiased:
            return difference / (std::sqrt(pairs / (n * (n - 1))) + o.epsilon);
        case group_deviation::none:
            break;
    }
    return difference;
}

}  // namespace

TEST_CASE("rewards 1, 2, 3 have these advantages", "[advantage]") {
    require_close(of_group({1, 2, 3}, grpo).advantage, {-std::sqrt(1.5), 0, std::sqrt(1.5)});
    require_close(of_group({1, 2, 3}, unbiased_grpo).advantage, {-1, 0, 1});
    require_close(of_group({1, 2, 3}, dr_grpo).advantage, {-1, 0, 1});
    require_close(of_group({1, 2, 3}, rloo).advantage, {-1.5, 0, 1.5});  // against (2 + 3) / 2, (1 + 3) / 2, (1 + 2) / 2
    require_close(of_group({1, 2, 3}, {group_baseline::leave_one_out, group_deviation::unbiased, 0.5}).advantage, {-1, 0, 1});
    require_close(of_group({1, 2, 3}, {.epsilon = 1}).advantage, {-0.5, 0, 0.5});  // the default deviation is unbiased: 1
}

TEST_CASE("binary rewards of one success in four have these advantages", "[advantage]") {
    require_close(of_group({0, 1, 0, 0}, grpo).advantage,
                  {-1 / std::sqrt(3), std::sqrt(3), -1 / std::sqrt(3), -1 / std::sqrt(3)});
    require_close(of_group({0, 1, 0, 0}, unbiased_grpo).advantage, {-0.5, 1.5, -0.5, -0.5});
    require_close(of_group({0, 1, 0, 0}, rloo).advantage, {-1.0 / 3, 1, -1.0 / 3, -1.0 / 3});
}

TEST_CASE("a group of equal rewards gives exact zeros, with any epsilon", "[advantage]") {
    for (group_advantage_options options : all_options) {
        options.epsilon = GENERATE(0.0, 1e-6);
        for (double const reward : {1.0, 0.1, -0.3, 1e-300, 1e300}) {
            outcome const out = of_group(std::vector<double>(7, reward), options);  // seven times 0.1 is not 0.7
            require_zero_bits(out.advantage);
            REQUIRE(out.report.degenerate == 1);
            REQUIRE(out.report.trained == 7);
        }
        require_zero_bits(of_group({0.0, -0.0}, options).advantage);
    }
}

TEST_CASE("a group of one gives exact zero, whatever is left out of it", "[advantage]") {
    for (group_advantage_options const& options : all_options) {
        outcome const one = of_group({3}, options);
        require_zero_bits(one.advantage);
        REQUIRE(one.report.degenerate == 1);
        outcome const rest = of_group({3, 5, not_a_number}, options, {trained, excluded, trained});
        require_zero_bits(rest.advantage);
        REQUIRE(rest.report.degenerate == 1);
    }
}

TEST_CASE("a member whose reward is not finite is left out and counted", "[advantage]") {
    double const bad = GENERATE(values<double>({not_a_number, infinity, -infinity}));
    outcome const out = of_group({bad, 1, 3}, grpo);
    require_close(out.advantage, {0, -1, 1});
    REQUIRE(std::bit_cast<std::uint64_t>(out.advantage[0]) == 0);
    REQUIRE(out.report.nonfinite == 1);
    REQUIRE(out.report.trained == 2);
    REQUIRE(out.report.degenerate == 0);
    outcome const fed = of_group({bad, 1, 3}, grpo, {baseline_only, trained, trained});
    require_close(fed.advantage, {0, -1, 1});
    REQUIRE(fed.report.nonfinite == 1);
    REQUIRE(fed.report.baseline_only == 0);
    outcome const named = of_group({bad, 1, 3}, grpo, {excluded, trained, trained});
    REQUIRE(named.report.nonfinite == 0);
    REQUIRE(named.report.excluded == 1);
}

TEST_CASE("an excluded member's reward changes no bit of its siblings", "[advantage]") {
    for (group_advantage_options const& options : all_options) {
        std::vector<member_role> const roles{excluded, trained, trained, trained};
        outcome const a = of_group({100, 1, 2, 4}, options, roles);
        for (double const other : {-7.0, not_a_number, infinity}) {
            outcome const b = of_group({other, 1, 2, 4}, options, roles);
            for (std::size_t i = 0; i < 4; ++i) {
                REQUIRE(std::bit_cast<std::uint64_t>(a.advantage[i]) == std::bit_cast<std::uint64_t>(b.advantage[i]));
            }
        }
        require_close(a.advantage, {0, of_group({1, 2, 4}, options).advantage[0], of_group({1, 2, 4}, options).advantage[1],
                                    of_group({1, 2, 4}, options).advantage[2]});
    }
    require_zero_bits(of_group({100, 1}, dr_grpo, {excluded, trained}).advantage);  // and not -49.5
}

TEST_CASE("a baseline-only member feeds mean and deviation and gets zero", "[advantage]") {
    for (group_advantage_options const& options : all_options) {
        outcome const whole = of_group({1, 2, 6, 3}, options);
        outcome const out = of_group({1, 2, 6, 3}, options, {trained, trained, baseline_only, trained});
        REQUIRE(out.advantage[0] == whole.advantage[0]);
        REQUIRE(out.advantage[1] == whole.advantage[1]);
        REQUIRE(std::bit_cast<std::uint64_t>(out.advantage[2]) == 0);
        REQUIRE(out.advantage[3] == whole.advantage[3]);
        REQUIRE(out.report.baseline_only == 1);
        REQUIRE(out.report.trained == 3);
        outcome const lone = of_group({1, 2}, options, {trained, baseline_only});
        REQUIRE(lone.advantage[0] < 0);
        REQUIRE(lone.report.degenerate == 0);
    }
}

TEST_CASE("a group without a trained member is zero and counted apart", "[advantage]") {
    for (group_advantage_options const& options : all_options) {
        outcome const out = of_group({1, 2, 3}, options, {baseline_only, excluded, baseline_only});
        require_zero_bits(out.advantage);
        REQUIRE(out.report.untrained == 1);
        REQUIRE(out.report.degenerate == 0);
        outcome const lost = of_group({not_a_number, infinity}, options);
        require_zero_bits(lost.advantage);
        REQUIRE(lost.report.untrained == 1);
        REQUIRE(lost.report.nonfinite == 2);
    }
}

TEST_CASE("tiny and huge spreads neither vanish nor overflow", "[advantage]") {
    double const size = GENERATE(1e-300, 1e-200, 1.0, 1e200, 1e300);
    require_close(of_group({-size, size}, grpo).advantage, {-1, 1});
    require_close(of_group({0, size, 0, 0}, unbiased_grpo).advantage, {-0.5, 1.5, -0.5, -0.5});
    double const next = std::nextafter(1.0, 2.0);
    outcome const nearest = of_group({1, next}, grpo);  // the mean is one of the two
    REQUIRE(std::isfinite(nearest.advantage[0]));
    REQUIRE(nearest.advantage[0] < nearest.advantage[1]);
}

TEST_CASE("random groups agree with the definitions written out", "[advantage]") {
    std::mt19937_64 random(static_cast<std::mt19937_64::result_type>(GENERATE(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)));
    std::normal_distribution<double> bell;
    bool const by_size = random() % 2 == 0;
    dtype const types[] = {dtype::f64, dtype::f32, dtype::f16, dtype::bf16};
    dtype const stored = types[random() % 4];
    dtype const written = types[random() % 4];
    std::int64_t const size = 1 + static_cast<std::int64_t>(random() % 9);
    std::vector<std::int64_t> offsets{0};
    for (int k = 0; k < 30; ++k) {
        offsets.push_back(offsets.back() + (by_size ? size : static_cast<std::int64_t>(random() % 9)));
    }
    std::vector<std::int32_t> const narrow(offsets.begin(), offsets.end());
    auto const members = static_cast<std::size_t>(offsets.back());

    grid const where{false, std::vector<std::int64_t>(members, 1)};
    memory reward(stored, {static_cast<std::int64_t>(1 + random() % 3), 0}, where);
    memory advantage(written, {random() % 2 == 0 ? 2 : -1, 0}, where);
    memory role(dtype::u8, {2, 0}, where);
    std::vector<double> rewards(members);
    std::vector<member_role> roles(members);
    for (std::size_t i = 0; i < members; ++i) {
        double const kinds[] = {0, 1, bell(random), random() % 4 == 0 ? not_a_number : 0.5};
        rewards[i] = as_stored(stored, kinds[random() % 4]);
        roles[i] = static_cast<member_role>(random() % 3 == 0 ? random() % 3 : 0);
        reward.put(i, 0, rewards[i]);
        role.put(i, 0, static_cast<double>(roles[i]));
    }

    group_rewards g;
    g.members = offsets.back();
    if (by_size) {
        g.group_size = size;
    } else {
        g.groups = 30;
        g.offsets = random() % 2 == 0 ? asyncrl::row_offsets(offsets.data()) : asyncrl::row_offsets(narrow.data());
    }
    g.reward = reward.in();
    g.role = role.in();
    for (group_advantage_options options : all_options) {
        options.epsilon = random() % 2 == 0 ? 1e-6 : 0;
        group_advantage_report const report = group_advantage(g, advantage.out(), options);
        group_advantage_report want;
        for (std::size_t k = 0; k < 30; ++k) {
            auto const begin = offsets[k];
            auto const end = offsets[k + 1];
            std::vector<double> const r(rewards.begin() + begin, rewards.begin() + end);
            std::vector<member_role> const what(roles.begin() + begin, roles.begin() + end);
            std::int64_t trains = 0;
            bool signal = false;
            for (std::size_t i = 0; i < r.size(); ++i) {
                double const a = expected(r, what, i, options);
                double const got = advantage.get(static_cast<std::size_t>(begin) + i, 0);
                double const tolerance = written == dtype::f64   ? 1e-12
                                         : written == dtype::f32 ? 4e-6
                                         : written == dtype::f16 ? 0x1p-10
                                                                 : 0x1p-8;
                CAPTURE(k, i);
                REQUIRE_THAT(got, WithinAbs(a, tolerance * (1e-1 + std::abs(a))));
                bool const finite = std::isfinite(r[i]);
                trains += what[i] == trained && finite ? 1 : 0;
                want.baseline_only += what[i] == baseline_only && finite ? 1 : 0;
                want.excluded += what[i] == excluded ? 1 : 0;
                want.nonfinite += what[i] != excluded && !finite ? 1 : 0;
                for (std::size_t l = 0; l < i; ++l) {
                    signal = signal || (what[i] != excluded && what[l] != excluded && std::abs(r[i] - r[l]) > 0 && finite &&
                                        std::isfinite(r[l]));
                }
            }
            ++want.groups;
            want.trained += trains;
            want.untrained += trains == 0 ? 1 : 0;
            want.degenerate += trains > 0 && !signal ? 1 : 0;
        }
        REQUIRE(report.groups == want.groups);
        REQUIRE(report.trained == want.trained);
        REQUIRE(report.baseline_only == want.baseline_only);
        REQUIRE(report.excluded == want.excluded);
        REQUIRE(report.nonfinite == want.nonfinite);
        REQUIRE(report.untrained == want.untrained);
        REQUIRE(report.degenerate == want.degenerate);
        REQUIRE(advantage.guards_hold());
    }
}

TEST_CASE("a size and offsets that say the same give the same bits", "[advantage]") {
    std::vector<float> const rewards{1, 0, 0, 1, 0.5F, 0.25F};
    std::int32_t const offsets[] = {0, 3, 6};
    std::vector<float> by_size(6);
    std::vector<float> by_offsets(6);
    group_rewards g;
    g.members = 6;
    g.reward = per_member(rewards.data());
    g.group_size = 3;
    group_advantage(g, per_member(by_size.data()));
    g.group_size = 0;
    g.groups = 2;
    g.offsets = offsets;
    group_advantage(g, per_member(by_offsets.data()));
    REQUIRE(by_size == by_offsets);
}

TEST_CASE("no members and empty groups are an answer", "[advantage]") {
    group_rewards g;
    g.group_size = 4;
    REQUIRE(group_advantage(g, {}).groups == 0);
    std::int64_t const offsets[] = {0, 0, 0};
    g = {};
    g.groups = 2;
    g.offsets = offsets;
    group_advantage_report const report = group_advantage(g, {});
    REQUIRE(report.groups == 2);
    REQUIRE(report.untrained == 2);
}

TEST_CASE("no call allocates", "[advantage]") {
    float const reward[] = {1, 0, 0, 1, 0.5F, 0.25F};
    std::uint8_t const role[] = {0, 1, 2, 0, 0, 0};
    std::int64_t const offsets[] = {0, 3, 6};
    float advantage[6];
    float target[6];
    group_rewards g;
    g.members = 6;
    g.groups = 2;
    g.offsets = offsets;
    g.reward = per_member(reward);
    g.role = per_member(role);
    asyncrl::token_batch batch;
    batch.rows = 2;
    batch.tokens = 3;
    batch.old_log_prob = asyncrl::per_token(reward, 3);
    batch.rollout_log_prob = asyncrl::per_token(reward, 3);
    batch.mask = asyncrl::per_token(role, 3);
    asyncrl::value_columns values;
    values.reward = asyncrl::per_token(reward, 3);
    values.value = values.reward;
    values.action_value = values.reward;
    asyncrl::advantage_outputs const to{asyncrl::per_token(advantage, 3), asyncrl::per_token(target, 3)};

    std::int64_t const before = allocations;
    std::int64_t const trained_members = group_advantage(g, per_member(advantage)).trained;
    std::int64_t tokens = asyncrl::gae(batch, values, to).tokens;
    tokens += asyncrl::vtrace(batch, values, to).tokens;
    tokens += asyncrl::retrace(batch, values, to).tokens;
    std::int64_t const after = allocations;
    REQUIRE(after == before);
    REQUIRE(trained_members == 4);
    REQUIRE(tokens == 6);
}

TEST_CASE("reports of micro-batches add up", "[advantage]") {
    group_advantage_report sum = of_group({1, 2, not_a_number}, grpo, {trained, baseline_only, trained}).report;
    sum += of_group({1, 1, 3}, grpo, {trained, trained, excluded}).report;
    sum += of_group({1}, grpo, {excluded}).report;
    REQUIRE(sum.groups == 3);
    REQUIRE(sum.degenerate == 1);
    REQUIRE(sum.untrained == 1);
    REQUIRE(sum.trained == 3);
    REQUIRE(sum.baseline_only == 1);
    REQUIRE(sum.excluded == 2);
    REQUIRE(sum.nonfinite == 1);
}

namespace {

template <typename Change>
void refuses(std::string const& words, Change change) {
    std::vector<float> const rewards{1, 2, 3, 4, 5, 6};
    std::vector<std::uint8_t> const roles{0, 1, 2, 0, 1, 2};
    std::vector<float> advantage(6, 7);
    group_rewards g;
    g.members = 6;
    g.group_size = 3;
    g.reward = per_member(rewards.data());
    g.role = per_member(roles.data());
    asyncrl::output_column to = per_member(advantage.data());
    group_advantage_options options;
    change(g, to, options);
    std::string sentence = "nothing was thrown";
    try {
        group_advantage(g, to, options);
    } catch (std::invalid_argument const& error) {
        sentence = error.what();
    }
    CAPTURE(sentence, words);
    REQUIRE(sentence.find("asyncrl: " + words) == 0);
    REQUIRE(advantage == std::vector<float>(6, 7));
}

}  // namespace

TEST_CASE("groups that cannot be meant are refused by name and value", "[advantage]") {
    using out = asyncrl::output_column;
    using options = group_advantage_options;
    refuses("group_rewards.members = -6", [](group_rewards& g, out&, options&) { g.members = -6; });
    refuses("group_rewards.group_size = 4, must be a divisor of group_rewards.members = 6",
            [](group_rewards& g, out&, options&) { g.group_size = 4; });
    refuses("group_rewards.group_size = 0", [](group_rewards& g, out&, options&) { g.group_size = 0; });
    refuses("group_rewards.groups = 2, must be 0", [](group_rewards& g, out&, options&) { g.groups = 2; });
    std::int64_t const offsets[] = {0, 4, 3, 6};
    refuses("group_rewards.group_size = 3, must be 0", [&](group_rewards& g, out&, options&) { g.offsets = offsets; });
    auto const by_offsets = [&](group_rewards& g, std::int64_t const* from, std::int64_t groups) {
        g.group_size = 0;
        g.groups = groups;
        g.offsets = from;
    };
    refuses("group_rewards.groups = -1", [&](group_rewards& g, out&, options&) { by_offsets(g, offsets, -1); });
    refuses("group_rewards.offsets[2] = 3", [&](group_rewards& g, out&, options&) { by_offsets(g, offsets, 3); });
    refuses("group_rewards.offsets[groups] = 4", [&](group_rewards& g, out&, options&) { by_offsets(g, offsets, 1); });
    refuses("group_rewards.offsets[0] = 4", [&](group_rewards& g, out&, options&) { by_offsets(g, offsets + 1, 1); });
    refuses("group_rewards.reward is absent", [](group_rewards& g, out&, options&) { g.reward = {}; });
    refuses("group_rewards.reward has dtype u8", [](group_rewards& g, out&, options&) { g.reward.type = dtype::u8; });
    refuses("group_rewards.role has dtype f32", [](group_rewards& g, out&, options&) { g.role.type = dtype::f32; });
    refuses("advantage is absent", [](group_rewards&, out& to, options&) { to = {}; });
    refuses("advantage has dtype u8", [](group_rewards&, out& to, options&) { to.type = dtype::u8; });
    refuses("advantage has a row stride of 0", [](group_rewards&, out& to, options&) { to.row_stride = 0; });
    std::uint8_t const unknown[] = {0, 0, 0, 0, 3, 0};
    refuses("group_rewards.role[4] = 3", [&](group_rewards& g, out&, options&) { g.role = per_member(unknown); });
    refuses("group_advantage_options.epsilon = -1", [](group_rewards&, out&, options& o) { o.epsilon = -1; });
    refuses("group_advantage_options.epsilon = nan", [](group_rewards&, out&, options& o) { o.epsilon = not_a_number; });
    refuses("group_advantage_options.epsilon = inf", [](group_rewards&, out&, options& o) { o.epsilon = infinity; });
}
