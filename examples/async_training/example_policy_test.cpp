// SPDX-License-Identifier: Apache-2.0
/// @file The parts below the loop: gradient, decoding, rounding, task.
#include "catch.hpp"
#include "policy.hpp"
#include "precision.hpp"
#include "random.hpp"
#include "rollout.hpp"
#include "task.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

/// Contexts in all stages of an answer.
std::vector<task::context> some_contexts(int count) {
    random_stream random(7, stream::prompt);
    std::vector<task::context> contexts;
    for (int i = 0; i < count; ++i) {
        task::problem const problem = task::draw(random, false);
        task::answer const answer = task::solution(problem);
        contexts.push_back(task::prompt(problem));
        for (int position = 0; position < i % task::max_tokens && position + 1 < task::max_tokens; ++position) {
            task::append(contexts.back(), position, answer[static_cast<std::size_t>(position)]);
        }
    }
    return contexts;
}

}  // namespace

TEST_CASE("the backward pass agrees with finite differences") {
    auto const contexts = some_contexts(11);
    policy<double> p(3);
    policy<double>::activations a;
    // Loss: a weighted sum of the log-probs of some tokens, so that its derivative by the logits is known in closed form.
    auto const token = [](Eigen::Index column) { return column % policy<double>::outputs; };
    auto const weight = [](Eigen::Index column) { return std::sin(1.0 + static_cast<double>(column)); };
    auto const loss = [&] {
        p.forward(contexts, a);
        double sum = 0;
        for (Eigen::Index column = 0; column < 11; ++column) {
            sum += weight(column) * a.log_probs(token(column), column);
        }
        return sum;
    };
    loss();
    policy<double>::matrix by_logit = policy<double>::matrix::Zero(a.log_probs.rows(), a.log_probs.cols());
    for (Eigen::Index column = 0; column < 11; ++column) {
        by_logit.col(column) = -weight(column) * a.log_probs.col(column).array().exp();
        by_logit(token(column), column) += weight(column);
    }
    policy<double>::vector gradient = policy<double>::vector::Zero(p.parameters.size());
    p.backward(contexts, a, by_logit, gradient);

    // Every kind of parameter is hit: all biases and the head, and every 97th of the rest.
    constexpr Eigen::Index hidden = policy<double>::width * policy<double>::inputs;
    int nonzero = 0;
    for (Eigen::Index i = 0; i < p.parameters.size(); i += i >= hidden && i < hidden + policy<double>::width ? 1 : 97) {
        double const h = 1e-6;
        double const kept = p.parameters[i];
        p.parameters[i] = kept + h;
        double const above = loss();
        p.parameters[i] = kept - h;
        double const below = loss();
        p.parameters[i] = kept;
        REQUIRE_THAT(gradient[i], Catch::Matchers::WithinAbs((above - below) / (2 * h), 1e-7));
        nonzero += gradient[i] != 0 ? 1 : 0;
    }
    REQUIRE(nonzero > 400);
}

TEST_CASE("a context has the same bits alone, in a group and in a batch") {
    auto const contexts = some_contexts(77);
    policy<float> const p(5);
    policy<float>::activations whole;
    policy<float>::activations part;
    p.forward(contexts, whole);
    for (std::size_t size : {1U, 2U, 3U, 5U, 8U, 13U}) {
        for (std::size_t begin = 0; begin + size <= contexts.size(); begin += size) {
            p.forward({contexts.data() + begin, size}, part);
            auto const columns = static_cast<Eigen::Index>(size);
            REQUIRE(part.log_probs.leftCols(columns) == whole.log_probs.middleCols(static_cast<Eigen::Index>(begin), columns));
        }
    }
}

TEST_CASE("next-token probabilities add up to one") {
    auto const contexts = some_contexts(9);
    policy<float>::activations a;
    policy<float>(5).forward(contexts, a);
    for (Eigen::Index column = 0; column < 9; ++column) {
        REQUIRE_THAT(static_cast<double>(a.log_probs.col(column).array().exp().sum()), Catch::Matchers::WithinAbs(1, 1e-6));
    }
}

TEST_CASE("an answer goes on under the weights fetched at a token boundary") {
    policy<float> const first(1);
    policy<float> const second(2);
    weight_board board(precision::fp32);
    board.post(first, {4});
    auto const answers = make_group(1, 0, 6);
    int pass = 0;
    rollout_engine engine;
    bool const is_whole = engine.sample(*answers, [&](rollout_engine& now) {
        if (pass++ == 2) {
            board.post(second, {5});
        }
        now.fetch(board);
        return true;
    });
    REQUIRE(is_whole);
    bool has_switched = false;
    for (trajectory const& answer : *answers) {
        REQUIRE(answer.versions.tokens() == answer.length);
        REQUIRE(answer.versions.oldest() == asyncrl::policy_version{4});
        REQUIRE(answer.versions.last() == asyncrl::policy_version{answer.length > 2 ? 5 : 4});
        has_switched = has_switched || answer.length > 2;
        task::context context = task::prompt(answer.problem);
        policy<float>::activations a;
        for (int position = 0; position < answer.length; ++position) {
            auto const at = static_cast<std::size_t>(position);
            (position < 2 ? first : second).forward({&context, 1}, a);
            REQUIRE(answer.log_probs[at] == a.log_probs(answer.tokens[at], 0));
            if (position + 1 < answer.length) {
                task::append(context, position, answer.tokens[at]);
            }
        }
    }
    REQUIRE(has_switched);
}

TEST_CASE("rounding finds the nearest number of the format") {
    // All finite numbers of e4m3, from its definition.
    std::vector<float> all;
    for (int code = 0; code < 127; ++code) {
        int const exponent = code / 8;
        float const fraction = static_cast<float>(code % 8) / 8;
        float const value = exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
        all.push_back(value);
        all.push_back(-value);
    }
    REQUIRE(*std::max_element(all.begin(), all.end()) == 448);
    random_stream random(1, stream::prompt);
    Eigen::VectorXf x(4000);
    for (float& value : x) {
        value = std::ldexp(2 * random.uniform() - 1, random.below(22) - 12);
    }
    x[0] = 1e9F;
    Eigen::VectorXf rounded = x;
    round_weights(rounded, precision::fp8);
    for (Eigen::Index i = 0; i < x.size(); ++i) {
        REQUIRE(std::find(all.begin(), all.end(), rounded[i]) != all.end());
        auto const nearer = [&](float a, float b) { return std::abs(a - x[i]) < std::abs(b - x[i]); };
        float const nearest = *std::min_element(all.begin(), all.end(), nearer);
        REQUIRE(std::abs(rounded[i] - x[i]) == std::abs(nearest - x[i]));
    }
    Eigen::VectorXf ties(4);
    ties << 1.0625F, 1.1875F, 1 + 0x1p-8F, 1 + 0x3p-8F;  // halfway: to the even neighbour
    Eigen::VectorXf brain = ties;
    round_weights(ties, precision::fp8);
    REQUIRE(ties[0] == 1.0F);
    REQUIRE(ties[1] == 1.25F);
    round_weights(brain, precision::bf16);
    REQUIRE(brain[2] == 1.0F);
    REQUIRE(brain[3] == 1 + 0x1p-6F);
}

TEST_CASE("only the exact answer is rewarded") {
    task::problem const problem{47, 85};
    task::answer answer{2, 3, 1, task::end_token};
    REQUIRE(task::solution(problem) == answer);
    REQUIRE(task::reward(problem, answer) == 1);
    answer[1] = 4;
    REQUIRE(task::reward(problem, answer) == 0);
    REQUIRE(task::reward(problem, {2, 3, 1, 0}) == 0);                                   // goes on where it should end
    REQUIRE(task::reward({4, 3}, {7, task::end_token, task::blank, task::blank}) == 1);  // fewer digits
    REQUIRE(task::reward({4, 3}, {7, 0, task::end_token, task::blank}) == 0);            // leading zero
    REQUIRE(task::solution({0, 0}) == task::answer{0, task::end_token, task::blank, task::blank});
}

TEST_CASE("training and held-out problems are disjoint, and streams do not depend on each other") {
    random_stream random(9, stream::prompt);
    int held_out = 0;
    for (int i = 0; i < 2000; ++i) {
        REQUIRE_FALSE(task::is_held_out(task::draw(random, false)));
        REQUIRE(task::is_held_out(task::draw(random, true)));
    }
    for (int left = 0; left < 100; ++left) {
        for (int right = 0; right < 100; ++right) {
            held_out += task::is_held_out({left, right}) ? 1 : 0;
        }
    }
    REQUIRE(held_out > 1000);
    REQUIRE(held_out < 1500);
    REQUIRE(random_stream(1, stream::sampling, 2, 3).bits() == random_stream(1, stream::sampling, 2, 3).bits());
    REQUIRE(random_stream(1, stream::sampling, 2, 3).bits() != random_stream(1, stream::sampling, 3, 2).bits());
    REQUIRE(random_stream(1, stream::sampling, 2, 3).bits() != random_stream(2, stream::sampling, 2, 3).bits());
}
