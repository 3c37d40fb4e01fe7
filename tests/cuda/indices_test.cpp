// SPDX-License-Identifier: Apache-2.0
// Many rows, many chunks, and places beyond 32 bits.
#include "catch.hpp"
#include "support/compare.hpp"
#include "support/shared_bytes.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace support;
using device::difference_from_host;
using device::must;
using device::name_of;
using device::shared_bytes;
using methods::method;

TEST_CASE("more rows than a grid has blocks, each with a count of its own") {
    source random(1);
    for (std::size_t const rows : {65535U, 65536U, 70000U}) {
        laid_out const b(random_batch(random, std::vector<std::int64_t>(rows, 2)));
        method m;
        m.kind = methods::loss::clip_mis;
        m.reduce = methods::reduction::sequence_mean_token_mean;
        m.over_kept = true;
        REQUIRE(difference_from_host(m, b) == "");
    }
}

TEST_CASE("rows longer than a block or a chunk") {
    source random(2);
    for (std::int64_t const length : {1023, 1024, 1025, 4097}) {
        laid_out const b(random_batch(random, {length, length, length}));
        method m;
        m.kind = methods::loss::clip_tis;
        m.reduce = methods::reduction::sequence_mean_token_mean;
        INFO(length);
        REQUIRE(difference_from_host(m, b) == "");
    }
}

TEST_CASE("strides beyond 32 bits") {
    // A mask whose three rows lie 2^31 + 9 bytes apart, and whose tokens lie backwards.
    constexpr std::int64_t row_stride = (std::int64_t{1} << 31) + 9;
    constexpr std::int64_t tokens = 70;
    source random(3);
    oracle::batch const rows = random_batch(random, {tokens, tokens, tokens});
    laid_out const b(rows);
    shared_bytes const far(static_cast<std::size_t>(2 * row_stride + tokens));
    for (std::size_t r = 0; r < 3; ++r) {
        for (std::size_t t = 0; t < tokens; ++t) {
            far.host()[static_cast<std::int64_t>(r) * row_stride + tokens - 1 - static_cast<std::int64_t>(t)] =
                rows[r][t].active ? 1 : 0;
        }
    }
    for (methods::loss const kind : {methods::loss::clip_mis, methods::loss::sat}) {
        method m;
        m.kind = kind;
        m.reduce = methods::reduction::sequence_mean_token_mean;
        device::outcome const want = device::run(m, b);
        device::on_device d(b);
        d.batch.mask = {far.on_device() + tokens - 1, dtype::u8, row_stride, -1};
        d.measure(m);
        d.policy_loss(m);
        INFO(name_of(m));
        REQUIRE(device::same_bits(d.fetch(), want));
    }
}

TEST_CASE("positions beyond 32 bits are found in their rows") {
    std::int64_t const wide = std::int64_t{1} << 32;
    for (std::int64_t const tokens : {std::int64_t{1}, std::int64_t{3}, std::int64_t{1000003}, wide - 1, wide, wide + 7}) {
        asyncrl::token_batch batch;
        batch.rows = std::int64_t{1} << 29;
        batch.tokens = tokens;
        std::vector<std::int64_t> positions;
        for (std::int64_t const row : {std::int64_t{0}, std::int64_t{5}, wide / tokens, wide / tokens + 1, batch.rows - 1}) {
            for (std::int64_t const token : {std::int64_t{0}, tokens / 2, tokens - 1}) {
                positions.push_back(row * tokens + token);
            }
        }
        std::vector<device::row_and_token> const found = device::places_of(batch, positions);
        for (std::size_t i = 0; i < positions.size(); ++i) {
            INFO("position " << positions[i] << " of rows of " << tokens);
            REQUIRE(found[i].row == positions[i] / tokens);
            REQUIRE(found[i].token == positions[i] % tokens);
        }
    }
}

TEST_CASE("a larger batch of many chunks", "[large]") {
    source random(4);
    layout how;
    how.packed = true;
    laid_out const b(random_batch(random, random_lengths(random, 300001)), {}, how);
    for (methods::loss const kind : {methods::loss::clip_mis, methods::loss::sat_tis}) {
        method m;
        m.kind = kind;
        m.reduce = methods::reduction::sequence_mean_token_mean;
        INFO(name_of(m));
        REQUIRE(difference_from_host(m, b) == "");
    }
}

TEST_CASE("a batch whose chunks are longer than 2048 positions", "[large]") {
    constexpr std::size_t size = 512 * 2048 + 1;
    std::vector<float> log_prob(size), old(size), rollout(size), advantage(size);
    source random(5);
    for (std::size_t i = 0; i < size; ++i) {
        old[i] = -1;
        log_prob[i] = old[i] + static_cast<float>(random.uniform(-0.5, 0.5));
        rollout[i] = old[i] + static_cast<float>(random.uniform(-1, 1));
        advantage[i] = random.chance(0.5) ? 1.0F : -1.0F;
    }
    log_prob[size - 3] = std::nanf("");
    asyncrl::token_batch batch;
    batch.rows = 1;
    batch.tokens = size;
    batch.log_prob = asyncrl::per_token(log_prob.data());
    batch.old_log_prob = asyncrl::per_token(old.data());
    batch.rollout_log_prob = asyncrl::per_token(rollout.data());
    batch.advantage = asyncrl::per_token(advantage.data());
    method m;
    m.kind = methods::loss::sat_tis;
    asyncrl::loss_options const drop{.on_nonfinite = asyncrl::nonfinite::drop};
    std::vector<float> want(size), got(size);
    asyncrl::workspace scratch(batch);
    asyncrl::totals const sums = host::measure(m, batch, scratch);
    asyncrl::loss_report const report = host::policy_loss(m, batch, sums, asyncrl::per_token(want.data()), scratch, drop);

    auto const bytes_of = [](std::vector<float> const& x) {
        std::vector<unsigned char> bytes(x.size() * sizeof(float));
        std::memcpy(bytes.data(), x.data(), bytes.size());
        return bytes;
    };
    asyncrl::token_batch on_device = batch;
    device::buffer const columns[] = {device::buffer(bytes_of(log_prob)), device::buffer(bytes_of(old)),
                                      device::buffer(bytes_of(rollout)), device::buffer(bytes_of(advantage))};
    on_device.log_prob.data = columns[0].data();
    on_device.old_log_prob.data = columns[1].data();
    on_device.rollout_log_prob.data = columns[2].data();
    on_device.advantage.data = columns[3].data();
    device::guarded const gradient(size * sizeof(float));
    device::guarded const device_sums(sizeof(asyncrl::totals));
    device::guarded const device_report(sizeof(asyncrl::loss_report));
    device::guarded const room(device::workspace_bytes(batch));
    must(device::measure(m, on_device, device_sums.as<asyncrl::totals>(), {room.data(), room.bytes()}, nullptr));
    must(device::policy_loss(m, on_device, device_sums.as<asyncrl::totals>(), asyncrl::per_token(gradient.as<float>()),
                             device_report.as<asyncrl::loss_report>(), {room.data(), room.bytes()}, {}, nullptr));
    must(cudaMemcpy(got.data(), gradient.data(), size * sizeof(float), cudaMemcpyDeviceToHost));
    differences found;
    device::compare_totals(found, device_sums.value<asyncrl::totals>(), sums);
    device::compare_reports(found, device_report.value<asyncrl::loss_report>(), report);
    double const unit = m.rule().scale(sums);
    for (std::size_t i = 0; i < size; ++i) {
        found.check(std::abs(got[i] - want[i]) <= 4e-6 * std::abs(want[i]) + 1e-7 * unit, "gradient[", i, "] is ", got[i],
                    ", expected ", want[i]);
    }
    REQUIRE(found.text() == "");
    REQUIRE(report.counts.clipped_high > 100000);
    REQUIRE(gradient.guards_hold());
    REQUIRE(room.guards_hold());
}
