// SPDX-License-Identifier: Apache-2.0
// Advantages on the device against the host's calls, which have tests of their own, and against values written down.
#include "catch.hpp"
#include "support/advantage_calls.hpp"
#include "support/device_memory.hpp"
#include "support/refusals.hpp"

#include <asyncrl/correction/advantage.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace support;
using asyncrl::recursion_report;
using Catch::Matchers::WithinAbs;
using device::must;

namespace {

struct token {
    double reward = 0;
    double value = 0;
    double action_value = 0;
    double old_log_prob = -1;
    double rollout_log_prob = -1;
    bool active = true;
    bool scored = true;
};

struct sequence {
    std::vector<token> tokens;
    double bootstrap = 0;
};

enum class method { gae, vtrace, retrace };
method const every_method[] = {method::gae, method::vtrace, method::retrace};

struct settings {
    double gamma = 1;
    double lambda = 1;
    double rho_bar = 1;
    double c_bar = 1;
};

struct layout {
    bool packed = false;
    bool wide_offsets = false;
    std::int64_t token_stride = 1;
    std::int64_t row_gap = 0;
    double unscored = not_a_number;
};

struct outcome {
    memory advantage, target;
    recursion_report report;

    [[nodiscard]] bool same_bits(outcome const& other) const {
        return advantage.bytes() == other.advantage.bytes() && target.bytes() == other.target.bytes() &&
               std::memcmp(&report, &other.report, sizeof report) == 0;
    }
};

/// Sequences as columns in the host's memory. Rows of a padded batch have equal lengths.
class laid_out {
  public:
    laid_out(std::vector<sequence> rows, dtype type, layout how = {}) : values(std::move(rows)), wide(how.wide_offsets) {
        where.packed = how.packed;
        std::int64_t offset = 0;
        narrow_offsets.push_back(0);
        wide_offsets.push_back(0);
        for (sequence const& s : values) {
            where.lengths.push_back(static_cast<std::int64_t>(s.tokens.size()));
            offset += where.lengths.back();
            narrow_offsets.push_back(static_cast<std::int32_t>(offset));
            wide_offsets.push_back(offset);
        }
        step = {how.packed ? 0 : where.tokens() * std::abs(how.token_stride) + how.row_gap, how.token_stride};
        for (memory* m : {&reward, &value, &action_value, &old_log_prob, &rollout_log_prob}) {
            *m = memory(type, step, where);
        }
        fresh = memory(type, step, where);
        mask = memory(dtype::u8, step, where, 0x5a);
        bootstrap = memory(type, {1, 0}, {false, std::vector<std::int64_t>(values.size(), 1)});
        where.each([&](std::size_t b, std::size_t t, std::int64_t, std::int64_t) {
            token const& x = values[b].tokens[t];
            reward.put(b, t, x.reward);
            value.put(b, t, x.value);
            action_value.put(b, t, x.action_value);
            old_log_prob.put(b, t, x.old_log_prob);
            rollout_log_prob.put(b, t, x.scored ? x.rollout_log_prob : how.unscored);
            mask.put(b, t, x.active ? 1 + static_cast<double>(t % 3) : 0);
        });
        for (std::size_t b = 0; b < values.size(); ++b) {
            bootstrap.put(b, 0, values[b].bootstrap);
        }
        batch.rows = where.rows();
        batch.tokens = where.tokens();
        batch.unscored = how.unscored;
    }
    laid_out(laid_out const&) = delete;
    laid_out& operator=(laid_out const&) = delete;

    std::vector<sequence> values;
    bool wide;
    grid where;
    strides step;
    memory reward, value, action_value, old_log_prob, rollout_log_prob, mask, bootstrap;
    memory fresh;  ///< what an output holds before the call
    std::vector<std::int32_t> narrow_offsets;
    std::vector<std::int64_t> wide_offsets;
    asyncrl::token_batch batch;  ///< without columns and offsets
};

outcome on_host(laid_out const& b, method m, settings const& s) {
    outcome out{b.fresh, b.fresh, {}};
    asyncrl::token_batch batch = b.batch;
    if (b.where.packed) {
        batch.offsets = b.wide ? asyncrl::row_offsets(b.wide_offsets.data()) : asyncrl::row_offsets(b.narrow_offsets.data());
    }
    batch.mask = b.mask.in();
    batch.old_log_prob = b.old_log_prob.in();
    batch.rollout_log_prob = b.rollout_log_prob.in();
    asyncrl::value_columns const values{b.reward.in(), b.value.in(), b.action_value.in(), b.bootstrap.in()};
    asyncrl::advantage_outputs const to{out.advantage.out(), out.target.out()};
    out.report =
        m == method::gae ? asyncrl::gae(batch, values, to, {.gamma = s.gamma, .lambda = s.lambda})
        : m == method::vtrace
            ? asyncrl::vtrace(batch, values, to, {.gamma = s.gamma, .lambda = s.lambda, .rho_bar = s.rho_bar, .c_bar = s.c_bar})
            : asyncrl::retrace(batch, values, to, {.gamma = s.gamma, .lambda = s.lambda});
    return out;
}

template <typename Number>
std::vector<unsigned char> bytes_of_numbers(std::vector<Number> const& numbers) {
    std::vector<unsigned char> bytes(numbers.size() * sizeof(Number));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
}

/// A batch and its outputs in device memory.
class on_device {
  public:
    explicit on_device(laid_out const& b)
        : host_(b),
          reward_(b.reward),
          value_(b.value),
          action_value_(b.action_value),
          old_log_prob_(b.old_log_prob),
          rollout_log_prob_(b.rollout_log_prob),
          mask_(b.mask),
          bootstrap_(b.bootstrap),
          offsets_(b.wide ? bytes_of_numbers(b.wide_offsets) : bytes_of_numbers(b.narrow_offsets)),
          advantage_(b.fresh),
          target_(b.fresh),
          report_(sizeof(recursion_report)),
          batch(b.batch) {
        if (b.where.packed) {
            void const* const data = offsets_.data();
            batch.offsets = b.wide ? asyncrl::row_offsets(static_cast<std::int64_t const*>(data))
                                   : asyncrl::row_offsets(static_cast<std::int32_t const*>(data));
        }
        batch.mask = mask_.in();
        batch.old_log_prob = old_log_prob_.in();
        batch.rollout_log_prob = rollout_log_prob_.in();
        values = {reward_.in(), value_.in(), action_value_.in(), bootstrap_.in()};
        to = {advantage_.out(), target_.out()};
    }

    [[nodiscard]] recursion_report* report() const { return report_.as<recursion_report>(); }
    [[nodiscard]] cudaError_t call(method m, settings const& s, unsigned blocks = 0, cudaStream_t stream = nullptr) const {
        switch (m) {
            case method::gae:
                return device::gae(batch, values, to, report(), {.gamma = s.gamma, .lambda = s.lambda}, blocks, stream);
            case method::vtrace:
                return device::vtrace(batch, values, to, report(),
                                      {.gamma = s.gamma, .lambda = s.lambda, .rho_bar = s.rho_bar, .c_bar = s.c_bar}, blocks,
                                      stream);
            case method::retrace:
                break;
        }
        return device::retrace(batch, values, to, report(), {.gamma = s.gamma, .lambda = s.lambda}, blocks, stream);
    }
    [[nodiscard]] std::string refusal(method m, settings const& s) const {
        switch (m) {
            case method::gae:
                return device::gae_refusal(batch, values, to, report(), {.gamma = s.gamma, .lambda = s.lambda});
            case method::vtrace:
                return device::vtrace_refusal(batch, values, to, report(),
                                              {.gamma = s.gamma, .lambda = s.lambda, .rho_bar = s.rho_bar, .c_bar = s.c_bar});
            case method::retrace:
                break;
        }
        return device::retrace_refusal(batch, values, to, report(), {.gamma = s.gamma, .lambda = s.lambda});
    }
    /// Waits for the device. Throws if anything was written that is not an output.
    [[nodiscard]] outcome fetch() const {
        must(cudaDeviceSynchronize());
        outcome out{host_.fresh, host_.fresh, report_.value<recursion_report>()};
        advantage_.fetch(out.advantage);
        target_.fetch(out.target);
        if (!report_.guards_hold() || !out.advantage.guards_hold() || !out.target.guards_hold()) {
            throw std::runtime_error("something beside the outputs was written");
        }
        for (device::device_column const* c :
             {&reward_, &value_, &action_value_, &old_log_prob_, &rollout_log_prob_, &mask_, &bootstrap_}) {
            if (!c->unchanged()) {
                throw std::runtime_error("an input was written");
            }
        }
        return out;
    }
    [[nodiscard]] bool untouched() const {
        must(cudaDeviceSynchronize());
        return report_.untouched() && advantage_.unchanged() && target_.unchanged();
    }
    /// Other numbers in the same places.
    void rewrite(laid_out const& b) {
        reward_.rewrite(b.reward);
        value_.rewrite(b.value);
        action_value_.rewrite(b.action_value);
        old_log_prob_.rewrite(b.old_log_prob);
        rollout_log_prob_.rewrite(b.rollout_log_prob);
        mask_.rewrite(b.mask);
        bootstrap_.rewrite(b.bootstrap);
    }

  private:
    laid_out const& host_;
    device::device_column reward_, value_, action_value_, old_log_prob_, rollout_log_prob_, mask_, bootstrap_;
    device::buffer offsets_;
    device::device_column advantage_, target_;
    device::guarded report_;

  public:
    asyncrl::token_batch batch;
    asyncrl::value_columns values;
    asyncrl::advantage_outputs to;
};

outcome run(laid_out const& b, method m, settings const& s, unsigned blocks = 0) {
    on_device const d(b);
    must(d.call(m, s, blocks));
    return d.fetch();
}

double tolerance_of(dtype type) {
    return type == dtype::f64 ? 1e-12 : type == dtype::f32 ? 0x1p-23 : type == dtype::f16 ? 0x1p-10 : 0x1p-7;
}

/// Where the device differs from the host: relative to the row's largest number, as differences cancel. Empty if nowhere.
std::string difference(laid_out const& b, outcome const& got, outcome const& want) {
    double const tolerance = tolerance_of(b.fresh.type());
    std::ostringstream text;
    text.precision(17);
    for (std::size_t row = 0; row < b.values.size(); ++row) {
        double size = 0;
        for (std::size_t t = 0; t < b.values[row].tokens.size(); ++t) {
            double const x = std::abs(want.target.get(row, t));
            size = std::isfinite(x) ? std::max(size, x) : size;
        }
        auto const compare = [&](char const* name, std::size_t t, memory const& is, memory const& should_be) {
            double const x = is.get(row, t);
            double const y = should_be.get(row, t);
            bool const agree = std::isfinite(y) ? std::abs(x - y) <= tolerance * size : !std::isfinite(x);
            bool const zero = b.values[row].tokens[t].active || is.bits(row, t) == 0;
            if (text.str().empty() && (!agree || !zero)) {
                text << name << "[" << row << "][" << t << "] is " << x << ", expected " << y;
            }
        };
        for (std::size_t t = 0; t < b.values[row].tokens.size(); ++t) {
            compare("advantage", t, got.advantage, want.advantage);
            compare("target", t, got.target, want.target);
        }
    }
    if (std::memcmp(&got.report, &want.report, sizeof got.report) != 0) {
        text << " reports " << got.report.tokens << ", " << got.report.unscored << ", " << got.report.nonfinite << ", expected "
             << want.report.tokens << ", " << want.report.unscored << ", " << want.report.nonfinite;
    }
    return text.str();
}

std::string difference_from_host(laid_out const& b, method m, settings const& s) {
    return difference(b, run(b, m, s), on_host(b, m, s));
}

void fill_with_garbage(token& x, std::mt19937_64& random) {
    double const kinds[] = {not_a_number, infinity, -infinity, 1e30, -9999, 0};
    for (double* field : {&x.reward, &x.value, &x.action_value, &x.old_log_prob, &x.rollout_log_prob}) {
        *field = kinds[random() % 6];
    }
}

sequence random_sequence(std::mt19937_64& random, std::size_t length, double active_share) {
    std::uniform_real_distribution<double> uniform;
    std::normal_distribution<double> bell;
    sequence s;
    s.bootstrap = random() % 3 == 0 ? 0 : bell(random);
    for (std::size_t i = 0; i < length; ++i) {
        token x;
        x.active = uniform(random) < active_share;
        x.scored = random() % 16 != 0;
        x.reward = random() % 4 == 0 ? bell(random) : 0;
        x.value = bell(random);
        x.action_value = x.value + 0.5 * bell(random);
        x.old_log_prob = -3 * uniform(random);
        x.rollout_log_prob = x.old_log_prob + 0.5 * bell(random);
        if (!x.active) {
            x.scored = true;
            fill_with_garbage(x, random);
        }
        s.tokens.push_back(x);
    }
    return s;
}

/// Rows of the given lengths; a quarter of them without an active token.
std::vector<sequence> random_rows(std::uint64_t seed, std::vector<std::size_t> const& lengths) {
    std::mt19937_64 random(seed);
    std::vector<sequence> rows;
    for (std::size_t const length : lengths) {
        rows.push_back(random_sequence(random, length, random() % 4 == 0 ? 0 : 0.8));
    }
    return rows;
}

/// Four tokens whose numbers are exact in every dtype.
std::vector<sequence> four_tokens(bool masked) {
    sequence s;
    s.bootstrap = 0.125;
    double const reward[] = {0, 0.25, 0, 1};
    double const value[] = {0.5, 0.25, 0.75, 0.5};
    double const log_ratio[] = {0.25, -0.5, 0, 0.125};
    for (std::size_t i = 0; i < 4; ++i) {
        token x;
        x.reward = reward[i];
        x.value = value[i];
        x.action_value = value[i];
        x.old_log_prob = -2 + log_ratio[i];
        x.rollout_log_prob = -2;
        x.active = !masked || i != 2;
        s.tokens.push_back(x);
    }
    return {s};
}

settings const fractions{.gamma = 15.0 / 16, .lambda = 0.75};

void require_column(memory const& got, double const (&want)[4]) {
    for (std::size_t t = 0; t < 4; ++t) {
        CAPTURE(t);
        REQUIRE_THAT(got.get(0, t), WithinAbs(want[t], std::max(tolerance_of(got.type()), 1e-11)));
    }
}

class stream {
  public:
    stream() { must(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
    stream(stream const&) = delete;
    stream& operator=(stream const&) = delete;
    ~stream() { (void)cudaStreamDestroy(handle_); }
    [[nodiscard]] cudaStream_t get() const { return handle_; }

  private:
    cudaStream_t handle_ = nullptr;
};

}  // namespace

TEST_CASE("four tokens have these advantages and targets, in every dtype and layout") {
    for (dtype const type : {dtype::f64, dtype::f32, dtype::bf16, dtype::f16}) {
        for (bool const packed : {false, true}) {
            CAPTURE(static_cast<int>(type), packed);
            laid_out const masked(four_tokens(true), type, {.packed = packed, .token_stride = 2});
            outcome const gae = run(masked, method::gae, fractions);
            require_column(gae.advantage, {0.369092941284, 0.902709960938, 0, 0.6171875});
            require_column(gae.target, {0.869092941284, 1.1527099609375, 0, 1.1171875});
            REQUIRE(gae.advantage.bits(0, 2) == 0);
            REQUIRE(gae.target.bits(0, 2) == 0);
            REQUIRE(gae.report.tokens == 3);

            laid_out const all(four_tokens(false), type, {.packed = packed, .wide_offsets = true, .token_stride = -1});
            outcome const vtrace = run(all, method::vtrace, fractions);
            require_column(vtrace.advantage, {0.195243071112, 0.513301188878, 0.29736328125, 0.6171875});
            require_column(vtrace.target, {0.580026053334, 0.741592609186, 0.902709960938, 1.1171875});

            outcome const retrace = run(all, method::retrace, fractions);
            require_column(retrace.advantage, {0.080026053334, 0.810499191284, 0.152709960938, 0.6171875});
            require_column(retrace.target, {0.580026053334, 1.060499191284, 0.902709960938, 1.1171875});
        }
    }
}

TEST_CASE("rows of every length agree with the host: none, around a warp and around a block") {
    std::vector<std::size_t> const lengths{0, 1, 2, 31, 32, 33, 255, 256, 257, 0, 511, 512, 513, 700, 0};
    std::mt19937_64 random(2);
    int round = 0;
    for (method const m : every_method) {
        for (dtype const type : {dtype::f64, dtype::f32, dtype::bf16, dtype::f16}) {
            layout how{.packed = true};
            how.wide_offsets = random() % 2 == 0;
            how.token_stride = random() % 3 == 0 ? 3 : 1;
            how.unscored = random() % 2 == 0 ? not_a_number : -9999;
            double const shares[] = {0, 0.5, 0.9, 1};
            settings s;
            s.gamma = shares[1 + random() % 3];
            s.lambda = shares[random() % 4];
            double const bars[] = {0.5, 1, 2};
            s.rho_bar = bars[random() % 3];
            s.c_bar = std::min(1.0, bars[random() % 3]);
            laid_out const b(random_rows(random(), lengths), type, how);
            CAPTURE(static_cast<int>(m), static_cast<int>(type), ++round);
            REQUIRE(difference_from_host(b, m, s) == "");
        }
    }
}

TEST_CASE("a row of 5000 tokens agrees with the host, without a discount too") {
    laid_out const b(random_rows(3, {5000}), dtype::f64);
    for (method const m : every_method) {
        REQUIRE(difference_from_host(b, m, {.gamma = 1, .lambda = 1}) == "");
        REQUIRE(difference_from_host(b, m, {.gamma = 0.99, .lambda = 0.95, .rho_bar = infinity, .c_bar = 1}) == "");
    }
}

TEST_CASE("many short rows agree with the host") {
    laid_out const b(random_rows(4, std::vector<std::size_t>(700, 9)), dtype::f32, {.row_gap = 3});
    for (method const m : every_method) {
        REQUIRE(difference_from_host(b, m, {.gamma = 0.9, .lambda = 0.9, .rho_bar = 2, .c_bar = 1.5}) == "");
    }
}

TEST_CASE("optional columns and outputs may be absent") {
    laid_out const b(random_rows(5, {300, 300}), dtype::f64);
    laid_out const all_active(
        [] {
            std::mt19937_64 random(6);
            return std::vector<sequence>{random_sequence(random, 300, 1), random_sequence(random, 300, 1)};
        }(),
        dtype::f64);
    for (method const m : every_method) {
        outcome const whole = run(b, m, fractions);
        on_device d(b);
        d.to.target = {};
        must(d.call(m, fractions));
        outcome const half = d.fetch();
        REQUIRE(half.advantage.bytes() == whole.advantage.bytes());
        REQUIRE(half.target.bytes() == b.fresh.bytes());
        REQUIRE(half.report.nonfinite == whole.report.nonfinite);

        on_device unmasked(all_active);
        unmasked.batch.mask = {};
        must(unmasked.call(m, fractions));
        REQUIRE(unmasked.fetch().same_bits(run(all_active, m, fractions)));

        std::vector<sequence> ended = all_active.values;
        ended[0].bootstrap = ended[1].bootstrap = 0;
        on_device no_bootstrap(all_active);
        no_bootstrap.values.bootstrap = {};
        must(no_bootstrap.call(m, fractions));
        REQUIRE(no_bootstrap.fetch().same_bits(run(laid_out(ended, dtype::f64), m, fractions)));
    }
}

TEST_CASE("layout, run, grid and what stands under the mask change no bit") {
    std::vector<sequence> rows = random_rows(7, std::vector<std::size_t>(5, 300));
    laid_out const b(rows, dtype::f32);
    laid_out const packed(rows, dtype::f32, {.packed = true});
    std::mt19937_64 random(8);
    for (sequence& s : rows) {
        for (token& x : s.tokens) {
            if (!x.active) {
                fill_with_garbage(x, random);
            }
        }
    }
    laid_out const other(rows, dtype::f32);
    for (method const m : every_method) {
        outcome const want = run(b, m, fractions);
        REQUIRE(run(b, m, fractions).same_bits(want));
        REQUIRE(run(other, m, fractions).same_bits(want));
        for (unsigned const blocks : {1U, 2U, 7U}) {
            REQUIRE(run(b, m, fractions, blocks).same_bits(want));
        }
        outcome const flat = run(packed, m, fractions);
        b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
            if (flat.advantage.bits(r, t) != want.advantage.bits(r, t) || flat.target.bits(r, t) != want.target.bits(r, t)) {
                FAIL("packed differs at [" << r << "][" << t << "]");
            }
        });
    }
}

TEST_CASE("what is not finite reaches the outputs that it reaches on the host, and the report") {
    std::mt19937_64 random(9);
    for (double const bad : {not_a_number, infinity}) {
        for (int field = 0; field < 5; ++field) {
            std::vector<sequence> rows{random_sequence(random, 600, 0.9), random_sequence(random, 600, 0.9)};
            token& x = rows[0].tokens[300];
            x.active = x.scored = true;
            x = {.reward = 0.5, .value = 0.25, .action_value = 0.5, .old_log_prob = -1, .rollout_log_prob = -1.5};
            double* const fields[] = {&x.reward, &x.value, &x.action_value, &x.old_log_prob, &x.rollout_log_prob};
            *fields[field] = bad;
            laid_out const b(rows, dtype::f64, {.unscored = -9999});
            for (method const m : every_method) {
                CAPTURE(static_cast<int>(m), field, bad);
                REQUIRE(difference_from_host(b, m, fractions) == "");
            }
        }
    }
}

TEST_CASE("ratios whose product is beyond the largest number carry an error of 0 back as 0") {
    sequence s;
    for (int i = 0; i < 600; ++i) {
        s.tokens.push_back({.reward = i == 0 ? 1.0 : 0.0, .old_log_prob = -1, .rollout_log_prob = -4});  // e^1800
    }
    s.tokens[100].rollout_log_prob = 1000;  // a ratio of 0 behind them
    laid_out const b({s, s}, dtype::f64);
    settings const no_bars{.gamma = 1, .lambda = 1, .rho_bar = infinity, .c_bar = infinity};
    REQUIRE(difference_from_host(b, method::vtrace, no_bars) == "");
    REQUIRE(on_host(b, method::vtrace, no_bars).report.nonfinite == 0);
}

TEST_CASE("batches without positions get an empty report") {
    for (method const m : every_method) {
        laid_out const none({}, dtype::f32);
        laid_out const empty(std::vector<sequence>(3), dtype::f32, {.packed = true});
        for (laid_out const* b : {&none, &empty}) {
            outcome const out = run(*b, m, fractions);
            REQUIRE((out.report.tokens == 0 && out.report.unscored == 0 && out.report.nonfinite == 0));
        }
    }
}

TEST_CASE("recursions are captured on the stream they are given, and each replay works on what the columns hold then") {
    laid_out const first(random_rows(10, {300, 300}), dtype::f32);
    laid_out const second(random_rows(11, {300, 300}), dtype::f32);
    for (method const m : every_method) {
        stream const on;
        on_device d(first);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        must(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeGlobal));
        must(d.call(m, fractions, 0, on.get()));
        must(cudaStreamEndCapture(on.get(), &graph));
        REQUIRE(d.untouched());
        must(cudaGraphInstantiate(&replay, graph, 0));
        for (laid_out const* const b : {&first, &second, &first}) {
            d.rewrite(*b);
            must(cudaGraphLaunch(replay, on.get()));
            must(cudaStreamSynchronize(on.get()));
            REQUIRE(d.fetch().same_bits(run(*b, m, fractions)));
        }
        must(cudaGraphExecDestroy(replay));
        must(cudaGraphDestroy(graph));
    }
}

TEST_CASE("a recursion that cannot be meant is cudaErrorInvalidValue, is put in words, launches and writes nothing") {
    struct misuse {
        std::string words;  ///< `*`: which recursion, or an address
        std::function<void(on_device&, settings&)> spoil;
        bool of_gae = true;
        bool of_vtrace = true;
        bool of_retrace = true;
    };
    std::vector<misuse> const all{
        {"token_batch.rows = -1, must be >= 0", [](on_device& d, settings&) { d.batch.rows = -1; }},
        {"token_batch.tokens = -1, must be >= 0", [](on_device& d, settings&) { d.batch.tokens = -1; }},
        {"token_batch.rows = 4294967296, must be such that rows * tokens fits 64 bits",
         [](on_device& d, settings&) { d.batch.rows = d.batch.tokens = 1LL << 32; }},
        {"value_columns.value is absent, but the recursion needs it", [](on_device& d, settings&) { d.values.value = {}; }},
        {"value_columns.reward is absent, but the recursion needs it", [](on_device& d, settings&) { d.values.reward = {}; }},
        {"value_columns.reward has dtype f64, but value_columns.value has f32: all columns are f64, or each is f32, bf16 or "
         "f16",
         [](on_device& d, settings&) { d.values.reward.type = dtype::f64; }},
        {"value_columns.value has dtype i32, but value_columns.value has i32: all columns are f64, or each is f32, bf16 or f16",
         [](on_device& d, settings&) { d.values.value.type = dtype::i32; }},
        {"value_columns.bootstrap has dtype u8, but value_columns.value has f32: all columns are f64, or each is f32, bf16 or "
         "f16",
         [](on_device& d, settings&) { d.values.bootstrap.type = dtype::u8; }},
        {"token_batch.mask has dtype f32, must be u8", [](on_device& d, settings&) { d.batch.mask.type = dtype::f32; }},
        {"advantage_outputs.advantage has a stride of 0: an output needs an element of its own for every position",
         [](on_device& d, settings&) { d.to.advantage.token_stride = 0; }},
        {"advantage_outputs.target has a stride of 0: an output needs an element of its own for every position",
         [](on_device& d, settings&) { d.to.target.row_stride = 0; }},
        {"advantage_outputs.target has dtype f64, but value_columns.value has f32: all columns are f64, or each is f32, bf16 "
         "or f16",
         [](on_device& d, settings&) { d.to.target.type = dtype::f64; }},
        {"value_columns.reward = 0x*, must be a multiple of 4",
         [](on_device& d, settings&) { d.values.reward.data = static_cast<std::byte const*>(d.values.reward.data) + 2; }},
        {"advantage_outputs.target = 0x*, must be a multiple of 4",
         [](on_device& d, settings&) { d.to.target.data = static_cast<std::byte*>(d.to.target.data) + 1; }},
        {"advantage_outputs.advantage overlaps value_columns.value, must lie apart from it",
         [](on_device& d, settings&) { d.to.advantage.data = const_cast<void*>(d.values.value.data); }},
        {"advantage_outputs.target overlaps advantage_outputs.advantage, must lie apart from it",
         [](on_device& d, settings&) { d.to.target.data = static_cast<float*>(d.to.advantage.data) + 79; }},
        {"advantage_outputs.target overlaps value_columns.bootstrap, must lie apart from it",
         [](on_device& d, settings&) { d.values.bootstrap.data = static_cast<float*>(d.to.target.data) + 1; }},
        {"report overlaps token_batch.mask, must lie apart from it",
         [](on_device& d, settings&) {
             d.batch.mask = {d.report(), dtype::u8, 1, 0};
         }},
        {"*_options.gamma = 1.5, must be in [0, 1]", [](on_device&, settings& s) { s.gamma = 1.5; }},
        {"*_options.gamma = nan, must be in [0, 1]", [](on_device&, settings& s) { s.gamma = not_a_number; }},
        {"*_options.lambda = -0.5, must be in [0, 1]", [](on_device&, settings& s) { s.lambda = -0.5; }},
        {"token_batch.old_log_prob is absent, but the recursion needs it",
         [](on_device& d, settings&) { d.batch.old_log_prob = {}; }, false},
        {"token_batch.rollout_log_prob is absent, but the recursion needs it",
         [](on_device& d, settings&) { d.batch.rollout_log_prob = {}; }, false},
        {"value_columns.action_value is absent, but the recursion needs it",
         [](on_device& d, settings&) { d.values.action_value = {}; }, false, false},
        {"vtrace_options.rho_bar = 0, must be > 0", [](on_device&, settings& s) { s.rho_bar = 0; }, false, true, false},
        {"vtrace_options.c_bar = nan, must be > 0", [](on_device&, settings& s) { s.c_bar = not_a_number; }, false, true,
         false},
    };
    laid_out const b(random_rows(12, {40, 40}), dtype::f32);
    for (misuse const& wrong : all) {
        on_device d(b);
        settings s = fractions;
        for (method const m : every_method) {
            REQUIRE(d.refusal(m, s) == "");
        }
        wrong.spoil(d, s);
        INFO(wrong.words);
        bool const refused[] = {wrong.of_gae, wrong.of_vtrace, wrong.of_retrace};
        for (method const m : every_method) {
            if (refused[static_cast<int>(m)]) {
                std::string const words = d.refusal(m, s);
                CAPTURE(words);
                REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) { return d.call(m, s, 0, on); }));
                REQUIRE(device::is_like(words, wrong.words));
            } else {
                REQUIRE(d.refusal(m, s) == "");
            }
        }
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    }
    on_device const d(b);
    REQUIRE(device::gae(d.batch, d.values, d.to, nullptr, {}, 0, nullptr) == cudaErrorInvalidValue);
    REQUIRE(device::gae_refusal(d.batch, d.values, d.to, nullptr, {}) == "report = null, must point to device memory");
    REQUIRE(d.untouched());
}

TEST_CASE("inputs and outputs of a recursion may be views of one array, or lie where it reads nothing") {
    laid_out const b(random_rows(13, {40, 40}), dtype::f32);
    on_device d(b);
    device::guarded const all(80 * 3 * sizeof(float));
    for (int i = 0; i < 3; ++i) {
        asyncrl::output_column const view{all.as<float>() + i, dtype::f32, 120, 3};
        (i == 0 ? d.to.advantage : d.to.target) = view;
        if (i == 1) {
            d.values.reward = view;
        }
    }
    d.values.action_value = d.to.advantage;
    for (method const m : every_method) {
        std::string const want = m == method::retrace
                                     ? "advantage_outputs.advantage overlaps value_columns.action_value, must lie apart from it"
                                     : "";
        REQUIRE(d.refusal(m, fractions) == want);
    }
}
