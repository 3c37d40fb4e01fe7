// SPDX-License-Identifier: Apache-2.0
// What cannot be meant is refused by name, before a single byte of an output is written.
#include "catch.hpp"
#include "support/cases.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace support;

namespace {

constexpr auto largest = std::numeric_limits<std::int64_t>::max();

/// A batch and outputs that are in order, for a test to spoil.
struct set_up {
    explicit set_up(bool packed = false, bool wide = false, types kinds = {})
        : b({oracle::row(4, token_of(-1, -1, -1, 1)), oracle::row(4, token_of(-1, -1, -1, 1))}, kinds,
            {.packed = packed, .wide_offsets = wide}),
          out(b),
          batch(b.batch),
          to(out.to()) {
        method.correction = oracle::weight::truncated;
        sums.counts.batches = 1;
        sums.counts.tokens = 8;
        sums.counts.sequences = 2;
    }

    /// policy_loss refuses, naming all of `words`; nothing is written.
    void refused(std::vector<std::string> const& words) {
        std::string text;
        try {
            (void)library::policy_loss(method, batch, sums, to, out.scratch, options);
        } catch (std::invalid_argument const& error) {
            text = error.what();
        }
        INFO("text: " << text);
        REQUIRE(text.rfind("asyncrl: ", 0) == 0);
        for (std::string const& word : words) {
            INFO("expected: " << word);
            REQUIRE(text.find(word) != std::string::npos);
        }
        REQUIRE(out.untouched());
    }
    /// So does measure, where the batch itself is wrong.
    void refused_by_both(std::vector<std::string> const& words) {
        refused(words);
        REQUIRE_THROWS_AS(library::measure(method, batch, out.scratch), std::invalid_argument);
    }
    void accepted() {
        REQUIRE_NOTHROW(library::policy_loss(method, batch, sums, to, out.scratch, options));
        REQUIRE_FALSE(out.untouched());
    }

    laid_out b;
    outputs out;
    asyncrl::token_batch batch;
    asyncrl::loss_outputs to;
    oracle::method method;
    asyncrl::totals sums;
    asyncrl::loss_options options;
};

}  // namespace

TEST_CASE("the batch that the other tests spoil is in order") {
    for (bool const packed : {false, true}) {
        set_up(packed).accepted();
        set_up(packed, true).accepted();
        set_up(packed, true, types::all(dtype::f64)).accepted();
    }
}

TEST_CASE("sizes are not negative, and their product fits") {
    set_up s;
    s.batch.rows = -1;
    s.refused_by_both({"token_batch.rows = -1"});
    s.batch.rows = 2;
    s.batch.tokens = -3;
    s.refused_by_both({"token_batch.tokens = -3"});
    s.batch.rows = largest / 2;
    s.batch.tokens = 3;
    s.refused_by_both({"token_batch.rows = " + std::to_string(largest / 2), "64 bits"});
}

TEST_CASE("offsets begin with 0, ascend, and end with the count of tokens, in either width") {
    auto const refused_offsets = [](std::vector<std::int64_t> const& wide, std::vector<std::string> const& words) {
        std::vector<std::int32_t> narrow;
        for (std::int64_t const x : wide) {
            narrow.push_back(static_cast<std::int32_t>(x));
        }
        set_up s(true);
        s.batch.offsets = wide.data();
        s.refused_by_both(words);
        s.batch.offsets = narrow.data();
        s.refused_by_both(words);
    };
    refused_offsets({1, 4, 8}, {"token_batch.offsets[0] = 1", "must be 0"});
    refused_offsets({0, 5, 4}, {"token_batch.offsets[2] = 4", "at least the offset before it, 5"});
    refused_offsets({0, -1, 8}, {"token_batch.offsets[1] = -1"});
    refused_offsets({0, 4, 7}, {"token_batch.offsets[rows] = 7", "token_batch.tokens = 8"});
    refused_offsets({0, 4, 9}, {"token_batch.offsets[rows] = 9"});
}

TEST_CASE("an absent column is refused by name if the objective needs it, and is nobody's business otherwise") {
    for (bool const packed : {false, true}) {
        {
            set_up s(packed);
            s.batch.log_prob = {};
            s.refused_by_both({"token_batch.log_prob is absent"});
        }
        {
            set_up s(packed);
            s.batch.advantage = {};
            s.refused_by_both({"token_batch.advantage is absent"});
        }
        {
            set_up s(packed);
            s.batch.old_log_prob = {};
            s.refused_by_both({"token_batch.old_log_prob is absent"});
            s.method.correction = oracle::weight::none;
            s.refused_by_both({"token_batch.old_log_prob is absent"});
            s.method.loss = oracle::surrogate::policy_gradient;
            s.accepted();
        }
        {
            set_up s(packed);
            s.batch.rollout_log_prob = {};
            s.refused_by_both({"token_batch.rollout_log_prob is absent"});
            s.method.correction = oracle::weight::none;
            s.accepted();
        }
        {
            set_up s(packed);
            s.batch.mask = {};
            s.accepted();
        }
    }
}

TEST_CASE("columns are all double, or none is; the mask is bytes") {
    set_up s;
    s.batch.advantage.type = dtype::f64;
    s.refused_by_both({"token_batch.advantage has dtype f64", "token_batch.log_prob has f32"});
    s.batch.advantage.type = dtype::u8;
    s.refused_by_both({"token_batch.advantage has dtype u8"});
    s.batch.advantage.type = dtype::f32;
    s.batch.old_log_prob.type = dtype::f64;
    s.refused_by_both({"token_batch.old_log_prob has dtype f64"});
    s.batch.old_log_prob.type = dtype::f32;
    s.batch.rollout_log_prob.type = dtype::u8;
    s.refused_by_both({"token_batch.rollout_log_prob has dtype u8"});
    s.batch.rollout_log_prob.type = dtype::f32;
    s.batch.log_prob.type = dtype::u8;
    s.refused_by_both({"token_batch.log_prob has dtype u8"});
    s.batch.log_prob.type = dtype::f32;
    s.batch.mask.type = dtype::f32;
    s.refused_by_both({"token_batch.mask has dtype f32", "must be u8"});

    set_up d(false, false, types::all(dtype::f64));
    d.batch.old_log_prob.type = dtype::bf16;
    d.refused_by_both({"token_batch.old_log_prob has dtype bf16", "token_batch.log_prob has f64"});
}

TEST_CASE("outputs have the batch's precision") {
    set_up s;
    s.to.gradient.type = dtype::f64;
    s.refused({"loss_outputs.gradient has dtype f64"});
    s.to.gradient.type = dtype::u8;
    s.refused({"loss_outputs.gradient has dtype u8"});
    s.to.gradient.type = dtype::f32;
    s.to.loss.type = dtype::f64;
    s.refused({"loss_outputs.loss has dtype f64"});
    s.to.loss.type = dtype::f32;
    s.to.weight.type = dtype::u8;
    s.refused({"loss_outputs.weight has dtype u8"});

    set_up d(false, false, types::all(dtype::f64));
    d.to.gradient.type = dtype::f16;
    d.refused({"loss_outputs.gradient has dtype f16"});
}

TEST_CASE("the gradient is there, and no output shares an element between positions") {
    for (bool const packed : {false, true}) {
        set_up s(packed);
        s.to.gradient = {};
        s.refused({"loss_outputs.gradient is absent"});
    }
    set_up s;
    for (asyncrl::output_column* c : {&s.to.gradient, &s.to.loss, &s.to.weight}) {
        asyncrl::output_column const right = *c;
        c->token_stride = 0;
        s.refused({"stride of 0"});
        *c = right;
        c->row_stride = 0;
        s.refused({"stride of 0"});
        *c = right;
    }
    s.accepted();
    set_up p(true);
    p.to.loss.token_stride = 0;
    p.refused({"loss_outputs.loss", "stride of 0"});
}

TEST_CASE("a stride that no two positions use may be 0") {
    set_up s;
    s.batch.rows = 1;
    s.to.gradient.row_stride = s.to.loss.row_stride = s.to.weight.row_stride = 0;
    s.accepted();
}

TEST_CASE("the factor of loss and gradient is finite, positive, and leaves the gradient within its type") {
    set_up s;
    for (double const wrong : {infinity, not_a_number, -infinity, 0.0, -1.0}) {
        s.options.scale = wrong;
        s.refused({"loss_options.scale"});
    }
    s.options.scale = 1e300;  // finite, but not as a float
    s.refused({"loss_options.scale"});
    s.options.scale = 1;
    s.method.reduce = oracle::reduction::token_sum;
    s.method.constant = 1e-50;
    s.refused({"loss_options.scale"});
    s.method.constant = 1;
    s.accepted();
}

TEST_CASE("declared batches are covered by the totals") {
    set_up s;
    for (std::int64_t const wrong : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{2}, largest}) {
        s.options.batches = wrong;
        s.refused({"loss_options.batches = " + std::to_string(wrong), "which hold 1"});
    }
    s.options.batches = 1;
    s.sums = {};
    s.refused({"loss_options.batches = 1", "which hold 0"});
    s.sums.counts.batches = 3;
    s.options.batches = 3;
    s.accepted();
}

TEST_CASE("a workspace is large enough, in rows and in positions") {
    set_up s;
    asyncrl::token_batch one_row = s.batch;
    one_row.rows = 1;
    s.out.scratch = asyncrl::workspace(one_row);
    s.refused_by_both({"token_batch.rows = 2", "at most the workspace's 1"});

    laid_out const large({oracle::row(3000, token_of(-1, -1, -1, 1))});
    outputs out(large);
    asyncrl::token_batch shorter = large.batch;
    shorter.tokens = 2048;
    asyncrl::workspace small(shorter);
    asyncrl::totals sums;
    sums.counts.batches = 1;
    std::string text;
    try {
        (void)library::policy_loss(oracle::method{}, large.batch, sums, out.to(), small);
    } catch (std::invalid_argument const& error) {
        text = error.what();
    }
    REQUIRE(text == "asyncrl: token_batch.size() = 3000, must be at most the workspace's 2048");
    REQUIRE(out.untouched());
    asyncrl::token_batch negative;
    negative.rows = -1;
    REQUIRE_THROWS_AS(asyncrl::workspace(negative), std::invalid_argument);
}

TEST_CASE("an empty batch needs no column and no output, and has a report of zeros") {
    for (oracle::method m : {oracle::method{}, oracle::method{.correction = oracle::weight::masked, .over_kept = true}}) {
        for (int reduce = 0; reduce < 4; ++reduce) {
            m.reduce = static_cast<oracle::reduction>(reduce);
            std::int32_t const offsets[] = {0, 0, 0};
            asyncrl::token_batch empty;
            asyncrl::token_batch no_tokens;
            no_tokens.rows = 5;
            asyncrl::token_batch no_rows;
            no_rows.tokens = 5;
            asyncrl::token_batch packed;
            packed.rows = 2;
            packed.offsets = offsets;
            for (asyncrl::token_batch const& batch : {empty, no_tokens, no_rows, packed}) {
                asyncrl::workspace scratch(batch);
                asyncrl::totals const sums = library::measure(m, batch, scratch);
                REQUIRE(sums.counts.batches == 1);
                REQUIRE(sums.counts.tokens == 0);
                REQUIRE(sums.counts.sequences == 0);
                asyncrl::loss_report const report = library::policy_loss(m, batch, sums, {}, scratch);
                asyncrl::loss_report zero;
                zero.counts.sequences = batch.rows;
                REQUIRE(same_bits(report, zero));
            }
        }
    }
}
