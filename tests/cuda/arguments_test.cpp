// SPDX-License-Identifier: Apache-2.0
// What cannot be meant is refused before anything is launched or written.
#include "catch.hpp"
#include "support/compare.hpp"
#include "support/refusals.hpp"

#include <asyncrl/correction/token/token.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
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

/// Whether the host's calls refuse it in the same words.
enum class on_host { same, differs };
enum class refused_by { both, measure, loss };

struct misuse {
    std::string words;  ///< what is said of it; `*`: an address or a size
    std::function<void(call&)> spoil;
    on_host host = on_host::differs;
    refused_by by = refused_by::both;
};

constexpr auto same = on_host::same;
constexpr auto differs = on_host::differs;

/// An address of the same element type, some bytes on.
template <typename Pointer>
Pointer behind(Pointer p, std::ptrdiff_t bytes) {
    return reinterpret_cast<Pointer>(reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes));
}

laid_out small_batch() {
    source random(1);
    return laid_out(random_batch(random, {40, 40}));
}

std::size_t small_workspace() {
    asyncrl::token_batch shape;
    shape.rows = 2;
    shape.tokens = 40;
    return device::workspace_bytes(shape);
}

/// What the host's call says of the same misuse, in its own memory.
std::string host_refusal(method const& m, laid_out const& b, misuse const& wrong) {
    outputs out(b);
    asyncrl::totals sums = host::measure(m, b.batch, out.scratch);
    asyncrl::loss_report report;
    std::vector<unsigned char> room(1 << 20);
    call c{b.batch, out.to(), &sums, &report, {room.data(), room.size()}};
    wrong.spoil(c);
    try {
        host::policy_loss(m, c.batch, sums, c.to, out.scratch, c.options);
    } catch (std::invalid_argument const& e) {
        return e.what();
    }
    return "";
}

std::vector<misuse> const& every_misuse() {
    static double const endless = std::numeric_limits<double>::infinity();
    static std::vector<misuse> const all{
        {"token_batch.rows = -1, must be >= 0", [](call& c) { c.batch.rows = -1; }, same},
        {"token_batch.tokens = -1, must be >= 0", [](call& c) { c.batch.tokens = -1; }, same},
        {"token_batch.rows = 4294967296, must be such that rows * tokens fits 64 bits",
         [](call& c) { c.batch.rows = c.batch.tokens = std::int64_t{1} << 32; }, same},
        {"token_batch.rows = 0, must be > 0, as token_batch.tokens = 40",
         [](call& c) {
             c.batch.rows = 0;
             c.batch.offsets = static_cast<std::int32_t const*>(c.room.data);
         }},
        {"token_batch.log_prob is absent, but the objective needs it", [](call& c) { c.batch.log_prob = {}; }, same},
        {"token_batch.old_log_prob is absent, but the objective needs it", [](call& c) { c.batch.old_log_prob = {}; }, same},
        {"token_batch.rollout_log_prob is absent, but the objective needs it", [](call& c) { c.batch.rollout_log_prob = {}; },
         same},
        {"token_batch.advantage is absent, but the objective needs it", [](call& c) { c.batch.advantage = {}; }, same},
        {"token_batch.log_prob has dtype f64, must be f32, bf16 or f16", [](call& c) { c.batch.log_prob.type = dtype::f64; }},
        {"token_batch.old_log_prob has dtype u8, must be f32, bf16 or f16",
         [](call& c) { c.batch.old_log_prob.type = dtype::u8; }},
        {"token_batch.rollout_log_prob has dtype i32, must be f32, bf16 or f16",
         [](call& c) { c.batch.rollout_log_prob.type = dtype::i32; }},
        {"token_batch.advantage has dtype f64, must be f32, bf16 or f16", [](call& c) { c.batch.advantage.type = dtype::f64; }},
        {"token_batch.mask has dtype f32, must be u8", [](call& c) { c.batch.mask.type = dtype::f32; }, same},
        {"token_batch.old_log_prob = 0x*, must be a multiple of 4",
         [](call& c) { c.batch.old_log_prob.data = behind(c.batch.old_log_prob.data, 2); }},
        {"token_batch.advantage = 0x*, must be a multiple of 2",
         [](call& c) {
             c.batch.advantage = {behind(c.batch.advantage.data, 1), dtype::bf16, 1, 0};
         }},
        {"token_batch.offsets = 0x*, must be a multiple of 8",
         [](call& c) { c.batch.offsets = behind(static_cast<std::int64_t const*>(c.room.data), 4); }},
        {"totals = null, must point to device memory", [](call& c) { c.sums = nullptr; }},
        {"totals = 0x*, must be a multiple of 8", [](call& c) { c.sums = behind(c.sums, 4); }},
        {"workspace.data = null, must point to device memory", [](call& c) { c.room.data = nullptr; }},
        {"workspace.bytes = 0, must be at least * (workspace_bytes of this batch)", [](call& c) { c.room.bytes = 0; }},
        {"workspace.bytes = *, must be at least " + std::to_string(small_workspace()) + " (workspace_bytes of this batch)",
         [](call& c) { --c.room.bytes; }},
        {"workspace.data = 0x*, must be a multiple of 256", [](call& c) { c.room.data = behind(c.room.data, 128); }},
        {"totals overlaps token_batch.old_log_prob, must lie apart from it",
         [](call& c) { c.sums = static_cast<asyncrl::totals*>(const_cast<void*>(behind(c.batch.old_log_prob.data, 32))); },
         differs, refused_by::measure},
        {"totals overlaps token_batch.mask, must lie apart from it",
         [](call& c) {
             c.batch.mask = {behind(c.sums, 13), dtype::u8, 0, 0};
         },
         differs, refused_by::measure},
        {"totals overlaps workspace.data, must lie apart from it",
         [](call& c) { c.sums = static_cast<asyncrl::totals*>(behind(c.room.data, 512)); }, differs, refused_by::measure},
        {"workspace.data overlaps token_batch.offsets, must lie apart from it",
         [](call& c) { c.batch.offsets = static_cast<std::int32_t const*>(c.room.data); }},
        {"loss_options.scale = 0, must be finite and > 0", [](call& c) { c.options.scale = 0; }, same, refused_by::loss},
        {"loss_options.scale = -1, must be finite and > 0", [](call& c) { c.options.scale = -1; }, same, refused_by::loss},
        {"loss_options.scale = inf, must be finite and > 0", [](call& c) { c.options.scale = endless; }, same,
         refused_by::loss},
        {"loss_options.scale = nan, must be finite and > 0", [](call& c) { c.options.scale = not_a_number; }, same,
         refused_by::loss},
        {"loss_options.batches = 0, must be >= 1", [](call& c) { c.options.batches = 0; }, differs, refused_by::loss},
        {"loss_options.upstream = 0x*, must be a multiple of 4",
         [](call& c) { c.options.upstream = behind(static_cast<float const*>(c.room.data), 2); }, differs, refused_by::loss},
        {"loss_outputs.gradient overlaps loss_options.upstream, must lie apart from it",
         [](call& c) { c.options.upstream = static_cast<float const*>(c.to.gradient.data) + 7; }, differs, refused_by::loss},
        {"report = null, must point to device memory", [](call& c) { c.report = nullptr; }, differs, refused_by::loss},
        {"report = 0x*, must be a multiple of 8", [](call& c) { c.report = behind(c.report, 2); }, differs, refused_by::loss},
        {"loss_outputs.gradient is absent, but the objective needs it", [](call& c) { c.to.gradient = {}; }, same,
         refused_by::loss},
        {"loss_outputs.gradient has dtype f64, must be f32, bf16 or f16", [](call& c) { c.to.gradient.type = dtype::f64; },
         differs, refused_by::loss},
        {"loss_outputs.loss has dtype u8, must be f32, bf16 or f16", [](call& c) { c.to.loss.type = dtype::u8; }, differs,
         refused_by::loss},
        {"loss_outputs.weight has dtype f64, must be f32, bf16 or f16", [](call& c) { c.to.weight.type = dtype::f64; }, differs,
         refused_by::loss},
        {"loss_outputs.gradient has a stride of 0: an output needs an element of its own for every position",
         [](call& c) { c.to.gradient.token_stride = 0; }, same, refused_by::loss},
        {"loss_outputs.gradient has a stride of 0: an output needs an element of its own for every position",
         [](call& c) { c.to.gradient.row_stride = 0; }, same, refused_by::loss},
        {"loss_outputs.loss has a stride of 0: an output needs an element of its own for every position",
         [](call& c) { c.to.loss.token_stride = 0; }, same, refused_by::loss},
        {"loss_outputs.weight has a stride of 0: an output needs an element of its own for every position",
         [](call& c) { c.to.weight.row_stride = 0; }, same, refused_by::loss},
        {"loss_outputs.gradient = 0x*, must be a multiple of 4",
         [](call& c) { c.to.gradient.data = behind(c.to.gradient.data, 1); }, differs, refused_by::loss},
        {"loss_outputs.flags = 0x*, must be a multiple of 2", [](call& c) { c.to.flags = behind(c.to.flags, 1); }, differs,
         refused_by::loss},
        {"loss_outputs.gradient overlaps token_batch.log_prob, must lie apart from it",
         [](call& c) { c.to.gradient.data = const_cast<void*>(c.batch.log_prob.data); }, differs, refused_by::loss},
        {"loss_outputs.gradient overlaps token_batch.advantage, must lie apart from it",
         [](call& c) { c.to.gradient.data = const_cast<void*>(behind(c.batch.advantage.data, 79 * 4)); }, differs,
         refused_by::loss},
        {"loss_outputs.loss overlaps loss_outputs.gradient, must lie apart from it", [](call& c) { c.to.loss = c.to.gradient; },
         differs, refused_by::loss},
        {"loss_outputs.weight overlaps token_batch.mask, must lie apart from it",
         [](call& c) { c.batch.mask.data = behind(c.to.weight.data, 5); }, differs, refused_by::loss},
        {"loss_outputs.flags overlaps loss_outputs.weight, must lie apart from it",
         [](call& c) { c.to.flags = static_cast<std::uint16_t*>(c.to.weight.data); }, differs, refused_by::loss},
        {"loss_outputs.gradient overlaps workspace.data, must lie apart from it",
         [](call& c) { c.to.gradient.data = c.room.data; }, differs, refused_by::loss},
        {"report overlaps totals, must lie apart from it",
         [](call& c) { c.report = static_cast<asyncrl::loss_report*>(static_cast<void*>(c.sums)); }, differs, refused_by::loss},
        {"report overlaps loss_outputs.loss, must lie apart from it",
         [](call& c) { c.report = static_cast<asyncrl::loss_report*>(c.to.loss.data); }, differs, refused_by::loss},
    };
    return all;
}

}  // namespace

TEST_CASE("misuse is cudaErrorInvalidValue, is put in words, launches and writes nothing") {
    laid_out const b = small_batch();
    method m;
    m.kind = methods::loss::clip_tis;
    for (misuse const& wrong : every_misuse()) {
        INFO(wrong.words);
        device::on_device const d(b);
        call c{d.batch, d.to, d.sums(), d.report(), d.room()};
        REQUIRE(device::measure_refusal(m, c.batch, c.sums, c.room) == "");
        REQUIRE(device::policy_loss_refusal(m, c.batch, c.sums, c.to, c.report, c.room, c.options) == "");
        wrong.spoil(c);
        auto const measure = [&](cudaStream_t stream) { return device::measure(m, c.batch, c.sums, c.room, stream); };
        auto const policy_loss = [&](cudaStream_t stream) {
            return device::policy_loss(m, c.batch, c.sums, c.to, c.report, c.room, c.options, stream);
        };
        std::string const of_measure = device::measure_refusal(m, c.batch, c.sums, c.room);
        std::string const of_loss = device::policy_loss_refusal(m, c.batch, c.sums, c.to, c.report, c.room, c.options);
        CAPTURE(of_measure, of_loss);
        if (wrong.by != refused_by::loss) {
            REQUIRE(device::refused_before_any_launch(measure));
            REQUIRE(device::is_like(of_measure, wrong.words));
        } else {
            REQUIRE(of_measure == "");
        }
        if (wrong.by != refused_by::measure) {
            REQUIRE(device::refused_before_any_launch(policy_loss));
            REQUIRE(device::is_like(of_loss, wrong.words));
        }
        if (wrong.host == same) {
            REQUIRE(host_refusal(m, b, wrong) == "asyncrl: " + of_loss);
        }
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    }
    REQUIRE(device::difference_from_host(m, b) == "");
}

TEST_CASE("where a call launches there are no words, whatever the layout") {
    source random(3);
    for (layout const& how : {layout{}, layout{.packed = true}, layout{.token_stride = -3, .row_gap = 5, .shift = 1},
                              layout{.packed = true, .wide_offsets = true, .masked = false, .row_advantage = true}}) {
        oracle::batch rows = random_batch(random, {9, 9, 9});
        for (oracle::row& row : rows) {
            for (oracle::token& t : row) {
                t.active = t.active || !how.masked;
            }
        }
        laid_out const b(rows, {}, how);
        for (methods::loss const kind : methods::every_loss) {
            method m;
            m.kind = kind;
            device::on_device const d(b);
            REQUIRE(device::measure_refusal(m, d.batch, d.sums(), d.room()) == "");
            REQUIRE(device::policy_loss_refusal(m, d.batch, d.sums(), d.to, d.report(), d.room(), {}) == "");
            d.measure(m);
            d.policy_loss(m);
            device::must(cudaDeviceSynchronize());
        }
    }
}

TEST_CASE("views of one array and buffers that touch are no overlap") {
    laid_out const b = small_batch();
    method m;
    m.kind = methods::loss::clip_tis;
    device::outcome const want = device::run(m, b);
    constexpr std::int64_t fields = 4;
    constexpr std::int64_t positions = 80;
    // log_prob, gradient, loss and weight of a token beside each other, the workspace in front, the flags behind.
    std::size_t const front = device::workspace_bytes(b.batch);
    std::size_t const bytes = front + positions * (fields * sizeof(float) + sizeof(std::uint16_t));
    std::vector<unsigned char> host(bytes, 0xff);
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t row, std::int64_t position) {
        auto const value = static_cast<float>(b.log_prob.get(r, t));
        std::memcpy(host.data() + front + static_cast<std::size_t>((row * 40 + position) * fields) * sizeof value, &value,
                    sizeof value);
    });
    device::guarded const all(bytes);
    device::must(cudaMemcpy(all.data(), host.data(), bytes, cudaMemcpyHostToDevice));
    auto* const field = reinterpret_cast<float*>(static_cast<std::byte*>(all.data()) + front);
    auto const view = [&](int i) { return asyncrl::output_column{field + i, dtype::f32, 40 * fields, fields}; };

    device::on_device d(b);
    d.batch.log_prob = view(0);
    d.to = {view(1), view(2), view(3), reinterpret_cast<std::uint16_t*>(field + positions * fields)};
    device::scratch const room{all.data(), front};
    REQUIRE(device::policy_loss_refusal(m, d.batch, d.sums(), d.to, d.report(), room, {}) == "");
    device::must(device::measure(m, d.batch, d.sums(), room, nullptr));
    device::must(device::policy_loss(m, d.batch, d.sums(), d.to, d.report(), room, {}, nullptr));
    device::must(cudaMemcpy(host.data(), all.data(), bytes, cudaMemcpyDeviceToHost));
    REQUIRE(all.guards_hold());
    std::size_t at = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        std::uint32_t got[fields];
        std::uint16_t flags = 0;
        std::memcpy(got, host.data() + front + at * sizeof got, sizeof got);
        std::memcpy(&flags, host.data() + front + positions * sizeof got + at * sizeof flags, sizeof flags);
        bool const agree = got[1] == want.out.gradient.bits(r, t) && got[2] == want.out.loss.bits(r, t) &&
                           got[3] == want.out.weight.bits(r, t) && flags == want.out.flags(at);
        if (!agree) {
            FAIL("[" << r << "][" << t << "] differs");
        }
        ++at;
    });

    // A step further they do overlap.
    d.to.loss = view(1);
    REQUIRE(device::policy_loss_refusal(m, d.batch, d.sums(), d.to, d.report(), room, {}) ==
            "loss_outputs.loss overlaps loss_outputs.gradient, must lie apart from it");
    d.to.loss = view(2);
    d.to.flags = reinterpret_cast<std::uint16_t*>(field + positions * fields - 1);
    REQUIRE(device::policy_loss_refusal(m, d.batch, d.sums(), d.to, d.report(), room, {}) ==
            "loss_outputs.flags overlaps loss_outputs.weight, must lie apart from it");
}

TEST_CASE("an output may lie where a column lies that the objective does not need") {
    laid_out const b = small_batch();
    method m;
    m.kind = methods::loss::gradient;
    device::on_device d(b);
    d.batch.old_log_prob = d.to.gradient;
    d.batch.rollout_log_prob = {static_cast<std::byte*>(d.to.loss.data) + 1, dtype::f32, 40, 1};
    REQUIRE(device::policy_loss_refusal(m, d.batch, d.sums(), d.to, d.report(), d.room(), {}) == "");
    m.kind = methods::loss::clip;
    REQUIRE(device::policy_loss_refusal(m, d.batch, d.sums(), d.to, d.report(), d.room(), {}) ==
            "loss_outputs.gradient overlaps token_batch.old_log_prob, must lie apart from it");
}

TEST_CASE("version, flags and segments are refused in words where an objective reads them") {
    std::uint32_t const needs = std::uint32_t{asyncrl::reads_version} | asyncrl::reads_keep | asyncrl::has_sequences;
    source random(4);
    laid_out const b(random_batch(random, {40, 40}), {}, {.packed = true});
    device::on_device const d(b);
    asyncrl::token_batch complete = d.batch;
    device::guarded const more(1024);
    complete.version = {more.data(), dtype::i32, 0, 1};
    complete.keep = {more.as<std::byte>() + 320, dtype::u8, 0, 1};
    complete.policy_version_at = more.as<std::int64_t>() + 50;
    complete.segments = more.as<std::int32_t>() + 102;
    complete.segment_count = 5;
    complete.policy_version = -1;  // not read beside the pointer
    struct spoilt {
        char const* words;
        std::function<void(asyncrl::token_batch&)> spoil;
    };
    std::vector<spoilt> const all{
        {"", [](asyncrl::token_batch&) {}},
        {"token_batch.version is absent, but the objective needs it", [](asyncrl::token_batch& t) { t.version = {}; }},
        {"token_batch.version has dtype u8, must be i32 or i64", [](asyncrl::token_batch& t) { t.version.type = dtype::u8; }},
        {"token_batch.policy_version = -1, must be >= 0", [](asyncrl::token_batch& t) { t.policy_version_at = nullptr; }},
        {"token_batch.policy_version_at = 0x*, must be a multiple of 8",
         [](asyncrl::token_batch& t) { t.policy_version_at = behind(t.policy_version_at, 4); }},
        {"totals overlaps token_batch.policy_version_at, must lie apart from it",
         [&](asyncrl::token_batch& t) { t.policy_version_at = &d.sums()->counts.tokens; }},
        {"token_batch.keep is absent, but the objective needs it", [](asyncrl::token_batch& t) { t.keep = {}; }},
        {"token_batch.keep has dtype i64, must be u8", [](asyncrl::token_batch& t) { t.keep.type = dtype::i64; }},
        {"totals overlaps token_batch.keep, must lie apart from it",
         [&](asyncrl::token_batch& t) {
             t.keep = {d.sums(), dtype::u8, 0, 0};
         }},
        {"token_batch.segments cut packed rows, but the batch is padded",
         [](asyncrl::token_batch& t) {
             t.offsets = {};
             t.tokens = 40;
         }},
        {"token_batch.segment_count = 1, must be at least token_batch.rows = 2",
         [](asyncrl::token_batch& t) { t.segment_count = 1; }},
        {"workspace.data overlaps token_batch.segments, must lie apart from it",
         [&](asyncrl::token_batch& t) { t.segments = static_cast<std::int32_t const*>(d.room().data); }},
    };
    for (spoilt const& one : all) {
        asyncrl::token_batch batch = complete;
        one.spoil(batch);
        device::guarded const room(device::workspace_bytes(complete));
        device::scratch const scratch =
            std::string(one.words).rfind("workspace", 0) == 0 ? d.room() : device::scratch{room.data(), room.bytes()};
        std::string const words = device::refusal_by_needs(needs, batch, d.sums(), scratch);
        CAPTURE(one.words, words);
        REQUIRE(device::is_like(words, one.words));
        REQUIRE(device::refusal_by_needs(0, complete, d.sums(), scratch) == "");
    }
}

TEST_CASE("a stored objective needs memory for its numbers") {
    laid_out const b = small_batch();
    device::on_device const d(b);
    device::guarded const numbers(64);
    cudaError_t error = cudaSuccess;
    for (void* const at : {static_cast<void*>(nullptr), behind(numbers.data(), 8)}) {
        REQUIRE(device::stored_refusal(at, d.batch, d.sums(), d.room(), error) ==
                "stored_objective has its numbers at an address that is null or no multiple of 16: they need device memory");
        REQUIRE(error == cudaErrorInvalidValue);
    }
    REQUIRE(d.untouched());
    REQUIRE(device::stored_refusal(numbers.data(), d.batch, d.sums(), d.room(), error) == "");
    REQUIRE(error == cudaSuccess);
    device::must(cudaDeviceSynchronize());
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
