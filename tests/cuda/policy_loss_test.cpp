// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/compare.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace support;
using device::difference_from_host;
using device::name_of;
using methods::method;

namespace {

std::vector<method> every_method() {
    std::vector<method> all;
    for (methods::loss const kind : methods::every_loss) {
        for (methods::reduction const reduce : methods::every_reduction) {
            for (bool const kept : {false, true}) {
                method m;
                m.kind = kind;
                m.reduce = reduce;
                m.over_kept = kept;
                if (!kept || m.rejects()) {
                    all.push_back(m);
                }
            }
        }
    }
    return all;
}

laid_out const& mixed_batch() {
    source random(1);
    static laid_out const b(random_batch(random, std::vector<std::int64_t>(13, 233)));
    return b;
}

oracle::token token_of(double log_prob, double old, double rollout, double advantage) {
    oracle::token t;
    t.log_prob = log_prob;
    t.old_log_prob = old;
    t.rollout_log_prob = rollout;
    t.advantage = advantage;
    return t;
}

}  // namespace

TEST_CASE("every method and reduction gives the host's flags, values, totals and report") {
    for (method const& m : every_method()) {
        INFO(name_of(m));
        REQUIRE(difference_from_host(m, mixed_batch()) == "");
    }
}

TEST_CASE("the batch of these tests is clipped, capped, rejected and narrowed on all sides") {
    method m;
    auto const counts_of = [&](methods::loss kind) {
        m.kind = kind;
        return device::run(m, mixed_batch()).report.counts;
    };
    asyncrl::loss_report::count_range const clipped = counts_of(methods::loss::clip_tis);
    REQUIRE(clipped.clipped_high > 50);
    REQUIRE(clipped.clipped_low > 50);
    REQUIRE(clipped.capped > 50);
    REQUIRE(clipped.unscored > 20);
    REQUIRE(clipped.tokens < mixed_batch().where.size() - 100);
    REQUIRE(counts_of(methods::loss::clip_mis).gated > 50);
    REQUIRE(counts_of(methods::loss::sat).tail > 20);
}

TEST_CASE("sizes around a vector, a warp, a chunk and several") {
    source random(2);
    for (std::int64_t const size :
         {0, 1, 2, 3, 4, 5, 31, 32, 33, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 10000}) {
        for (bool const packed : {false, true}) {
            layout how;
            how.packed = packed;
            std::vector<std::int64_t> const lengths = packed ? random_lengths(random, size) : std::vector<std::int64_t>{size};
            laid_out const b(random_batch(random, lengths), {}, how);
            method m;
            m.kind = random.pick({methods::loss::clip_tis, methods::loss::clip_mis, methods::loss::sat});
            m.reduce = random.pick({methods::reduction::token_mean, methods::reduction::sequence_mean_token_mean});
            INFO(size << " positions" << (packed ? ", packed, " : ", ") << name_of(m));
            REQUIRE(difference_from_host(m, b) == "");
        }
    }
}

TEST_CASE("a batch of no rows, or of rows without positions, has an empty report") {
    for (std::size_t const rows : {0U, 1U, 3U}) {
        for (bool const packed : {false, true}) {
            layout how;
            how.packed = packed;
            laid_out const b(oracle::batch(rows, oracle::row{}), {}, how);
            for (methods::loss const kind : methods::every_loss) {
                method m;
                m.kind = kind;
                REQUIRE(difference_from_host(m, b) == "");
            }
        }
    }
}

TEST_CASE("types, layouts, strides and alignments in every mixture") {
    source random(3);
    std::initializer_list<dtype> const any{dtype::f32, dtype::bf16, dtype::f16};
    for (int round = 0; round < 60; ++round) {
        types kinds{random.pick(any), random.pick(any), random.pick(any), random.pick(any), random.pick(any)};
        layout how;
        how.packed = random.chance(0.5);
        how.wide_offsets = random.chance(0.5);
        how.row_advantage = random.chance(0.4);
        how.token_stride = random.pick<std::int64_t>({1, 1, 1, 2, 3, -1});
        how.row_gap = how.packed ? 0 : random.pick<std::int64_t>({0, 0, 1, 4});
        how.shift = random.pick<std::int64_t>({0, 0, 1, 2, 3});
        how.masked = random.chance(0.8);
        how.unscored = random.pick({not_a_number, -9999.0});
        recipe made;
        made.row_advantage = how.row_advantage;
        if (!how.masked) {
            made.active = 1;
            made.dead_rows = 0;
        }
        std::vector<std::int64_t> const lengths =
            how.packed ? random_lengths(random, 1 + random.below(900))
                       : std::vector<std::int64_t>(static_cast<std::size_t>(1 + random.below(9)), 1 + random.below(99));
        laid_out const b(random_batch(random, lengths, made), kinds, how);
        method m;
        m.kind = random.pick({methods::loss::clip, methods::loss::gradient, methods::loss::clip_tis, methods::loss::clip_mis,
                              methods::loss::gradient_weighted, methods::loss::sat, methods::loss::sat_tis});
        m.reduce = random.pick({methods::reduction::token_mean, methods::reduction::token_sum,
                                methods::reduction::sequence_mean_token_mean, methods::reduction::sequence_mean_token_sum});
        m.over_kept = random.chance(0.5);
        INFO("round " << round << ": " << name_of(m) << (how.packed ? ", packed" : "") << ", stride " << how.token_stride
                      << ", gap " << how.row_gap << ", shift " << how.shift << ", types " << static_cast<int>(kinds.log_prob)
                      << static_cast<int>(kinds.old_log_prob) << static_cast<int>(kinds.rollout_log_prob)
                      << static_cast<int>(kinds.advantage) << " to " << static_cast<int>(kinds.output));
        REQUIRE(difference_from_host(m, b) == "");
    }
}

TEST_CASE("a token that is not finite is dropped or shown, counted, and the first is named") {
    source random(4);
    recipe calm;
    calm.active = 1;
    calm.dead_rows = 0;
    oracle::batch rows = random_batch(random, {900, 900, 900}, calm);
    rows[2][801].log_prob = not_a_number;
    rows[2][300].advantage = infinity;
    rows[2][700].old_log_prob = -infinity;
    rows[2][5].rollout_log_prob = infinity;
    rows[2][5].scored = true;
    rows[1][899] = token_of(30, 0, 0, -1e30);  // finite columns; the loss is beyond float, but not that of policy_gradient
    layout how;
    how.unscored = -9999;
    laid_out const b(rows, {}, how);
    for (methods::loss const kind : methods::every_loss) {
        for (auto const policy : {asyncrl::nonfinite::error, asyncrl::nonfinite::drop, asyncrl::nonfinite::propagate}) {
            method m;
            m.kind = kind;
            INFO(name_of(m) << ", policy " << static_cast<int>(policy));
            REQUIRE(difference_from_host(m, b, {.on_nonfinite = policy}) == "");
        }
    }
    method m;
    device::outcome const tis = [&] {
        m.kind = methods::loss::clip_tis;
        return device::run(m, b);
    }();
    REQUIRE(tis.report.counts.nonfinite == 5);
    REQUIRE(tis.report.first_nonfinite == 900 + 899);
    m.kind = methods::loss::gradient;
    REQUIRE(device::run(m, b).report.first_nonfinite == 1800 + 300);
}

TEST_CASE("an unscored token trains with weight 1, also where the sentinel is rounded by its column") {
    source random(5);
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
        for (double const sentinel : {not_a_number, -9999.0, 1.0 / 3}) {
            recipe made;
            made.unscored = 0.3;
            layout how;
            how.unscored = sentinel;
            types kinds;
            kinds.rollout_log_prob = type;
            laid_out const b(random_batch(random, {333, 333}, made), kinds, how);
            for (methods::loss const kind : {methods::loss::clip_tis, methods::loss::clip_mis, methods::loss::sat}) {
                method m;
                m.kind = kind;
                INFO(name_of(m) << ", type " << static_cast<int>(type) << ", sentinel " << sentinel);
                REQUIRE(difference_from_host(m, b) == "");
                REQUIRE(device::run(m, b).report.counts.unscored > 50);
            }
        }
    }
}

TEST_CASE("a batch whose every token is masked has gradient +0 and an empty report") {
    source random(6);
    recipe dead;
    dead.dead_rows = 1;
    laid_out const b(random_batch(random, {700, 700, 700}, dead));
    for (method const& m : every_method()) {
        INFO(name_of(m));
        REQUIRE(difference_from_host(m, b) == "");
    }
}

TEST_CASE("the scale multiplies loss and gradient") {
    method m;
    m.kind = methods::loss::clip_tis;
    for (methods::reduction const reduce : methods::every_reduction) {
        m.reduce = reduce;
        REQUIRE(difference_from_host(m, mixed_batch(), {.scale = 8}) == "");
    }
}

TEST_CASE("totals may be the caller's: of other micro-batches and ranks too") {
    laid_out const& b = mixed_batch();
    for (method const& m : every_method()) {
        outputs out(b);
        asyncrl::totals sums = host::measure(m, b.batch, out.scratch);
        sums.counts = {3, sums.counts.tokens * 3, sums.counts.sequences * 5, sums.counts.kept_tokens * 2,
                       sums.counts.kept_sequences * 4};
        sums.quantile = m.orders() ? 0.0625 : sums.quantile;
        asyncrl::loss_report const report = host::policy_loss(m, b.batch, sums, out.to(), out.scratch,
                                                              {.batches = 3, .on_nonfinite = asyncrl::nonfinite::drop});
        device::outcome const want{sums, report, std::move(out)};

        device::on_device const d(b);
        device::must(cudaMemcpy(d.sums(), &sums, sizeof sums, cudaMemcpyHostToDevice));
        d.policy_loss(m, {.batches = 3});
        device::outcome const got = d.fetch();
        differences found;
        device::compare_totals(found, got.sums, sums);
        device::compare_tokens(found, m, b, 1, got, want);
        device::compare_reports(found, got.report, want.report);
        INFO(name_of(m));
        REQUIRE(found.text() == "");
    }
}

TEST_CASE("SAT: the table of eight tokens and two, worked out by hand") {
    // |log-ratio| in 1/256: the ninth of ten is 5/256, and only the last is in the tail.
    std::vector<int> const units{0, 1, -1, 2, -2, 3, 4, -4, 5, 24};
    struct last_token {
        double log_ratio, advantage, loss, slope;
        unsigned flags;
    };
    double const in_tail = 24.0 / 256;
    std::vector<last_token> const lasts{
        {in_tail, 1, -1.00831946755, 0, asyncrl::clipped_high | asyncrl::tail},
        {-in_tail, -1, 0.991680532446, 0, asyncrl::clipped_low | asyncrl::tail},
        {in_tail, -1, 1.09828514031, 1.09828514031, asyncrl::tail},  // towards the policy: as PPO
        {-in_tail, 1, -0.91051036138, -0.91051036138, asyncrl::tail},
    };
    for (last_token const& last : lasts) {
        oracle::batch rows(1);
        for (int const unit : units) {
            rows[0].push_back(token_of(unit / 256.0, 0, 0, 1));
        }
        rows[0][9].log_prob = last.log_ratio;
        rows[0][9].advantage = last.advantage;
        laid_out const b(rows);
        method m;
        m.kind = methods::loss::sat;
        m.high = 0.2;
        m.reduce = methods::reduction::token_sum;
        m.constant = 1;
        device::outcome const got = device::run(m, b);
        REQUIRE(got.sums.quantile == 5.0 / 256);
        REQUIRE_THAT(got.out.loss.get(0, 9), Catch::Matchers::WithinRel(last.loss, 4e-6));
        REQUIRE_THAT(got.out.gradient.get(0, 9), Catch::Matchers::WithinAbs(last.slope, 4e-6));
        REQUIRE(got.out.flags(9) == last.flags);
        REQUIRE_THAT(got.out.loss.get(0, 8), Catch::Matchers::WithinRel(-1.01972323271, 4e-6));  // 5/256 itself is inside
        REQUIRE(got.out.flags(8) == 0);
    }
}

TEST_CASE("SAT on an on-policy batch, with fewer than ten tokens, or at share 1 is PPO") {
    source random(7);
    struct situation {
        oracle::batch rows;
        asyncrl::fraction share;
    };
    oracle::batch on_policy = random_batch(random, {500});
    for (oracle::token& t : on_policy[0]) {
        t.rollout_log_prob = t.old_log_prob = t.log_prob;
    }
    std::vector<situation> const situations{
        {on_policy, {9, 10}}, {random_batch(random, {9}), {9, 10}}, {random_batch(random, {500}), {1, 1}}};
    for (situation const& s : situations) {
        oracle::batch rows = s.rows;
        for (oracle::token& t : rows[0]) {
            t.rollout_log_prob = t.old_log_prob;  // old and rollout anchor agree
            t.scored = true;
        }
        laid_out const b(rows);
        method sat;
        sat.kind = methods::loss::sat;
        sat.quantile = s.share;
        device::outcome const got = device::run(sat, b);
        device::outcome const want = device::run(method{}, b);
        REQUIRE(got.out.same_bits(want.out));
        REQUIRE(got.report.counts.tail == 0);
        REQUIRE(difference_from_host(sat, b) == "");
    }
}

TEST_CASE("SAT at half narrows half of the tokens, and ties are not in the tail") {
    source random(8);
    laid_out const b(random_batch(random, std::vector<std::int64_t>(5, 777)));
    method m;
    m.kind = methods::loss::sat;
    m.quantile = {1, 2};
    REQUIRE(difference_from_host(m, b) == "");
    REQUIRE(device::run(m, b).report.counts.tail > 1000);

    oracle::batch rows(1, oracle::row(30, token_of(-0.25, 0, 0, 1)));
    laid_out const tied(rows);
    REQUIRE(device::run(m, tied).report.counts.tail == 0);
    REQUIRE(difference_from_host(m, tied) == "");
}
