// SPDX-License-Identifier: Apache-2.0
// The mismatch of two policies on the device against the host's call, which has tests of its own.
#include "catch.hpp"
#include "correction/support/compare.hpp"
#include "support/device_memory.hpp"
#include "support/mismatch_calls.hpp"
#include "support/refusals.hpp"

#include <asyncrl/correction/mismatch.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

using namespace support;
using asyncrl::mismatch_options;
using asyncrl::mismatch_report;
using asyncrl::policy_pair;
using device::must;

namespace {

policy_pair const every_pair[] = {policy_pair::old_rollout, policy_pair::new_rollout, policy_pair::new_old};

std::vector<unsigned char> offset_bytes(laid_out const& b) {
    std::size_t const width = b.how().wide_offsets ? 8 : 4;
    std::vector<unsigned char> bytes(b.batch.packed() ? static_cast<std::size_t>(b.batch.rows + 1) * width : 1);
    for (std::int64_t row = 0; b.batch.packed() && row <= b.batch.rows; ++row) {
        std::int64_t const offset = b.batch.offsets[row];  // little endian: its low half comes first
        std::memcpy(bytes.data() + static_cast<std::size_t>(row) * width, &offset, width);
    }
    return bytes;
}

/// A batch, a report and a workspace in device memory.
class on_device {
  public:
    explicit on_device(laid_out const& b)
        : log_prob_(b.log_prob),
          old_log_prob_(b.old_log_prob),
          rollout_log_prob_(b.rollout_log_prob),
          mask_(b.mask),
          offsets_(offset_bytes(b)),
          report_(sizeof(mismatch_report)),
          room_(device::mismatch_workspace_bytes(b.batch)),
          batch(b.batch),
          report(report_.as<mismatch_report>()),
          room(room_.data()),
          bytes(room_.bytes()) {
        batch.log_prob = log_prob_.in();
        batch.old_log_prob = old_log_prob_.in();
        batch.rollout_log_prob = rollout_log_prob_.in();
        batch.advantage = {};
        batch.mask = b.batch.mask ? mask_.in() : asyncrl::column{};
        if (b.batch.packed()) {
            void const* const data = offsets_.data();
            batch.offsets = b.how().wide_offsets ? asyncrl::row_offsets(static_cast<std::int64_t const*>(data))
                                                 : asyncrl::row_offsets(static_cast<std::int32_t const*>(data));
        }
    }

    [[nodiscard]] cudaError_t call(mismatch_options const& options, unsigned blocks = 0, cudaStream_t stream = nullptr) const {
        return device::mismatch(batch, report, room, bytes, options, blocks, stream);
    }
    /// Waits for the device. Throws if anything was written but the report and the workspace.
    [[nodiscard]] mismatch_report fetch() const {
        must(cudaDeviceSynchronize());
        if (!report_.guards_hold() || !room_.guards_hold()) {
            throw std::runtime_error("something beside report and workspace was written");
        }
        if (!log_prob_.unchanged() || !old_log_prob_.unchanged() || !rollout_log_prob_.unchanged() || !mask_.unchanged()) {
            throw std::runtime_error("an input was written");
        }
        return report_.value<mismatch_report>();
    }
    [[nodiscard]] bool untouched() const {
        must(cudaDeviceSynchronize());
        return report_.untouched() && room_.untouched();
    }
    /// Other numbers in the same places.
    void rewrite(laid_out const& b) {
        log_prob_.rewrite(b.log_prob);
        old_log_prob_.rewrite(b.old_log_prob);
        rollout_log_prob_.rewrite(b.rollout_log_prob);
        mask_.rewrite(b.mask);
    }

  private:
    device::device_column log_prob_, old_log_prob_, rollout_log_prob_, mask_;
    device::buffer offsets_;
    device::guarded report_, room_;

  public:
    asyncrl::token_batch batch;
    mismatch_report* report;
    void* room;
    std::size_t bytes;
};

mismatch_report run(laid_out const& b, mismatch_options const& options = {}, unsigned blocks = 0) {
    on_device const d(b);
    must(d.call(options, blocks));
    return d.fetch();
}

bool same_bits(mismatch_report const& a, mismatch_report const& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Where the device differs from the host, empty if nowhere.
std::string difference_from_host(laid_out const& b, mismatch_options const& options) {
    mismatch_report const got = run(b, options);
    asyncrl::workspace scratch(b.batch);
    mismatch_report const want = asyncrl::mismatch(b.batch, scratch, options);
    differences found;
    tolerance const fits{4e-6, 0};
    found.number("log_ratio", got.sums.log_ratio, want.sums.log_ratio, want.sums.absolute_log_ratio, fits);
    found.number("absolute_log_ratio", got.sums.absolute_log_ratio, want.sums.absolute_log_ratio, fits);
    found.number("k3", got.sums.k3, want.sums.k3, fits);
    found.number("total_variation", got.sums.total_variation, want.sums.total_variation, {4e-6, 1e-7});
    found.number("raw", got.sums.raw, want.sums.raw, fits);
    found.number("raw_squared", got.sums.raw_squared, want.sums.raw_squared, fits);
    found.number("truncated", got.sums.truncated, want.sums.truncated, fits);
    found.number("truncated_squared", got.sums.truncated_squared, want.sums.truncated_squared, fits);
    found.number("masked", got.sums.masked, want.sums.masked, fits);
    found.number("masked_squared", got.sums.masked_squared, want.sums.masked_squared, fits);
    found.count("tokens", got.counts.tokens, want.counts.tokens);
    found.count("sequences", got.counts.sequences, want.counts.sequences);
    found.count("below_one", got.counts.below_one, want.counts.below_one);
    found.count("at_cap", got.counts.at_cap, want.counts.at_cap);
    found.count("out_of_band", got.counts.out_of_band, want.counts.out_of_band);
    found.count("unscored", got.counts.unscored, want.counts.unscored);
    found.count("nonfinite", got.counts.nonfinite, want.counts.nonfinite);
    found.count("overflow", got.counts.overflow, want.counts.overflow);
    found.check(got.maxima.log_ratio == want.maxima.log_ratio, "largest ", got.maxima.log_ratio);
    found.check(got.maxima.negated_log_ratio == want.maxima.negated_log_ratio, "smallest ", got.maxima.negated_log_ratio);
    auto const sequence = [&](double is, double should_be) {
        found.check(is == should_be || std::abs(is - should_be) <= 1e-12 * std::max(1.0, want.sums.absolute_log_ratio),
                    "a sequence's log ratio is ", is, ", expected ", should_be);
    };
    sequence(got.maxima.sequence_log_ratio, want.maxima.sequence_log_ratio);
    sequence(got.maxima.negated_sequence_log_ratio, want.maxima.negated_sequence_log_ratio);
    found.check(got.histogram.buckets == want.histogram.buckets, "histograms differ");
    return found.text();
}

oracle::row with_log_ratios(std::vector<double> const& e) {
    oracle::row r;
    for (double const x : e) {
        r.push_back({.log_prob = -1, .old_log_prob = -1, .rollout_log_prob = -1 - x, .advantage = 1});
    }
    return r;
}

}  // namespace

TEST_CASE("raw, truncated and masked means of weights 0.607, 12.18 and 0.819 are three different numbers") {
    using sums = mismatch_report::sum_range;
    mismatch_report const r = run(laid_out({with_log_ratios({-0.5, 2.5, -0.2})}), {.cap = 5, .low = 0.5, .high = 5});
    REQUIRE_THAT(r.mean(&sums::raw), Catch::Matchers::WithinRel(4.5359187, 1e-6));
    REQUIRE_THAT(r.mean(&sums::truncated), Catch::Matchers::WithinRel(2.141754, 1e-6));
    REQUIRE_THAT(r.mean(&sums::masked), Catch::Matchers::WithinRel(0.4750873, 1e-6));
    REQUIRE(r.counts.out_of_band == 1);
    REQUIRE(r.counts.at_cap == 1);
    REQUIRE(r.counts.below_one == 2);
    REQUIRE_THAT(r.largest_sequence_ratio(), Catch::Matchers::WithinRel(std::exp(1.8), 1e-6));
}

TEST_CASE("random batches of every shape, dtype and pair agree with the host") {
    source random(1);
    dtype const kinds[] = {dtype::f32, dtype::bf16, dtype::f16};
    for (int round = 0; round < 48; ++round) {
        layout how;
        how.packed = random.chance(0.5);
        how.wide_offsets = random.chance(0.5);
        how.masked = random.chance(0.8);
        how.token_stride = random.pick<std::int64_t>({1, 1, 1, 3, -1});
        how.row_gap = random.pick<std::int64_t>({0, 0, 5});
        how.shift = random.pick<std::int64_t>({0, 0, 1});
        how.unscored = random.chance(0.5) ? not_a_number : -9999;
        types stored;
        if (random.chance(0.6)) {
            stored = {random.pick(kinds), random.pick(kinds), random.pick(kinds), dtype::f32, dtype::f32};
        }
        recipe made;
        if (!how.masked) {
            made.active = 1;
            made.dead_rows = 0;
        }
        std::int64_t const length = random.pick<std::int64_t>({1, 2, 31, 32, 33, 255, 257, 1024, 2049});
        std::int64_t const count = length > 1000 ? 2 : 1 + random.below(5);
        std::vector<std::int64_t> const lengths = how.packed
                                                      ? random_lengths(random, 1 + random.below(3000))
                                                      : std::vector<std::int64_t>(static_cast<std::size_t>(count), length);
        laid_out const b(random_batch(random, lengths, made), stored, how);
        mismatch_options const options{every_pair[round % 3], random.pick({1.2, 2.0, 5.0}), random.pick({0.0, 0.5}), 5};
        INFO(round);
        REQUIRE(difference_from_host(b, options) == "");
    }
}

TEST_CASE("long rows, empty rows and many short rows agree with the host") {
    source random(2);
    laid_out const rows(random_batch(random, {5000, 0, 1, 2048, 0}), {}, {.packed = true});
    laid_out const many(random_batch(random, std::vector<std::int64_t>(500, 7)));
    for (policy_pair const pair : every_pair) {
        REQUIRE(difference_from_host(rows, {.pair = pair}) == "");
        REQUIRE(difference_from_host(many, {.pair = pair}) == "");
    }
}

TEST_CASE("tokens that are not finite, weights beyond 2^30 and batches on policy agree with the host") {
    source random(3);
    oracle::batch rows = random_batch(random, {600, 600});
    for (oracle::row& r : rows) {
        for (std::size_t t = 0; t < r.size(); t += 7) {
            double const kinds[] = {not_a_number, infinity, -infinity, -40, -100};
            (t % 2 == 0 ? r[t].old_log_prob : r[t].rollout_log_prob) = kinds[(t / 7) % 5];
        }
    }
    oracle::batch on_policy = random_batch(random, {600, 600});
    for (oracle::row& r : on_policy) {
        for (oracle::token& t : r) {
            t.rollout_log_prob = t.log_prob = t.old_log_prob;
        }
    }
    laid_out const odd(rows, {}, {.unscored = -9999});
    laid_out const calm(on_policy);
    for (policy_pair const pair : every_pair) {
        REQUIRE(difference_from_host(odd, {.pair = pair}) == "");
        REQUIRE(difference_from_host(calm, {.pair = pair}) == "");
    }
}

TEST_CASE("batches without positions, and without an active token, get an empty report") {
    laid_out const none{oracle::batch{}};
    laid_out const empty(oracle::batch(3), {}, {.packed = true});
    source random(4);
    laid_out const dead(random_batch(random, {50, 50}, {.active = 0}));
    for (laid_out const* b : {&none, &empty, &dead}) {
        REQUIRE(same_bits(run(*b), mismatch_report{}));
    }
}

TEST_CASE("run, grid, layout and what stands under the mask change no bit of the report") {
    source random(5);
    oracle::batch rows = random_batch(random, std::vector<std::int64_t>(4, 1700), {.dead_rows = 0, .garbage = false});
    laid_out const b(rows);
    mismatch_report const want = run(b);
    for (unsigned const blocks : {0U, 1U, 2U, 3U, 50U}) {
        REQUIRE(same_bits(run(b, {}, blocks), want));
    }
    REQUIRE(same_bits(run(laid_out(rows, {}, {.packed = true})), want));
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            if (!t.active) {
                t.log_prob = random_garbage(random);
                t.old_log_prob = random_garbage(random);
                t.rollout_log_prob = random_garbage(random);
            }
        }
    }
    REQUIRE(same_bits(run(laid_out(rows)), want));
}

TEST_CASE("the call is captured, and a replay reads what the columns hold then") {
    source random(6);
    laid_out const first(random_batch(random, {900, 900}));
    laid_out const second(random_batch(random, {900, 900}));
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    on_device d(first);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(d.call({}, 0, stream));
    must(cudaStreamEndCapture(stream, &graph));
    REQUIRE(d.untouched());
    must(cudaGraphInstantiate(&replay, graph, 0));
    for (laid_out const* const b : {&first, &second, &first}) {
        d.rewrite(*b);
        must(cudaGraphLaunch(replay, stream));
        must(cudaStreamSynchronize(stream));
        REQUIRE(same_bits(d.fetch(), run(*b)));
    }
    must(cudaGraphExecDestroy(replay));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
}

TEST_CASE("only the pair's two columns are needed") {
    source random(7);
    laid_out const b(random_batch(random, {100, 100}));
    for (policy_pair const pair : every_pair) {
        mismatch_report const want = run(b, {.pair = pair});
        on_device d(b);
        asyncrl::column& unused = pair == policy_pair::old_rollout   ? d.batch.log_prob
                                  : pair == policy_pair::new_rollout ? d.batch.old_log_prob
                                                                     : d.batch.rollout_log_prob;
        unused = {};
        must(d.call({.pair = pair}));
        REQUIRE(same_bits(d.fetch(), want));
    }
}

TEST_CASE("what cannot be meant is cudaErrorInvalidValue, is put in words, launches and writes nothing") {
    struct misuse {
        std::string words;  ///< `*`: an address or a size
        std::function<void(on_device&, mismatch_options&)> spoil;
    };
    std::vector<misuse> const all{
        {"token_batch.rows = -1, must be >= 0", [](on_device& d, mismatch_options&) { d.batch.rows = -1; }},
        {"token_batch.old_log_prob is absent, but the objective needs it",
         [](on_device& d, mismatch_options&) { d.batch.old_log_prob = {}; }},
        {"token_batch.rollout_log_prob is absent, but the objective needs it",
         [](on_device& d, mismatch_options&) { d.batch.rollout_log_prob = {}; }},
        {"token_batch.log_prob is absent, but the objective needs it",
         [](on_device& d, mismatch_options& o) {
             d.batch.log_prob = {};
             o.pair = policy_pair::new_rollout;
         }},
        {"token_batch.old_log_prob has dtype f64, must be f32, bf16 or f16",
         [](on_device& d, mismatch_options&) { d.batch.old_log_prob.type = dtype::f64; }},
        {"token_batch.mask has dtype f32, must be u8", [](on_device& d, mismatch_options&) { d.batch.mask.type = dtype::f32; }},
        {"report = null, must point to device memory", [](on_device& d, mismatch_options&) { d.report = nullptr; }},
        {"workspace.data = null, must point to device memory", [](on_device& d, mismatch_options&) { d.room = nullptr; }},
        {"workspace.bytes = *, must be at least 512 (mismatch_workspace_bytes of this batch)",
         [](on_device& d, mismatch_options&) { --d.bytes; }},
        {"workspace.data = 0x*, must be a multiple of 256",
         [](on_device& d, mismatch_options&) { d.room = static_cast<std::byte*>(d.room) + 128; }},
        {"mismatch_options.cap = 0, must be finite and > 0", [](on_device&, mismatch_options& o) { o.cap = 0; }},
        {"mismatch_options.cap = inf, must be finite and > 0", [](on_device&, mismatch_options& o) { o.cap = infinity; }},
        {"mismatch_options.low = -1, must be >= 0", [](on_device&, mismatch_options& o) { o.low = -1; }},
        {"mismatch_options.high = 0.25, must be greater than mismatch_options.low",
         [](on_device&, mismatch_options& o) { o.high = 0.25; }},
        {"mismatch_options.high = nan, must be greater than mismatch_options.low",
         [](on_device&, mismatch_options& o) { o.high = not_a_number; }},
        {"token_batch.rollout_log_prob = 0x*, must be a multiple of 4",
         [](on_device& d, mismatch_options&) {
             d.batch.rollout_log_prob.data = static_cast<std::byte const*>(d.batch.rollout_log_prob.data) + 1;
         }},
        {"report overlaps token_batch.old_log_prob, must lie apart from it",
         [](on_device& d, mismatch_options& o) {
             o.pair = policy_pair::new_old;
             d.batch.old_log_prob = {reinterpret_cast<float*>(d.report) + 2, dtype::f32, 1, 0};
         }},
        {"report overlaps workspace.data, must lie apart from it",
         [](on_device& d, mismatch_options&) { d.report = static_cast<mismatch_report*>(d.room); }},
        {"workspace.data overlaps token_batch.mask, must lie apart from it",
         [](on_device& d, mismatch_options&) { d.batch.mask.data = d.room; }},
    };
    source random(8);
    laid_out const b(random_batch(random, {40, 40}));
    for (misuse const& wrong : all) {
        on_device d(b);
        mismatch_options options;
        auto const refusal = [&] { return device::mismatch_refusal(d.batch, d.report, d.room, d.bytes, options); };
        REQUIRE(refusal() == "");
        wrong.spoil(d, options);
        std::string const words = refusal();
        CAPTURE(wrong.words, words);
        REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) { return d.call(options, 0, on); }));
        REQUIRE(device::is_like(words, wrong.words));
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    }
}
