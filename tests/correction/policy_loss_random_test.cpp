// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/compare.hpp"

#include <cstdint>
#include <vector>

using namespace support;

namespace {

oracle::method random_method(source& random) {
    oracle::method m;
    m.loss = random.chance(0.3) ? oracle::surrogate::policy_gradient : oracle::surrogate::ppo_clip;
    m.clip_low = random.pick({0, 0.1, 0.2, 0.9});
    m.clip_high = random.pick({0, 0.1, 0.28, 2});
    m.correction = static_cast<oracle::weight>(random.below(4));
    m.cap = random.pick({0.5, 1, 2, 1e6});
    m.low = random.pick({0, 0.5, 0.9});
    m.high = random.pick({1.2, 5, infinity});
    m.reduce = static_cast<oracle::reduction>(random.below(4));
    m.over_kept = random.chance(0.5) &&
                  (m.reduce == oracle::reduction::token_mean || m.reduce == oracle::reduction::sequence_mean_token_mean);
    m.constant = random.pick({1, 8, 300.5});
    return m;
}

types random_types(source& random) {
    if (random.chance(0.35)) {
        return types::all(dtype::f64);
    }
    if (random.chance(0.5)) {
        return {};
    }
    std::vector<dtype> const narrow{dtype::f32, dtype::bf16, dtype::f16};
    return {random.pick(narrow), random.pick(narrow), random.pick(narrow), random.pick(narrow), random.pick(narrow)};
}

/// One random batch of about `size` tokens in a random layout under a random method.
std::string one(source& random, std::int64_t size, bool plain = false) {
    oracle::method const m = random_method(random);
    types const kinds = random_types(random);
    layout how;
    how.packed = random.chance(0.5);
    how.wide_offsets = random.chance(0.5);
    how.masked = random.chance(0.8);
    how.row_advantage = random.chance(0.3);
    if (!plain) {
        how.token_stride = random.pick({1, 1, 1, 2, -1, -3});
        how.row_gap = random.pick({0, 0, 5});
        how.shift = random.below(4);
        how.unscored = random.pick({not_a_number, -9999, 1});
    }
    std::vector<std::int64_t> lengths;
    if (how.packed) {
        lengths = random_lengths(random, size);
    } else {
        std::int64_t const rows = 1 + random.below(size < 100 ? 4 : 9);
        lengths.assign(static_cast<std::size_t>(rows), (size + rows - 1) / rows);
    }
    recipe shares;
    shares.row_advantage = how.row_advantage;
    if (!how.masked) {
        shares.active = 1;
        shares.dead_rows = 0;
    }
    laid_out const b(random_batch(random, lengths, shares), kinds, how);
    outputs out(b);
    asyncrl::loss_options const options{.scale = random.chance(0.5) ? 1.0 : 4.0, .on_nonfinite = asyncrl::nonfinite::drop};
    std::string const text = difference_from_oracle(m, b, out, options);
    return text.empty() ? text
                        : text + " (loss " + std::to_string(static_cast<int>(m.loss)) + ", weight " +
                              std::to_string(static_cast<int>(m.correction)) + ", reduction " +
                              std::to_string(static_cast<int>(m.reduce)) + ", packed " + std::to_string(how.packed) + ")";
}

}  // namespace

TEST_CASE("a call on any small batch agrees with the oracle in every output and report field") {
    source random(1);
    for (std::int64_t const size : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 100}) {
        for (int repeat = 0; repeat < 60; ++repeat) {
            INFO("size " << size << ", repeat " << repeat);
            REQUIRE(one(random, size) == "");
        }
    }
}

TEST_CASE("a call on any batch of several chunks agrees with the oracle") {
    source random(2);
    for (std::int64_t const size : {2047, 2048, 2049, 4095, 4096, 4097, 10000}) {
        for (int repeat = 0; repeat < 12; ++repeat) {
            INFO("size " << size << ", repeat " << repeat);
            REQUIRE(one(random, size, repeat % 2 == 0) == "");
        }
    }
}

TEST_CASE("float decisions are those of rounded differences against rounded bounds") {
    // Log-ratios on and around both bounds, in steps of one unit in the last place of the difference.
    source random(3);
    oracle::method m;
    m.correction = oracle::weight::masked;
    m.clip_high = 0.28;
    oracle::row tokens;
    for (double const bound : {std::log1p(0.28), std::log1p(-0.2), std::log(0.5), std::log(5.0)}) {
        auto x = static_cast<float>(bound);
        for (int step = 0; step < 8; ++step) {
            x = std::nextafter(x, -10.0F);
        }
        for (int step = 0; step < 16; ++step, x = std::nextafter(x, 10.0F)) {
            for (double const advantage : {1.0, -1.0}) {
                oracle::token t;
                t.log_prob = static_cast<double>(x);  // old = 0: the difference is exact
                t.rollout_log_prob = -static_cast<double>(x);
                t.advantage = advantage;
                tokens.push_back(t);
            }
        }
    }
    for (int i = 0; i < 4000; ++i) {  // and differences that round
        oracle::token t = random_token(random);
        t.log_prob = t.old_log_prob + random.pick({std::log1p(0.28), std::log1p(-0.2)});
        t.rollout_log_prob = t.old_log_prob - random.pick({std::log(0.5), std::log(5.0)});
        tokens.push_back(t);
    }
    laid_out const b({tokens});
    outputs out(b);
    REQUIRE(difference_from_oracle(m, b, out) == "");
}
