// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/cases.hpp"

#include <cstdint>
#include <vector>

using namespace support;

namespace {

oracle::batch three_rows() {
    // 3 active of 5, none of 5, 5 of 5; by the mask [0.5, 2] on old / rollout two and then one are kept.
    auto const kept = token_of(-1, -1, -1, 1);
    auto const rejected = token_of(-3, -1, -1, 1);
    oracle::batch rows{{kept, garbage(), rejected, kept, garbage()},
                       oracle::row(5, garbage()),
                       {rejected, rejected, kept, rejected, rejected}};
    return rows;
}

oracle::method mask(oracle::reduction reduce, bool kept) {
    oracle::method m;
    m.correction = oracle::weight::masked;
    m.high = 2;
    m.reduce = reduce;
    m.over_kept = kept;
    return m;
}

}  // namespace

TEST_CASE("counts of tokens and sequences are those with a mask; kept ones those that no mask rejects") {
    for (way const& w : every_way()) {
        for (auto const reduce : {oracle::reduction::token_mean, oracle::reduction::sequence_mean_token_mean}) {
            INFO(w.name);
            laid_out const b(three_rows(), w.kinds, w.how);
            asyncrl::workspace scratch(b.batch);
            asyncrl::totals const sums = library::measure(mask(reduce, true), b.batch, scratch);
            REQUIRE(sums.counts.batches == 1);
            REQUIRE(sums.counts.tokens == 8);
            REQUIRE(sums.counts.sequences == 2);
            REQUIRE(sums.counts.kept_tokens == 3);
            REQUIRE(sums.counts.kept_sequences == 2);
        }
    }
}

TEST_CASE("a row of which every token is rejected is a sequence, but no kept one") {
    oracle::batch rows = three_rows();
    rows[2][2].active = false;
    for (way const& w : every_way()) {
        laid_out const b(rows, w.kinds, w.how);
        asyncrl::workspace scratch(b.batch);
        asyncrl::totals const sums = library::measure(mask(oracle::reduction::token_mean, true), b.batch, scratch);
        REQUIRE(sums.counts.tokens == 7);
        REQUIRE(sums.counts.sequences == 2);
        REQUIRE(sums.counts.kept_tokens == 2);
        REQUIRE(sums.counts.kept_sequences == 1);
    }
}

TEST_CASE("without a mask column every position is active") {
    oracle::batch const rows{oracle::row(5, token_of(-1, -1, -1, 1)), oracle::row(5, token_of(-1, -1, -1, 1))};
    for (way const& w : every_way()) {
        layout how = w.how;
        how.masked = false;
        laid_out const b(rows, w.kinds, how);
        asyncrl::workspace scratch(b.batch);
        asyncrl::totals const sums = library::measure(oracle::method{}, b.batch, scratch);
        REQUIRE(sums.counts.tokens == 10);
        REQUIRE(sums.counts.sequences == 2);
        REQUIRE(sums.counts.kept_tokens == 10);
        REQUIRE(sums.counts.kept_sequences == 2);
    }
}

TEST_CASE("any nonzero byte of the mask is active") {
    std::vector<std::uint8_t> const bytes{0, 1, 2, 127, 128, 255, 0, 64};
    std::vector<float> const zeros(bytes.size(), 0.0F);
    asyncrl::token_batch batch;
    batch.rows = 1;
    batch.tokens = static_cast<std::int64_t>(bytes.size());
    batch.log_prob = batch.old_log_prob = batch.advantage = asyncrl::per_token(zeros.data());
    batch.mask = asyncrl::per_token(bytes.data());
    asyncrl::workspace scratch(batch);
    REQUIRE(library::measure(oracle::method{}, batch, scratch).counts.tokens == 6);
    std::vector<float> gradient(bytes.size());
    asyncrl::totals const sums = library::measure(oracle::method{}, batch, scratch);
    REQUIRE(library::policy_loss(oracle::method{}, batch, sums, asyncrl::per_token(gradient.data()), scratch).counts.tokens ==
            6);
}

TEST_CASE("a bool array is a mask") {
    bool const mask[] = {true, false, true};
    float const zeros[] = {0, 0, 0};
    asyncrl::token_batch batch;
    batch.rows = 1;
    batch.tokens = 3;
    batch.log_prob = batch.old_log_prob = batch.advantage = asyncrl::per_token(zeros);
    batch.mask = asyncrl::per_token(mask);
    asyncrl::workspace scratch(batch);
    REQUIRE(library::measure(oracle::method{}, batch, scratch).counts.tokens == 2);
}

TEST_CASE("only a reduction over kept tokens asks the masks; otherwise nothing but the mask column is read") {
    // The log-probs would be NaN, and reading them would show: kept counts are those of the active tokens.
    oracle::batch rows = three_rows();
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            t.log_prob = t.old_log_prob = t.advantage = not_a_number;
        }
    }
    laid_out const b(rows);
    asyncrl::workspace scratch(b.batch);
    asyncrl::totals const sums = library::measure(mask(oracle::reduction::token_mean, false), b.batch, scratch);
    REQUIRE(sums.counts.tokens == 8);
    REQUIRE(sums.counts.kept_tokens == 8);
    asyncrl::totals const kept = library::measure(mask(oracle::reduction::token_mean, true), b.batch, scratch);
    REQUIRE(kept.counts.tokens == 8);
    REQUIRE(kept.counts.kept_tokens == 0);  // what is not finite is not kept by a mask
}

TEST_CASE("without a part that rejects, kept tokens are the active ones") {
    oracle::method m = mask(oracle::reduction::token_mean, true);
    m.correction = oracle::weight::truncated;
    laid_out const b(three_rows());
    asyncrl::workspace scratch(b.batch);
    asyncrl::totals const sums = library::measure(m, b.batch, scratch);
    REQUIRE(sums.counts.kept_tokens == 8);
    REQUIRE(sums.counts.kept_sequences == 2);
}

TEST_CASE("rows of any length are counted, across chunks and blocks of rows") {
    source random(61);
    for (bool const packed : {false, true}) {
        std::vector<std::int64_t> lengths = packed ? random_lengths(random, 20000) : std::vector<std::int64_t>(300, 37);
        if (packed) {
            lengths.insert(lengths.end(), 500, 3);
            lengths.push_back(0);
        }
        layout how;
        how.packed = packed;
        laid_out const b(random_batch(random, lengths), {}, how);
        oracle::method m = mask(oracle::reduction::sequence_mean_token_mean, true);
        oracle::counts const want = oracle::count(b.values, oracle::judge(m, b.values, true));
        asyncrl::workspace scratch(b.batch);
        asyncrl::totals const sums = library::measure(m, b.batch, scratch);
        REQUIRE(sums.counts.tokens == want.tokens);
        REQUIRE(sums.counts.sequences == want.sequences);
        REQUIRE(sums.counts.kept_tokens == want.kept_tokens);
        REQUIRE(sums.counts.kept_sequences == want.kept_sequences);
    }
}
