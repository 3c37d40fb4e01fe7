// SPDX-License-Identifier: Apache-2.0
// Rows of logits on the device against the host's double loop, which the host's own tests hold against long double.
#include "catch.hpp"
#include "correction/support/softmax_rows.hpp"
#include "support/device_memory.hpp"
#include "support/log_prob_calls.hpp"
#include "support/refusals.hpp"
#include "support/shared_bytes.hpp"

#include <asyncrl/correction/log_prob.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace support;
using asyncrl::log_prob_report;
using device::must;

namespace {

constexpr dtype every_dtype[] = {dtype::f32, dtype::bf16, dtype::f16};

/// Rows and all that a call can be told about them, with how they lie in memory.
struct problem {
    dtype type = dtype::f32;
    std::vector<numbers> rows;
    std::vector<std::int64_t> targets;
    std::vector<std::vector<std::int64_t>> supports;  ///< empty: no lists at all
    std::vector<std::uint8_t> mask;                   ///< empty: none
    double temperature = 1;
    numbers g, h;  ///< empty: absent
    std::int64_t gap = 0, shift = 0;
    bool narrow_ids = false;
    dtype saved = dtype::f64;
    dtype slopes = dtype::f32;
    std::int64_t stride = 1;  ///< of the numbers of rows

    [[nodiscard]] bool in_part(std::size_t row, std::int64_t i) const {
        return supports.empty() || supports[row].empty() || targets[row] == i ||
               std::binary_search(supports[row].begin(), supports[row].end(), i);
    }
    [[nodiscard]] std::size_t size() const { return rows.size(); }
    [[nodiscard]] std::size_t vocabulary() const { return rows.front().size(); }
};

class generator {
  public:
    explicit generator(unsigned seed) : random_(seed) {}
    numbers logits(std::size_t n, double spread) {
        std::normal_distribution<float> noise(0, static_cast<float>(spread));
        numbers all(n);
        for (double& x : all) {
            x = static_cast<double>(noise(random_));
        }
        return all;
    }
    std::int64_t below(std::size_t n) { return static_cast<std::int64_t>(random_() % n); }
    double slope() { return as_stored(dtype::f32, std::uniform_real_distribution<double>(-2, 2)(random_)); }
    std::vector<std::int64_t> support(std::size_t vocabulary, std::size_t most) {
        std::set<std::int64_t> ids;
        for (std::size_t i = 0; i < most; ++i) {
            ids.insert(below(vocabulary));
        }
        return {ids.begin(), ids.end()};
    }

  private:
    std::mt19937 random_;
};

problem random_problem(unsigned seed, dtype type, std::size_t rows, std::size_t vocabulary, bool supported) {
    generator make(seed);
    problem p;
    p.type = type;
    p.temperature = std::vector<double>{1, 0.7, 1.6}[seed % 3];
    p.gap = static_cast<std::int64_t>(seed % 4);
    p.shift = static_cast<std::int64_t>(seed % 5);
    p.narrow_ids = seed % 2 == 0;
    p.saved = seed % 7 == 0 ? dtype::f32 : dtype::f64;
    p.stride = 1 + seed % 3;
    for (std::size_t row = 0; row < rows; ++row) {
        p.rows.push_back(make.logits(vocabulary, 3));
        p.targets.push_back(make.below(vocabulary));
        p.g.push_back(make.slope());
        p.h.push_back(make.slope());
        if (supported) {
            p.supports.push_back(row % 3 == 2 ? std::vector<std::int64_t>{} : make.support(vocabulary, vocabulary / 2 + 1));
        }
    }
    return p;
}

/// The lists of a problem, one after the other.
struct lists {
    std::vector<std::int64_t> ids, offsets{0};
    explicit lists(problem const& p) {
        for (auto const& support : p.supports) {
            ids.insert(ids.end(), support.begin(), support.end());
            offsets.push_back(static_cast<std::int64_t>(ids.size()));
        }
    }
};

/// Integers in device memory, in 32 or 64 bits.
class integers {
  public:
    integers(std::vector<std::int64_t> const& values, bool narrow) : narrow_(narrow), bytes_(bytes_of_all(values, narrow)) {}
    template <typename Either>
    [[nodiscard]] Either as() const {
        return narrow_ ? Either(reinterpret_cast<std::int32_t const*>(bytes_.data()))
                       : Either(reinterpret_cast<std::int64_t const*>(bytes_.data()));
    }

  private:
    static std::vector<unsigned char> bytes_of_all(std::vector<std::int64_t> const& values, bool narrow) {
        std::size_t const width = narrow ? 4 : 8;
        std::vector<unsigned char> bytes(std::max<std::size_t>(values.size(), 1) * width, 0xff);
        for (std::size_t i = 0; i < values.size(); ++i) {
            std::memcpy(bytes.data() + i * width, &values[i], width);  // little endian: the low half comes first
        }
        return bytes;
    }
    bool narrow_;
    device::buffer bytes_;
};

memory blank_numbers(problem const& p) {
    return {p.saved, {0, p.stride}, {true, {static_cast<std::int64_t>(p.size())}}, 0xff, 0};
}

/// All that the two calls left, guards included.
struct outcome {
    memory log_prob, log_sum_exp, entropy;
    rows_in_memory gradient;
    log_prob_report report, gradient_report;
};

bool same_bits(memory const& a, memory const& b) {
    return a.bytes() == b.bytes();
}
bool same_report(log_prob_report const& a, log_prob_report const& b) {
    return a.rows == b.rows && a.nonfinite == b.nonfinite && a.first_nonfinite == b.first_nonfinite;
}
bool same_bits(outcome const& a, outcome const& b) {
    return same_bits(a.log_prob, b.log_prob) && same_bits(a.log_sum_exp, b.log_sum_exp) && same_bits(a.entropy, b.entropy) &&
           same_bits(a.gradient.elements(), b.gradient.elements()) && same_report(a.report, b.report) &&
           same_report(a.gradient_report, b.gradient_report);
}

/// A problem in device memory. The gradient has a buffer of its own, of `gradient_type`, filled with 0xa5 as all gaps are.
class on_device {
  public:
    explicit on_device(problem const& p) : on_device(p, p.type, p.gap, p.shift) {}
    on_device(problem const& p, dtype gradient_type, std::int64_t gap, std::int64_t shift)
        : problem_(p),
          host_logits_(p.type, p.rows, p.gap, p.shift),
          host_gradient_(gradient_type, static_cast<std::int64_t>(p.size()), static_cast<std::int64_t>(p.vocabulary()), gap,
                         shift),
          blank_(blank_numbers(p)),
          g_host_(row_numbers(p.slopes, p.g.empty() ? numbers(p.size()) : p.g, p.stride)),
          h_host_(row_numbers(p.slopes, p.h.empty() ? numbers(p.size()) : p.h, p.stride)),
          mask_host_(row_numbers(dtype::u8, p.mask.empty() ? numbers(p.size()) : numbers(p.mask.begin(), p.mask.end()))),
          logits_(host_logits_.elements()),
          gradient_(host_gradient_.elements()),
          log_prob_(blank_),
          log_sum_exp_(blank_),
          entropy_(blank_),
          g_(g_host_),
          h_(h_host_),
          mask_(mask_host_),
          targets_(p.targets, p.narrow_ids),
          ids_(lists(p).ids, p.narrow_ids),
          offsets_(lists(p).offsets, p.narrow_ids),
          report_(sizeof(log_prob_report)),
          gradient_report_(sizeof(log_prob_report)) {
        asyncrl::output_column const c = logits_.out();
        logits = {c.data, c.type, static_cast<std::int64_t>(p.size()), static_cast<std::int64_t>(p.vocabulary()), c.row_stride};
        asyncrl::output_column const d = gradient_.out();
        gradient = {d.data, d.type, logits.rows, logits.columns, d.row_stride};
        targets = targets_.as<asyncrl::token_ids>();
        outputs = {log_prob_.out(), log_sum_exp_.out(), entropy_.out()};
        slopes = {p.g.empty() ? asyncrl::column{} : g_.in(), p.h.empty() ? asyncrl::column{} : h_.in()};
        options.temperature = p.temperature;
        options.mask = p.mask.empty() ? asyncrl::column{} : mask_.in();
        if (!p.supports.empty()) {
            options.support = {offsets_.as<asyncrl::row_offsets>(), ids_.as<asyncrl::token_ids>()};
        }
    }

    [[nodiscard]] log_prob_report* report() const { return report_.as<log_prob_report>(); }
    [[nodiscard]] log_prob_report* gradient_report() const { return gradient_report_.as<log_prob_report>(); }

    void forward(unsigned blocks = 0, cudaStream_t stream = nullptr) const {
        must(device::log_prob(logits, targets, outputs, report(), options, blocks, stream));
    }
    void backward(unsigned blocks = 0, cudaStream_t stream = nullptr) const {
        must(device::log_prob_gradient(logits, targets, outputs, slopes, gradient, gradient_report(), options, blocks, stream));
    }
    void backward_in_place(cudaStream_t stream = nullptr) const {
        must(device::log_prob_gradient(logits, targets, outputs, slopes, logits, gradient_report(), options, 0, stream));
    }

    /// Waits for the device. Throws if anything was written that is not an output; the logits are one where `in_place`.
    [[nodiscard]] outcome fetch(bool in_place = false) const {
        must(cudaDeviceSynchronize());
        outcome all{blank_,
                    blank_,
                    blank_,
                    in_place ? host_logits_ : host_gradient_,
                    report_.value<log_prob_report>(),
                    gradient_report_.value<log_prob_report>()};
        log_prob_.fetch(all.log_prob);
        log_sum_exp_.fetch(all.log_sum_exp);
        entropy_.fetch(all.entropy);
        (in_place ? logits_ : gradient_).fetch(all.gradient.elements());
        for (memory const* m : {&all.log_prob, &all.log_sum_exp, &all.entropy, &all.gradient.elements()}) {
            if (!m->guards_hold()) {
                throw std::runtime_error("something beside the outputs was written");
            }
        }
        if (!report_.guards_hold() || !gradient_report_.guards_hold() || (!in_place && !logits_.unchanged()) ||
            !g_.unchanged() || !h_.unchanged() || !mask_.unchanged()) {
            throw std::runtime_error("an input or something beside the report was written");
        }
        return all;
    }
    [[nodiscard]] bool untouched() const {
        must(cudaDeviceSynchronize());
        return logits_.unchanged() && gradient_.unchanged() && log_prob_.unchanged() && log_sum_exp_.unchanged() &&
               entropy_.unchanged() && report_.untouched() && gradient_report_.untouched();
    }

    /// Other logits in the same places.
    void rewrite_logits(rows_in_memory const& from) { logits_.rewrite(from.elements()); }
    void spoil_saved(std::size_t row) {
        memory bad = blank_;
        log_sum_exp_.fetch(bad);
        bad.put(0, row, not_a_number);
        spoilt_ = bad;
        log_sum_exp_.rewrite(spoilt_);
    }

  private:
    problem problem_;
    rows_in_memory host_logits_, host_gradient_;
    memory blank_, g_host_, h_host_, mask_host_, spoilt_;
    device::device_column logits_, gradient_, log_prob_, log_sum_exp_, entropy_, g_, h_, mask_;
    integers targets_, ids_, offsets_;
    device::guarded report_, gradient_report_;

  public:
    asyncrl::output_matrix logits, gradient;
    asyncrl::token_ids targets;
    asyncrl::log_prob_outputs outputs;
    asyncrl::log_prob_slopes slopes;
    asyncrl::log_prob_options options;
};

outcome run(problem const& p, unsigned blocks = 0) {
    on_device const d(p);
    d.forward(blocks);
    d.backward(blocks);
    return d.fetch();
}

/// What the host makes of the same numbers, in double throughout.
outcome on_host(problem const& p) {
    std::vector<numbers> stored = p.rows;
    for (numbers& row : stored) {
        for (double& x : row) {
            x = as_stored(p.type, x);
        }
    }
    rows_in_memory const logits(dtype::f64, stored);
    memory const blank = row_numbers(dtype::f64, p.size());
    outcome want{
        blank, blank,
        blank, rows_in_memory(dtype::f64, static_cast<std::int64_t>(p.size()), static_cast<std::int64_t>(p.vocabulary())),
        {},    {}};
    lists const l(p);
    asyncrl::log_prob_options options;
    options.temperature = p.temperature;
    if (!p.mask.empty()) {
        options.mask = asyncrl::per_token(p.mask.data());
    }
    if (!p.supports.empty()) {
        options.support = {l.offsets.data(), l.ids.data()};
    }
    asyncrl::log_prob_slopes slopes;
    if (!p.g.empty()) {
        slopes.log_prob = asyncrl::per_token(p.g.data());
    }
    if (!p.h.empty()) {
        slopes.entropy = asyncrl::per_token(p.h.data());
    }
    asyncrl::log_prob_outputs const outputs{want.log_prob.out(), want.log_sum_exp.out(), want.entropy.out()};
    want.report = asyncrl::log_prob(logits.in(), p.targets.data(), outputs, options);
    want.gradient_report =
        asyncrl::log_prob_gradient(logits.in(), p.targets.data(), outputs, slopes, want.gradient.out(), options);
    return want;
}

/// Where device and host differ by more than is promised, as a sentence; empty where they agree.
std::string difference(problem const& p, outcome const& got) {
    outcome const want = on_host(p);
    std::ostringstream found;
    found.precision(12);
    auto const check = [&](char const* name, std::size_t row, std::size_t i, double value, double expected, double within) {
        bool const same = std::isnan(expected)   ? std::isnan(value)
                          : std::isinf(expected) ? value == expected
                                                 : std::abs(value - expected) <= within;
        if (!same && found.str().size() < 300) {
            found << name << "[" << i << "] of row " << row << " is " << value << ", expected " << expected << "; ";
        }
    };
    dtype const gradient_type = got.gradient.elements().type();
    double const rounding = gradient_type == dtype::bf16 ? 0x1p-8 : gradient_type == dtype::f16 ? 0x1p-10 : 4e-6;
    double const underflow = gradient_type == dtype::f16 ? 0x1p-25 : 1e-35;
    for (std::size_t row = 0; row < p.size(); ++row) {
        auto const number = [&](char const* name, memory const& from, memory const& of) {
            double const expected = of.get(0, row);
            check(name, row, 0, from.get(0, row), expected, 4e-6 * std::abs(expected) + 1e-7);
        };
        number("log_prob", got.log_prob, want.log_prob);
        number("log_sum_exp", got.log_sum_exp, want.log_sum_exp);
        number("entropy", got.entropy, want.entropy);
        double const g = p.g.empty() ? 0 : std::abs(p.g[row]);
        double const h = p.h.empty() ? 0 : std::abs(p.h[row]);
        double const log_sum_exp = want.log_sum_exp.get(0, row);
        double const entropy = want.entropy.get(0, row);
        double const lost = (p.saved == dtype::f64 ? 0x1p-50 : 0x1p-23) * std::abs(log_sum_exp);
        for (std::size_t i = 0; i < p.vocabulary(); ++i) {
            double const expected = want.gradient.elements().get(row, i);
            if (!p.in_part(row, static_cast<std::int64_t>(i))) {
                check("gradient", row, i, static_cast<double>(got.gradient.elements().bits(row, i)), 0, 0);
                continue;
            }
            // A float's log p has digits relative to its own size, and so has p.
            double const z = as_stored(p.type, p.rows[row][i]) / p.temperature;
            double const log_p = std::max(z - log_sum_exp, -700.0);
            double const probability = std::exp(log_p);
            bool const target = static_cast<std::int64_t>(i) == p.targets[row];
            double const moves = g * (target ? -std::expm1(log_p) : probability) + h * probability * (-log_p + entropy);
            double const moved = probability * (g + h * (1 - log_p + entropy)) * (lost + 0x1p-22 * -log_p);
            check("gradient", row, i, got.gradient.elements().get(row, i), expected,
                  (rounding * moves + moved) / p.temperature + underflow);
        }
    }
    if (!same_report(got.report, want.report) || !same_report(got.gradient_report, want.gradient_report)) {
        found << "reports differ";
    }
    return found.str();
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

TEST_CASE("random rows agree with the host's doubles, for every dtype, length, stride, alignment and support") {
    unsigned seed = 0;
    for (std::size_t const vocabulary : {1U, 7U, 8U, 31U, 32U, 33U, 255U, 256U, 257U, 1000U, 4099U}) {
        for (dtype const type : every_dtype) {
            ++seed;
            bool const supported = seed % 2 == 0;
            problem const p = random_problem(seed, type, 4, vocabulary, supported);
            CAPTURE(vocabulary, static_cast<int>(type), supported, p.gap, p.shift);
            REQUIRE(difference(p, run(p)) == "");
        }
    }
}

TEST_CASE("whole rows of aligned packs") {
    for (dtype const type : every_dtype) {
        // 8192 logits go through all threads at once; 20 more are a whole pack, another, and half of one.
        for (std::size_t const vocabulary : {8192U, 8212U}) {
            problem p = random_problem(11, type, 2, vocabulary, false);
            p.gap = p.shift = 0;
            CAPTURE(static_cast<int>(type), vocabulary);
            REQUIRE(difference(p, run(p)) == "");
        }
    }
}

TEST_CASE("long rows keep their digits") {
    for (dtype const type : {dtype::f32, dtype::bf16}) {
        std::size_t const vocabulary = 100'003;
        problem p = random_problem(type == dtype::f32 ? 1 : 5, type, 2, vocabulary, false);
        // Equal terms, whose roundings all go the same way.
        p.rows[1].assign(vocabulary, -2.3);
        p.rows[1][7] = 0;
        CAPTURE(static_cast<int>(type));
        REQUIRE(difference(p, run(p)) == "");
    }
}

TEST_CASE("the longest vocabularies, aligned and not, in both directions") {
    unsigned seed = 20;
    for (std::size_t const vocabulary : {262'144U, 262'143U}) {
        for (dtype const type : {dtype::f32, dtype::bf16}) {
            problem p = random_problem(++seed, type, 2, vocabulary, false);
            p.saved = dtype::f64;
            p.gap = p.shift = 0;  // rows of the odd length are read in packs and element by element, by turns
            p.targets = {static_cast<std::int64_t>(vocabulary) - 1, 0};
            p.rows[1][vocabulary - 2] = 30;  // nearly certain, and far behind
            CAPTURE(vocabulary, static_cast<int>(type));
            outcome const got = run(p);
            REQUIRE(difference(p, got) == "");
            on_device const in_place(p);
            in_place.forward();
            in_place.backward_in_place();
            REQUIRE(same_bits(in_place.fetch(true), got));
        }
    }
}

TEST_CASE("the logits of a row may lie anywhere: far from zero, far apart, rising, equal, or -infinity") {
    std::size_t const n = 20'000;
    problem p = random_problem(3, dtype::f32, 6, n, false);
    p.saved = dtype::f64;
    for (std::size_t i = 0; i < n; ++i) {
        p.rows[0][i] += 3000;
        p.rows[1][i] *= 300;
        p.rows[2][i] = static_cast<double>(i) * 0.01;
        p.rows[3][i] = 1.25;
        p.rows[4][i] = i % 3 == 0 ? p.rows[4][i] : -infinity;
        p.rows[5][i] = -30;
    }
    p.targets[4] = 1;   // -infinity: log-prob too
    p.rows[5][50] = 0;  // a probability near 1
    p.targets[5] = 50;
    for (numbers& row : p.rows) {
        for (double& x : row) {
            x = as_stored(dtype::f32, x);
        }
    }
    REQUIRE(difference(p, run(p)) == "");
}

TEST_CASE("a gradient of another type and layout than the logits") {
    for (dtype const type : every_dtype) {
        problem const p = random_problem(8, type, 3, 2500, false);
        for (dtype const to : every_dtype) {
            on_device const d(p, to, 3, 2);
            d.forward();
            d.backward();
            CAPTURE(static_cast<int>(type), static_cast<int>(to));
            REQUIRE(difference(p, d.fetch()) == "");
        }
    }
}

TEST_CASE("in place, elsewhere, again, on any grid and at any alignment: the same bits") {
    for (dtype const type : every_dtype) {
        bool const supported = type == dtype::bf16;
        problem p = random_problem(12, type, 5, 9000, supported);
        p.gap = p.shift = 0;
        outcome const first = run(p);
        for (unsigned const blocks : {0U, 1U, 2U, 40U}) {
            REQUIRE(same_bits(run(p, blocks), first));
        }
        on_device const in_place(p);
        in_place.forward();
        in_place.backward_in_place();
        REQUIRE(same_bits(in_place.fetch(true), first));
        problem moved = p;
        moved.gap = 3;
        moved.shift = 1;
        on_device const elsewhere(moved);
        elsewhere.forward();
        elsewhere.backward_in_place();
        outcome const of_moved = elsewhere.fetch(true);
        REQUIRE(same_bits(of_moved.log_prob, first.log_prob));
        REQUIRE(same_bits(of_moved.log_sum_exp, first.log_sum_exp));
        REQUIRE(same_bits(of_moved.entropy, first.entropy));
        for (std::size_t row = 0; row < p.size(); ++row) {
            REQUIRE(of_moved.gradient.row(row) == first.gradient.row(row));
        }
    }
}

TEST_CASE("a masked row is +0 and nothing of it is read; so is the gradient of a row without slopes") {
    for (dtype const type : every_dtype) {
        problem clean = random_problem(8, type, 5, 2100, true);
        clean.mask = {1, 0, 1, 0, 1};
        clean.g[2] = 0;
        clean.h[2] = -0.0;
        problem dirty = clean;
        dirty.rows[1].assign(2100, not_a_number);
        dirty.rows[3].assign(2100, infinity);
        dirty.targets[1] = -100;
        dirty.targets[3] = 1'000'000;
        dirty.g[1] = dirty.h[3] = not_a_number;
        dirty.supports[1].assign(dirty.supports[1].size(), -5);
        outcome const want = run(clean);
        on_device d(dirty);
        d.forward();
        // By the time of the gradient, the third row's logits and what was saved of it may be anything.
        problem later = dirty;
        later.rows[2].assign(2100, not_a_number);
        rows_in_memory const logits(type, later.rows, later.gap, later.shift);
        outcome const before = d.fetch();
        d.rewrite_logits(logits);
        d.spoil_saved(2);
        d.backward();
        outcome const got = d.fetch();
        REQUIRE(same_bits(before.log_prob, want.log_prob));
        REQUIRE(same_bits(before.log_sum_exp, want.log_sum_exp));
        REQUIRE(same_bits(before.entropy, want.entropy));
        REQUIRE(same_bits(got.gradient.elements(), want.gradient.elements()));
        REQUIRE(same_report(got.report, {3, 0, -1}));
        REQUIRE(same_report(got.gradient_report, {2, 0, -1}));
        for (std::size_t const row : {1U, 2U, 3U}) {
            for (std::size_t i = 0; i < 2100; ++i) {
                if (got.gradient.elements().bits(row, i) != 0) {
                    FAIL("row " << row << ", logit " << i);
                }
            }
        }
        for (std::size_t const row : {1U, 3U}) {
            REQUIRE(got.log_prob.bits(0, row) == 0);
            REQUIRE(got.log_sum_exp.bits(0, row) == 0);
            REQUIRE(got.entropy.bits(0, row) == 0);
        }
    }
}

TEST_CASE("a row without a softmax is NaN in its part and counted, and only it") {
    std::size_t const n = 3000;
    for (double const bad : {not_a_number, infinity}) {
        for (std::size_t const place : {0U, 2047U, 2999U}) {
            dtype const type = every_dtype[place % 3];
            problem p = random_problem(6, type, 5, n, false);
            p.supports = {{1, 2}, {}, {5, 6}, {}, {3, 40, 50}};
            p.targets = {1, 1, 5, 7, 100};
            p.rows[1][place] = bad;
            p.rows[3].assign(n, -infinity);
            p.rows[0][place] = bad;  // outside the support
            p.rows[4][100] = bad;    // the target, which is not listed
            CAPTURE(bad, place);
            for (unsigned const blocks : {0U, 1U}) {
                outcome const got = run(p, blocks);
                REQUIRE(difference(p, got) == "");
                REQUIRE(same_report(got.report, {5, 3, 1}));
                REQUIRE(same_report(got.gradient_report, {5, 3, 1}));
            }
        }
    }
}

TEST_CASE("a logit that turns bad between the calls spoils its row's part alone") {
    for (dtype const type : every_dtype) {
        for (double const bad : {not_a_number, infinity}) {
            problem p = random_problem(6, type, 4, 3000, false);
            p.supports = {{}, {}, {5, 700}, {2, 9}};
            on_device d(p);
            d.forward();
            problem later = p;
            later.rows[1][2100] = later.rows[2][700] = later.rows[3][1000] = bad;
            rows_in_memory const logits(type, later.rows, p.gap, p.shift);
            d.rewrite_logits(logits);
            d.backward();
            outcome const got = d.fetch();
            REQUIRE(same_report(got.gradient_report, {4, 2, 1}));
            outcome const want = run(p);
            for (std::size_t row = 0; row < 4; ++row) {
                numbers const values = got.gradient.row(row);
                if (row == 0 || row == 3) {
                    REQUIRE(values == want.gradient.row(row));
                    continue;
                }
                for (std::size_t i = 0; i < 3000; ++i) {
                    bool const fits = p.in_part(row, static_cast<std::int64_t>(i)) ? std::isnan(values[i]) : values[i] == 0;
                    if (!fits) {
                        FAIL("row " << row << ", logit " << i << " is " << values[i]);
                    }
                }
            }
        }
    }
}

TEST_CASE("slopes, or saved numbers, that are not finite spoil their row's part alone") {
    problem p = random_problem(6, dtype::f32, 4, 700, true);
    p.supports[1] = {2, 4, 5};
    p.targets[1] = 7;
    p.g[1] = infinity;
    p.h[2] = not_a_number;
    outcome const got = run(p);
    REQUIRE(difference(p, got) == "");
    REQUIRE(same_report(got.gradient_report, {4, 2, 1}));
    problem q = random_problem(6, dtype::f32, 4, 700, false);
    on_device d(q);
    d.forward();
    d.spoil_saved(3);
    d.backward();
    outcome const spoilt = d.fetch();
    REQUIRE(same_report(spoilt.gradient_report, {4, 1, 3}));
    numbers const row = spoilt.gradient.row(3);
    REQUIRE(std::all_of(row.begin(), row.end(), [](double x) { return std::isnan(x); }));
    REQUIRE(std::isfinite(spoilt.gradient.row(2)[5]));
}

TEST_CASE("a target or a list that is none makes its row NaN and counted, as the device cannot throw") {
    for (bool const narrow : {false, true}) {
        problem p = random_problem(6, dtype::bf16, 7, 600, false);
        p.narrow_ids = narrow;
        problem const clean = p;
        p.supports = {{}, {}, {}, {1, 2, 600}, {-1, 4}, {5, 5}, {9, 8}};
        p.targets[1] = 600;
        p.targets[2] = -1;
        outcome const got = run(p);
        REQUIRE(same_report(got.report, {7, 6, 1}));
        REQUIRE(same_report(got.gradient_report, {7, 6, 1}));
        for (std::size_t row = 1; row < 7; ++row) {
            REQUIRE(std::isnan(got.log_prob.get(0, row)));
            REQUIRE(std::isnan(got.log_sum_exp.get(0, row)));
            REQUIRE(std::isnan(got.entropy.get(0, row)));
            numbers const all = got.gradient.row(row);
            REQUIRE(std::all_of(all.begin(), all.end(), [](double x) { return std::isnan(x); }));
        }
        outcome const want = run(clean);
        REQUIRE(got.log_prob.get(0, 0) == want.log_prob.get(0, 0));
        REQUIRE(got.gradient.row(0) == want.gradient.row(0));
        // A list turns bad between the calls.
        problem good = p;
        good.supports = {{}, {1}, {2}, {1, 2, 3}, {1, 4}, {5, 6}, {8, 9}};
        good.targets = clean.targets;
        on_device const before(good);
        on_device after(p);
        before.forward();
        after.outputs = before.outputs;
        after.backward();
        REQUIRE(same_report(after.fetch().gradient_report, {7, 6, 1}));
    }
}

TEST_CASE("more rows than a grid has blocks, and outputs of every kind or none") {
    problem p = random_problem(4, dtype::bf16, 300, 24, false);
    p.slopes = dtype::f64;
    REQUIRE(difference(p, run(p, 7)) == "");
    on_device const all(p);
    all.forward();
    outcome const want = all.fetch();
    on_device only(p);
    only.outputs.log_prob = only.outputs.log_sum_exp = {};
    only.forward();
    outcome const got = only.fetch();
    REQUIRE(same_bits(got.entropy, want.entropy));
    REQUIRE(got.log_prob.untouched());
    on_device none(p);
    none.outputs = {};
    none.forward();
    REQUIRE(same_report(none.fetch().report, want.report));
}

TEST_CASE("a slope of stride 0 is every row's, and an absent one is 0") {
    problem p = random_problem(9, dtype::f32, 3, 20, false);
    p.g = {0.5, 0.5, 0.5};
    p.h = {0, 0, 0};
    outcome const want = run(p);
    p.h = {};
    on_device d(p);
    d.slopes.log_prob.token_stride = 0;
    d.forward();
    d.outputs.entropy = {};
    d.backward();
    REQUIRE(same_bits(d.fetch().gradient.elements(), want.gradient.elements()));
    p.g = {};
    outcome const nothing = run(p);
    REQUIRE(nothing.gradient_report.rows == 0);
    REQUIRE(nothing.gradient.row(1) == numbers(20, 0));
}

TEST_CASE("rows of logits that lie backwards, and one row for all") {
    problem p = random_problem(2, dtype::f32, 3, 40, false);
    p.gap = 0;
    outcome const want = run(p);
    problem reversed = p;
    std::reverse(reversed.rows.begin(), reversed.rows.end());
    on_device d(reversed);
    d.logits.data = static_cast<float*>(d.logits.data) + 80;
    d.logits.row_stride = -40;
    d.forward();
    d.backward();
    REQUIRE(same_bits(d.fetch(), want));
    problem same = p;
    same.rows[1] = same.rows[2] = same.rows[0];
    outcome const thrice = run(same);
    on_device one(p);
    one.logits.row_stride = 0;
    one.forward();
    one.backward();
    REQUIRE(same_bits(one.fetch(), thrice));
}

TEST_CASE("rows more than 2^32 bytes apart") {
    constexpr std::int64_t stride = (std::int64_t{1} << 31) + 8;
    constexpr std::int64_t n = 40;
    problem p = random_problem(8, dtype::bf16, 2, n, false);
    p.gap = p.shift = 0;
    outcome const want = run(p);
    rows_in_memory const dense(p.type, p.rows);
    device::shared_bytes const far(static_cast<std::size_t>(2 * (stride + n)));
    auto* const host = reinterpret_cast<std::uint16_t*>(far.host());
    for (std::size_t row = 0; row < 2; ++row) {
        for (std::size_t i = 0; i < n; ++i) {
            host[static_cast<std::int64_t>(row) * stride + static_cast<std::int64_t>(i)] =
                static_cast<std::uint16_t>(dense.elements().bits(row, i));
        }
    }
    on_device d(p);
    d.logits.data = far.on_device();
    d.logits.row_stride = stride;
    d.forward();
    d.backward();
    REQUIRE(same_bits(d.fetch(), want));
    d.backward_in_place();
    must(cudaDeviceSynchronize());
    for (std::size_t row = 0; row < 2; ++row) {
        for (std::size_t i = 0; i < n; ++i) {
            REQUIRE(host[static_cast<std::int64_t>(row) * stride + static_cast<std::int64_t>(i)] ==
                    want.gradient.elements().bits(row, i));
        }
    }
}

TEST_CASE("logits and gradient may alternate in one buffer") {
    std::int64_t const n = 24;
    problem p = random_problem(3, dtype::bf16, 4, 24, false);
    p.shift = 0;
    p.gap = n;
    outcome const want = run(p);
    on_device d(p);
    d.forward();
    d.gradient = d.logits;
    d.gradient.data = static_cast<std::uint16_t*>(d.logits.data) + n;
    // The last row's gap is the guard at the end, of 24 elements.
    d.backward();
    must(cudaDeviceSynchronize());
    std::vector<std::uint16_t> got(24);
    for (std::size_t row = 0; row < 4; ++row) {
        must(cudaMemcpy(got.data(), static_cast<std::uint16_t const*>(d.gradient.data) + row * 48, 48, cudaMemcpyDeviceToHost));
        for (std::size_t i = 0; i < 24; ++i) {
            REQUIRE(got[i] == want.gradient.elements().bits(row, i));
        }
    }
}

TEST_CASE("what cannot be meant is refused in words, before anything is launched or written") {
    problem p = random_problem(10, dtype::f32, 4, 16, true);
    p.mask = {1, 1, 1, 1};
    p.gap = p.shift = 0;
    struct misuse {
        char const* words;  ///< `*`: an address
        std::function<void(on_device&)> spoil;
    };
    std::vector<misuse> const of_both{
        {"logits.data is absent", [](on_device& d) { d.logits.data = nullptr; }},
        {"logits have dtype f64, must be f32, bf16 or f16", [](on_device& d) { d.logits.type = dtype::f64; }},
        {"logits have dtype u8, must be f32, bf16 or f16", [](on_device& d) { d.logits.type = dtype::u8; }},
        {"logits have dtype i32, must be f32, bf16 or f16", [](on_device& d) { d.logits.type = dtype::i32; }},
        {"logits.columns = 0, must be >= 1", [](on_device& d) { d.logits.columns = d.gradient.columns = 0; }},
        {"logits.rows = -1, must be >= 0", [](on_device& d) { d.logits.rows = d.gradient.rows = -1; }},
        {"logits.data = 0x*, must be a multiple of 4",
         [](on_device& d) { d.logits.data = static_cast<std::byte*>(d.logits.data) + 2; }},
        {"targets are absent", [](on_device& d) { d.targets = {}; }},
        {"log_prob_options.mask has dtype f32, must be u8", [](on_device& d) { d.options.mask.type = dtype::f32; }},
        {"support.ids is absent, but there are support.offsets", [](on_device& d) { d.options.support.ids = {}; }},
        {"log_prob_options.temperature = 0, must be > 0 and finite (1e-30 to 1e30)",
         [](on_device& d) { d.options.temperature = 0; }},
        {"log_prob_options.temperature = nan, must be > 0 and finite (1e-30 to 1e30)",
         [](on_device& d) { d.options.temperature = not_a_number; }},
        {"log_prob_options.temperature = inf, must be > 0 and finite (1e-30 to 1e30)",
         [](on_device& d) { d.options.temperature = infinity; }},
    };
    std::vector<misuse> const of_forward{
        {"log_prob_outputs.log_prob has dtype bf16, must be f32 or f64",
         [](on_device& d) { d.outputs.log_prob.type = dtype::bf16; }},
        {"log_prob_outputs.entropy has dtype u8, must be f32 or f64", [](on_device& d) { d.outputs.entropy.type = dtype::u8; }},
        {"log_prob_outputs.log_sum_exp has a stride of 0: an output needs an element of its own for every row",
         [](on_device& d) { d.outputs.log_sum_exp.token_stride = 0; }},
        {"log_prob_outputs.entropy = 0x*, must be a multiple of 8",
         [](on_device& d) { d.outputs.entropy.data = static_cast<std::byte*>(d.outputs.entropy.data) + 4; }},
    };
    std::vector<misuse> const of_forward_overlaps{
        {"log_prob_outputs.entropy overlaps log_prob_outputs.log_prob, must lie apart from it",
         [](on_device& d) { d.outputs.entropy = d.outputs.log_prob; }},
        {"log_prob_outputs.log_prob overlaps logits.data, must lie apart from it",
         [](on_device& d) {
             d.outputs.log_prob = {static_cast<float*>(d.logits.data) + 63, dtype::f32, 0, 16};
         }},
        {"log_prob_outputs.log_sum_exp overlaps targets, must lie apart from it",
         [](on_device& d) { d.targets = static_cast<std::int32_t const*>(d.outputs.log_sum_exp.data); }},
        {"report overlaps log_prob_options.mask, must lie apart from it",
         [](on_device& d) {
             d.options.mask = {d.report(), dtype::u8, 0, 1};
         }},
        {"log_prob_outputs.entropy overlaps support.offsets, must lie apart from it",
         [](on_device& d) { d.options.support.offsets = static_cast<std::int64_t const*>(d.outputs.entropy.data); }},
    };
    std::vector<misuse> const of_backward{
        {"gradient.data lies among the logits: rows that alternate with theirs must have their stride in bytes",
         [](on_device& d) {
             d.logits.row_stride = 40;
             d.logits.rows = 1000;
             d.gradient = {static_cast<float*>(d.logits.data) + 16, dtype::f32, 1000, 16, 80};
         }},
        {"gradient.data overlaps log_prob_slopes.log_prob, must lie apart from it",
         [](on_device& d) { d.slopes.log_prob.data = static_cast<float*>(d.gradient.data) + 3; }},
        {"gradient.data overlaps saved.log_sum_exp, must lie apart from it",
         [](on_device& d) { d.outputs.log_sum_exp.data = d.gradient.data; }},
        {"gradient.data overlaps targets, must lie apart from it",
         [](on_device& d) { d.targets = static_cast<std::int32_t const*>(d.gradient.data); }},
        {"gradient.data is absent", [](on_device& d) { d.gradient.data = nullptr; }},
        {"gradient has dtype f64, must be f32, bf16 or f16", [](on_device& d) { d.gradient.type = dtype::f64; }},
        {"gradient.rows = 3, must be that of the logits, 4", [](on_device& d) { --d.gradient.rows; }},
        {"gradient.columns = 15, must be 16", [](on_device& d) { --d.gradient.columns; }},
        {"gradient.row_stride = 15, must be at least gradient.columns, 16", [](on_device& d) { d.gradient.row_stride = 15; }},
        {"gradient.data = 0x*, must be a multiple of 4",
         [](on_device& d) { d.gradient.data = static_cast<std::byte*>(d.gradient.data) + 1; }},
        {"gradient.data overlaps logits.data, must lie apart from it, or have its address, dtype and row stride",
         [](on_device& d) {
             d.gradient = {d.logits.data, dtype::bf16, 4, 16, 32};
         }},
        {"gradient.data overlaps logits.data, must lie apart from it, or have its address, dtype and row stride",
         [](on_device& d) {
             d.gradient = {d.logits.data, dtype::f32, 4, 16, 17};
         }},
        {"gradient.data overlaps logits.data, must lie apart from it, or have its address, dtype and row stride",
         [](on_device& d) {
             d.gradient = {static_cast<float*>(d.logits.data) + 16, dtype::f32, 4, 16, 16};
         }},
        {"gradient.data overlaps logits.data, must lie apart from it, or have its address, dtype and row stride",
         [](on_device& d) {
             d.logits.row_stride = 31;
             d.gradient = {static_cast<float*>(d.logits.data) + 16, dtype::f32, 4, 16, 31};
         }},
        {"saved.log_sum_exp is absent, but the gradient needs it", [](on_device& d) { d.outputs.log_sum_exp = {}; }},
        {"saved.entropy is absent, but the gradient of the entropy needs it", [](on_device& d) { d.outputs.entropy = {}; }},
        {"log_prob_slopes.log_prob has dtype u8, must be f32, f64, bf16 or f16",
         [](on_device& d) { d.slopes.log_prob.type = dtype::u8; }},
        {"log_prob_slopes.entropy has dtype i64, must be f32, f64, bf16 or f16",
         [](on_device& d) { d.slopes.entropy.type = dtype::i64; }},
        {"log_prob_slopes.entropy = 0x*, must be a multiple of 4",
         [](on_device& d) { d.slopes.entropy.data = static_cast<std::byte const*>(d.slopes.entropy.data) + 1; }}};
    auto const refuses = [&](misuse const& wrong, bool forward, bool backward) {
        on_device d(p);
        auto const of_forward_call = [&] {
            return device::log_prob_refusal(d.logits, d.targets, d.outputs, d.report(), d.options);
        };
        auto const of_backward_call = [&] {
            return device::log_prob_gradient_refusal(d.logits, d.targets, d.outputs, d.slopes, d.gradient, d.gradient_report(),
                                                     d.options);
        };
        REQUIRE(of_forward_call() == "");
        REQUIRE(of_backward_call() == "");
        wrong.spoil(d);
        CAPTURE(wrong.words, of_forward_call(), of_backward_call());
        if (forward) {
            REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) {
                return device::log_prob(d.logits, d.targets, d.outputs, d.report(), d.options, 0, on);
            }));
            REQUIRE(device::is_like(of_forward_call(), wrong.words));
        }
        if (backward) {
            REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) {
                return device::log_prob_gradient(d.logits, d.targets, d.outputs, d.slopes, d.gradient, d.gradient_report(),
                                                 d.options, 0, on);
            }));
            REQUIRE(device::is_like(of_backward_call(), wrong.words));
        }
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    };
    for (misuse const& wrong : of_both) {
        refuses(wrong, true, true);
    }
    for (misuse const& wrong : of_forward) {
        refuses(wrong, true, false);
    }
    for (misuse const& wrong : of_forward_overlaps) {
        refuses(wrong, true, false);
    }
    for (misuse const& wrong : of_backward) {
        refuses(wrong, false, true);
    }
    on_device const d(p);
    REQUIRE(device::log_prob(d.logits, d.targets, d.outputs, nullptr, d.options, 0, nullptr) == cudaErrorInvalidValue);
    REQUIRE(device::log_prob_gradient(d.logits, d.targets, d.outputs, d.slopes, d.gradient, nullptr, d.options, 0, nullptr) ==
            cudaErrorInvalidValue);
    REQUIRE(d.untouched());
}

TEST_CASE("no rows are an answer") {
    device::guarded const report(sizeof(log_prob_report));
    REQUIRE(device::log_prob({}, {}, {}, report.as<log_prob_report>(), {}, 0, nullptr) == cudaSuccess);
    must(cudaDeviceSynchronize());
    REQUIRE(same_report(report.value<log_prob_report>(), {}));
    REQUIRE(device::log_prob_gradient({}, {}, {}, {}, {}, report.as<log_prob_report>(), {}, 0, nullptr) == cudaSuccess);
    must(cudaDeviceSynchronize());
    REQUIRE(same_report(report.value<log_prob_report>(), {}));
    REQUIRE(report.guards_hold());
}

TEST_CASE("both calls are captured, and each replay works on what the logits are then") {
    problem const first = random_problem(10, dtype::bf16, 3, 2500, true);
    problem later = first;
    later.rows = random_problem(11, dtype::bf16, 3, 2500, false).rows;
    problem const second = later;
    stream const on;
    on_device d(first);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    // The strictest mode: whatever allocates, frees or waits, on any stream, is an error and ends the capture.
    must(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeGlobal));
    d.forward(0, on.get());
    d.backward(0, on.get());
    must(cudaStreamEndCapture(on.get(), &graph));
    REQUIRE(d.untouched());
    must(cudaGraphInstantiate(&replay, graph, 0));
    for (problem const* const p : {&first, &second, &first}) {
        rows_in_memory const logits(p->type, p->rows, p->gap, p->shift);
        d.rewrite_logits(logits);
        must(cudaGraphLaunch(replay, on.get()));
        must(cudaStreamSynchronize(on.get()));
        REQUIRE(same_bits(d.fetch(), run(*p)));
    }
    must(cudaGraphExecDestroy(replay));
    must(cudaGraphDestroy(graph));
}

TEST_CASE("calls wait for the stream they are given, and for no other") {
    problem const p = random_problem(14, dtype::f32, 3, 2500, false);
    problem stale = p;
    stale.rows = random_problem(15, dtype::f32, 3, 2500, false).rows;
    outcome const want = run(p);
    rows_in_memory const logits(p.type, p.rows, p.gap, p.shift);
    stream const on;
    on_device const d(stale);
    // The producer: logits arrive on the same stream, and nothing waits before the calls.
    std::vector<unsigned char> const& bytes = logits.elements().bytes();
    unsigned char* const begin = static_cast<unsigned char*>(d.logits.data) - device::origin_of(logits.elements());
    must(cudaMemcpyAsync(begin, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, on.get()));
    d.forward(0, on.get());
    d.backward_in_place(on.get());
    log_prob_report report;
    must(cudaMemcpyAsync(&report, d.gradient_report(), sizeof report, cudaMemcpyDeviceToHost, on.get()));
    must(cudaStreamSynchronize(on.get()));
    REQUIRE(same_report(report, want.gradient_report));
    REQUIRE(same_bits(d.fetch(true).gradient.elements(), want.gradient.elements()));
}

TEST_CASE("a call allocates nothing") {
    problem const p = random_problem(16, dtype::f16, 3, 2500, true);
    on_device const d(p);
    for (int round = 0; round < 2; ++round) {  // what the runtime itself loads, it loads in the first
        std::size_t before = 0;
        std::size_t after = 0;
        std::size_t all = 0;
        must(cudaMemGetInfo(&before, &all));
        d.forward();
        d.backward();
        must(cudaDeviceSynchronize());
        must(cudaMemGetInfo(&after, &all));
        REQUIRE((round == 0 || after == before));
    }
}
