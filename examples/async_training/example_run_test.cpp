// SPDX-License-Identifier: Apache-2.0
/// @file The loop: what a run promises about bits, versions and units.
#include "adam.hpp"
#include "catch.hpp"
#include "options.hpp"
#include "policy.hpp"
#include "run.hpp"
#include "task.hpp"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

/// Few batches of few groups after a shorter warm start: enough for rewards of both kinds.
options small_run() {
    options o;
    o.steps = 8;
    o.groups = 10;
    o.members = 6;
    o.token_time = 0;
    o.weight = correction::none;
    return o;
}

policy<float> const& start() {
    static policy<float> const taught = warm_start(1, 45);
    return taught;
}

struct outcome {
    run_result result;
    Eigen::VectorXf parameters;
    std::vector<double> rewards;
};

outcome run(options const& o) {
    trained_policy made = run_training(o, start(), [](step_report const&) {});
    outcome out{std::move(made.result), std::move(made.weights.parameters), {}};
    for (step_report const& step : out.result.steps) {
        out.rewards.push_back(step.reward);
    }
    return out;
}

struct drawn_token {
    task::context context;
    int token;
    float advantage;
    float old_log_prob;
};

/// On-policy GRPO as one would write it by hand: no threads, no controller, no loss function.
std::vector<double> plain_loop(options const& o, policy<float>& p) {
    adam optimizer(policy<float>::parameter_count);
    policy<float>::activations a;
    std::vector<double> rewards;
    for (int step = 0; step < o.steps; ++step) {
        double total = 0;
        std::vector<std::vector<drawn_token>> parts(static_cast<std::size_t>(o.minibatches));
        for (int g = 0; g < o.groups; ++g) {
            auto const id = static_cast<std::uint64_t>(step * o.groups + g);
            random_stream prompts(o.seed, stream::prompt, id);
            task::problem const problem = task::draw(prompts, false);
            std::vector<std::vector<drawn_token>> answers;
            std::vector<float> reward;
            for (int member = 0; member < o.members; ++member) {
                random_stream random(o.seed, stream::sampling, id, static_cast<std::uint64_t>(member));
                task::context context = task::prompt(problem);
                task::answer written;
                written.fill(task::blank);
                answers.emplace_back();
                for (int position = 0; position < task::max_tokens; ++position) {
                    p.forward({&context, 1}, a);
                    float left = random.uniform();
                    int token = -1;
                    do {
                        ++token;
                        left -= std::exp(a.log_probs(token, 0));
                    } while (left >= 0 && token + 1 < task::vocabulary);
                    answers.back().push_back({context, token, 0, a.log_probs(token, 0)});
                    written[static_cast<std::size_t>(position)] = static_cast<std::uint8_t>(token);
                    if (token == task::end_token || position + 1 == task::max_tokens) {
                        break;
                    }
                    task::append(context, position, token);
                }
                reward.push_back(task::reward(problem, written));
            }
            float const count = static_cast<float>(o.members);
            float mean = 0;
            float variance = 0;
            for (float const r : reward) {
                mean += r / count;
                total += static_cast<double>(r);
            }
            for (float const r : reward) {
                variance += (r - mean) * (r - mean) / count;
            }
            auto& part = parts[static_cast<std::size_t>(g * o.minibatches / o.groups)];
            for (std::size_t member = 0; member < answers.size(); ++member) {
                for (drawn_token token : answers[member]) {
                    token.advantage = variance > 0 ? (reward[member] - mean) / std::sqrt(variance) : 0;
                    part.push_back(token);
                }
            }
        }
        rewards.push_back(total / (o.groups * o.members));
        for (auto const& part : parts) {
            std::vector<task::context> contexts;
            for (drawn_token const& token : part) {
                contexts.push_back(token.context);
            }
            p.forward(contexts, a);
            policy<float>::matrix by_logit = policy<float>::matrix::Zero(a.log_probs.rows(), a.log_probs.cols());
            // Whole packets, so that every exponential is Eigen's vectorised one.
            Eigen::ArrayXf log_ratio = Eigen::ArrayXf::Zero(a.log_probs.cols());
            for (std::size_t i = 0; i < part.size(); ++i) {
                auto const column = static_cast<Eigen::Index>(i);
                log_ratio[column] = a.log_probs(part[i].token, column) - part[i].old_log_prob;
            }
            Eigen::ArrayXf const ratio = log_ratio.exp();
            auto const scale = static_cast<float>(1 / static_cast<double>(part.size()));
            for (std::size_t i = 0; i < part.size(); ++i) {
                auto const column = static_cast<Eigen::Index>(i);
                float const advantage = part[i].advantage;
                bool const is_clipped = (advantage > 0 && log_ratio[column] > std::log1p(static_cast<float>(o.clip_high))) ||
                                        (advantage < 0 && log_ratio[column] < std::log1p(-static_cast<float>(o.clip_low)));
                float const slope = is_clipped ? 0 : -advantage * ratio[column] * scale;
                by_logit.col(column) = -slope * a.log_probs.col(column).array().exp();
                by_logit(part[i].token, column) += slope;
            }
            Eigen::VectorXf gradient = Eigen::VectorXf::Zero(p.parameters.size());
            p.backward(contexts, a, by_logit, gradient);
            optimizer.step(p.parameters, gradient, static_cast<float>(o.learning_rate));
        }
    }
    return rewards;
}

}  // namespace

TEST_CASE("lag 0 without correction has the bits of a plain synchronous loop, and so has a bound of 0") {
    options o = small_run();
    policy<float> by_hand = start();
    std::vector<double> const expected = plain_loop(o, by_hand);
    REQUIRE(std::accumulate(expected.begin(), expected.end(), 0.0) > 0.1);

    SECTION("lag 0") {
        o.lag = 0;
    }
    SECTION("bound 0, one thread") {
        o.staleness = 0;
        o.threads = 1;
    }
    SECTION("bound 0, four threads, which finish in another order than they start") {
        o.staleness = 0;
        o.threads = 4;
        o.token_time = 100;
    }
    outcome const got = run(o);
    REQUIRE(got.rewards == expected);
    REQUIRE(got.parameters == by_hand.parameters);
    // The engines' log-probs and the trainer's recomputed ones come from other batch shapes; in fp32 nothing else differs.
    for (step_report const& step : got.result.steps) {
        REQUIRE(step.mismatch.largest_absolute_log_ratio() <= 2e-6);
    }
}

TEST_CASE("with a lag every batch is exactly that old, and the number of threads changes no bit") {
    options o = small_run();
    o.lag = GENERATE(1, 3);
    o.weight = *o.lag == 1 ? correction::tis : correction::mis;
    o.threads = 1;
    outcome const one = run(o);
    for (std::size_t batch = 0; batch < one.result.steps.size(); ++batch) {
        auto const lag = std::min<std::int64_t>(static_cast<std::int64_t>(batch), *o.lag);
        REQUIRE(one.result.steps[batch].largest_staleness == lag);
        REQUIRE(one.result.steps[batch].staleness == static_cast<double>(lag));
    }
    o.threads = 3;
    outcome const three = run(o);
    REQUIRE(one.rewards == three.rewards);
    REQUIRE(one.parameters == three.parameters);
}

TEST_CASE("in lockstep the deadline ledger trains the bits of the slot buffer") {
    options o = small_run();
    o.lag = 2;
    outcome const slots = run(o);
    o.admission = control::ledger;
    outcome const ledger = run(o);
    REQUIRE(ledger.rewards == slots.rewards);
    REQUIRE(ledger.parameters == slots.parameters);
}

TEST_CASE("a window of one version and no switch: what is trained obeys both, what is dropped is counted") {
    options o = small_run();
    o.staleness = 4;
    o.keep_versions = 1;
    o.max_switches = 0;
    o.threads = 3;
    o.token_time = 200;
    o.steps = 20;
    o.admission = GENERATE(control::slots, control::ledger);
    run_result const result = run(o).result;
    for (step_report const& step : result.steps) {
        REQUIRE(step.switched == 0);
    }
    asyncrl::unit_counters const& units = result.units;
    REQUIRE(units.dropped_total() ==
            units.dropped_for(asyncrl::drop_reason::stale) + units.dropped_for(asyncrl::drop_reason::rejected));
    REQUIRE(units.admitted == units.in_flight + units.completed + units.taken + units.dropped_total());
}

TEST_CASE("free threads keep the bound, and every admitted unit is accounted for") {
    options o = small_run();
    o.staleness = GENERATE(1, 2, 4);
    o.threads = 3;
    o.token_time = 50;
    o.steps = 20;
    run_result const result = run(o).result;
    REQUIRE(result.staleness_histogram.size() == static_cast<std::size_t>(o.staleness) + 1);
    REQUIRE(std::accumulate(result.staleness_histogram.begin(), result.staleness_histogram.end(), std::int64_t{0}) ==
            o.steps * o.groups);
    for (step_report const& step : result.steps) {
        REQUIRE(step.largest_staleness <= o.staleness);
    }
    REQUIRE(result.units.taken == o.steps * o.groups);
    REQUIRE(result.units.in_flight <= o.threads);
    REQUIRE(result.units.dropped_total() == 0);
    REQUIRE(result.units.admitted == result.units.taken + result.units.completed + result.units.in_flight);
}

TEST_CASE("a coarser rollout copy is further from the trainer") {
    options o = small_run();
    o.lag = 0;
    o.steps = 1;
    auto const mismatch = [&o](precision engines) {
        o.engines = engines;
        return run(o).result.steps.front().mismatch.mean(&asyncrl::mismatch_report::sum_range::absolute_log_ratio);
    };
    double const bf16 = mismatch(precision::bf16);
    double const fp8 = mismatch(precision::fp8);
    REQUIRE(mismatch(precision::fp32) <= 2e-6);
    REQUIRE(bf16 > 1e-4);
    REQUIRE(fp8 > 4 * bf16);
}
