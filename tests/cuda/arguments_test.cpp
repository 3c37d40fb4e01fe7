// SPDX-License-Identifier: Apache-2.0
// What cannot be meant is refused before anything is launched or written.
#include "catch.hpp"
#include "support/compare.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace support;
using methods::method;

namespace {

/// The arguments of a pair of calls, to be spoilt one at a time.
struct call {
    asyncrl::token_batch batch;
    asyncrl::loss_outputs to;
    asyncrl::totals* sums;
    asyncrl::loss_report* report;
    device::scratch room;
    asyncrl::loss_options options{};
};

struct misuse {
    std::string name;
    std::function<void(call&)> spoil;
    bool by_measure = true;  ///< measure refuses it too
};

std::vector<misuse> const& every_misuse() {
    static double const endless = std::numeric_limits<double>::infinity();
    static std::vector<misuse> const all{
        {"negative rows", [](call& c) { c.batch.rows = -1; }},
        {"negative tokens", [](call& c) { c.batch.tokens = -1; }},
        {"more positions than 64 bits count", [](call& c) { c.batch.rows = c.batch.tokens = std::int64_t{1} << 32; }},
        {"tokens in no row",
         [](call& c) {
             c.batch.rows = 0;
             c.batch.offsets = static_cast<std::int32_t const*>(c.room.data);
         }},
        {"no log_prob", [](call& c) { c.batch.log_prob = {}; }},
        {"no old_log_prob", [](call& c) { c.batch.old_log_prob = {}; }},
        {"no rollout_log_prob", [](call& c) { c.batch.rollout_log_prob = {}; }},
        {"no advantage", [](call& c) { c.batch.advantage = {}; }},
        {"log_prob of doubles", [](call& c) { c.batch.log_prob.type = dtype::f64; }},
        {"old_log_prob of bytes", [](call& c) { c.batch.old_log_prob.type = dtype::u8; }},
        {"rollout_log_prob of doubles", [](call& c) { c.batch.rollout_log_prob.type = dtype::f64; }},
        {"advantage of doubles", [](call& c) { c.batch.advantage.type = dtype::f64; }},
        {"mask of floats", [](call& c) { c.batch.mask.type = dtype::f32; }},
        {"null totals", [](call& c) { c.sums = nullptr; }},
        {"null workspace", [](call& c) { c.room.data = nullptr; }},
        {"empty workspace", [](call& c) { c.room.bytes = 0; }},
        {"workspace a byte too small", [](call& c) { --c.room.bytes; }},
        {"misaligned workspace", [](call& c) { c.room.data = static_cast<std::byte*>(c.room.data) + 128; }},
        {"null report", [](call& c) { c.report = nullptr; }, false},
        {"no gradient", [](call& c) { c.to.gradient = {}; }, false},
        {"gradient of doubles", [](call& c) { c.to.gradient.type = dtype::f64; }, false},
        {"loss of bytes", [](call& c) { c.to.loss.type = dtype::u8; }, false},
        {"weight of doubles", [](call& c) { c.to.weight.type = dtype::f64; }, false},
        {"gradient with a token stride of 0", [](call& c) { c.to.gradient.token_stride = 0; }, false},
        {"gradient with a row stride of 0", [](call& c) { c.to.gradient.row_stride = 0; }, false},
        {"loss with a token stride of 0", [](call& c) { c.to.loss.token_stride = 0; }, false},
        {"weight with a row stride of 0", [](call& c) { c.to.weight.row_stride = 0; }, false},
        {"scale of 0", [](call& c) { c.options.scale = 0; }, false},
        {"negative scale", [](call& c) { c.options.scale = -1; }, false},
        {"infinite scale", [](call& c) { c.options.scale = endless; }, false},
        {"scale that is not a number", [](call& c) { c.options.scale = not_a_number; }, false},
        {"no batches", [](call& c) { c.options.batches = 0; }, false},
    };
    return all;
}

laid_out small_batch() {
    source random(1);
    return laid_out(random_batch(random, {40, 40}));
}

}  // namespace

TEST_CASE("misuse is cudaErrorInvalidValue, nothing is written, and the next call is as if it had not been") {
    laid_out const b = small_batch();
    method m;
    m.kind = methods::loss::clip_tis;
    for (misuse const& wrong : every_misuse()) {
        INFO(wrong.name);
        device::on_device const d(b);
        call c{d.batch, d.to, d.sums(), d.report(), d.room()};
        wrong.spoil(c);
        if (wrong.by_measure) {
            REQUIRE(device::measure(m, c.batch, c.sums, c.room, nullptr) == cudaErrorInvalidValue);
        }
        REQUIRE(device::policy_loss(m, c.batch, c.sums, c.to, c.report, c.room, c.options, nullptr) == cudaErrorInvalidValue);
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    }
    REQUIRE(device::difference_from_host(m, b) == "");
}

TEST_CASE("an error that others left behind is neither reported nor taken away") {
    laid_out const b = small_batch();
    void* none = nullptr;
    REQUIRE(cudaMalloc(&none, std::numeric_limits<std::size_t>::max() / 2) == cudaErrorMemoryAllocation);
    method m;
    m.kind = methods::loss::sat_tis;
    m.reduce = methods::reduction::sequence_mean_token_mean;
    device::on_device const d(b);
    REQUIRE(device::measure(m, d.batch, d.sums(), d.room(), nullptr) == cudaSuccess);
    REQUIRE(device::policy_loss(m, d.batch, d.sums(), d.to, d.report(), d.room(), {}, nullptr) == cudaSuccess);
    REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation);
    REQUIRE(device::same_bits(d.fetch(), device::run(m, b)));
}

TEST_CASE("columns that an objective does not need may be absent or of any type") {
    laid_out const b = small_batch();
    for (methods::loss const kind : methods::every_loss) {
        method m;
        m.kind = kind;
        device::outcome const want = device::run(m, b);
        device::on_device d(b);
        if (!m.reads_old()) {
            d.batch.old_log_prob = {};
        }
        if (!m.reads_rollout()) {
            d.batch.rollout_log_prob.type = dtype::f64;
        }
        d.measure(m);
        d.policy_loss(m);
        REQUIRE(device::same_bits(d.fetch(), want));
    }
}

TEST_CASE("a batch without positions needs no columns and no outputs") {
    device::guarded const sums(sizeof(asyncrl::totals));
    device::guarded const report(sizeof(asyncrl::loss_report));
    for (std::int64_t const rows : {0, 3}) {
        asyncrl::token_batch batch;
        batch.rows = rows;
        device::guarded const room(device::workspace_bytes(batch));
        for (methods::loss const kind : methods::every_loss) {
            method m;
            m.kind = kind;
            REQUIRE(device::measure(m, batch, sums.as<asyncrl::totals>(), {room.data(), room.bytes()}, nullptr) == cudaSuccess);
            REQUIRE(device::policy_loss(m, batch, sums.as<asyncrl::totals>(), {}, report.as<asyncrl::loss_report>(),
                                        {room.data(), room.bytes()}, {}, nullptr) == cudaSuccess);
            device::must(cudaDeviceSynchronize());
            REQUIRE(report.value<asyncrl::loss_report>().counts.sequences == rows);
            REQUIRE(report.value<asyncrl::loss_report>().first_nonfinite == -1);
            REQUIRE(report.guards_hold());
            REQUIRE(room.guards_hold());
        }
    }
}

TEST_CASE("a row or token stride of 0 is no misuse where there is one row or one token") {
    source random(2);
    method m;
    for (std::vector<std::int64_t> const& lengths : {std::vector<std::int64_t>{30}, std::vector<std::int64_t>(30, 1)}) {
        laid_out const b(random_batch(random, lengths));
        device::outcome const want = device::run(m, b);
        device::on_device d(b);
        (lengths.size() == 1 ? d.to.gradient.row_stride : d.to.gradient.token_stride) = 0;
        d.measure(m);
        d.policy_loss(m);
        REQUIRE(device::same_bits(d.fetch(), want));
    }
}

TEST_CASE("the workspace's size is known without a device, grows with the batch, and does not depend on its columns") {
    asyncrl::token_batch shape;
    REQUIRE(device::workspace_bytes(shape) > 0);
    shape.rows = 1;
    shape.tokens = 4096;
    std::size_t const small = device::workspace_bytes(shape);
    shape.tokens = std::int64_t{1} << 24;
    std::size_t const large = device::workspace_bytes(shape);
    REQUIRE(small < 400000);
    REQUIRE(large > small);
    REQUIRE(static_cast<double>(large) < 0.65 * static_cast<double>(shape.tokens) + 400000);
    std::size_t before = 0;
    for (std::int64_t tokens = 1; tokens < std::int64_t{1} << 33; tokens *= 2) {
        for (std::int64_t const around : {-1, 0, 1}) {
            shape.tokens = tokens + around;
            REQUIRE(device::workspace_bytes(shape) >= before);  // room for a larger batch is room for a smaller one
            before = device::workspace_bytes(shape);
        }
    }
    laid_out const b = small_batch();
    asyncrl::token_batch bare;
    bare.rows = b.batch.rows;
    bare.tokens = b.batch.tokens;
    REQUIRE(device::workspace_bytes(bare) == device::workspace_bytes(b.batch));
}
