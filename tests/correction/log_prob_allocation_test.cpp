// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "counted_allocations.hpp"

#include <asyncrl/correction/log_prob.hpp>
#include <asyncrl/correction/routing_replay.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

TEST_CASE("no call on logits allocates") {
    constexpr std::int64_t vocabulary = 5000;
    std::vector<float> logits(2 * vocabulary, 0.5F);
    std::vector<float> gradient(2 * vocabulary);
    std::int32_t const targets[] = {7, 4999};
    std::int64_t const offsets[] = {0, 0, 2};
    std::int32_t const ids[] = {3, 9};
    std::uint8_t const mask[] = {1, 1};
    float log_prob[2];
    double log_sum_exp[2];
    double entropy[2];
    float const slope[] = {1, 2};
    asyncrl::log_prob_outputs const outputs{asyncrl::per_token(log_prob), asyncrl::per_token(log_sum_exp),
                                            asyncrl::per_token(entropy)};
    asyncrl::log_prob_options options;
    options.mask = asyncrl::per_token(mask);
    options.support = {offsets, ids};
    asyncrl::matrix const in = asyncrl::row_major(logits.data(), 2, vocabulary);

    std::int32_t const experts[] = {1, 2, -1, -1};
    float gates[4];
    std::int32_t used[4];
    asyncrl::matrix const router = asyncrl::row_major(logits.data(), 2, 8);

    std::int64_t const before = allocations;
    std::int64_t rows = asyncrl::log_prob(in, targets, outputs, options).rows;
    rows += asyncrl::log_prob_gradient(in, targets, outputs, {asyncrl::per_token(slope), asyncrl::per_token(slope)},
                                       asyncrl::row_major(gradient.data(), 2, vocabulary), options)
                .rows;
    rows += asyncrl::routing_replay(router, {experts, 2, 2, 2}, asyncrl::gate_rule::sigmoid,
                                    {asyncrl::row_major(gates, 2, 2), used, 2})
                .replayed;
    rows += asyncrl::routing_replay_gradient(router, {used, 2, 2, 2}, asyncrl::gate_rule::sigmoid,
                                             asyncrl::row_major(gates, 2, 2), asyncrl::row_major(gradient.data(), 2, 8))
                .replayed;
    std::int64_t const after = allocations;
    REQUIRE(after == before);
    REQUIRE(rows == 2 + 2 + 1 + 2);
}
