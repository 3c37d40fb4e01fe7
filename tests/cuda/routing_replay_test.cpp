// SPDX-License-Identifier: Apache-2.0
// Gates of recorded experts on the device against the host's calls, which have tests of their own.
#include "catch.hpp"
#include "correction/support/softmax_rows.hpp"
#include "support/device_memory.hpp"
#include "support/refusals.hpp"
#include "support/routing_replay_calls.hpp"

#include <asyncrl/correction/routing_replay.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace support;
using asyncrl::gate_rule;
using asyncrl::routing_report;
using device::must;

namespace {

using indices = std::vector<std::int32_t>;

constexpr gate_rule every_rule[] = {gate_rule::softmax_of_chosen, gate_rule::softmax_of_all, gate_rule::sigmoid};
constexpr dtype every_dtype[] = {dtype::f64, dtype::f32, dtype::bf16, dtype::f16};
constexpr std::int32_t gap_mark = -12345;

struct problem {
    dtype type = dtype::f64;
    gate_rule rule = gate_rule::softmax_of_chosen;
    std::vector<numbers> logits;
    std::vector<indices> experts;
    std::vector<numbers> slopes;  ///< of the gates
    numbers bias;                 ///< empty: none
    std::int64_t gap = 0;

    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(logits.size()); }
    [[nodiscard]] std::int64_t columns() const { return static_cast<std::int64_t>(logits.front().size()); }
    [[nodiscard]] std::int64_t chosen() const { return static_cast<std::int64_t>(experts.front().size()); }
    [[nodiscard]] std::int64_t stride() const { return chosen() + gap; }
    /// The recorded experts as they lie in memory.
    [[nodiscard]] indices recorded() const {
        indices all;
        for (indices const& row : experts) {
            all.insert(all.end(), row.begin(), row.end());
            all.resize(all.size() + static_cast<std::size_t>(gap), gap_mark);
        }
        return all;
    }
};

struct answers {
    explicit answers(problem const& p)
        : gates(p.type, p.rows(), p.chosen(), p.gap),
          gradient(p.type, p.rows(), p.columns(), p.gap),
          experts(p.logits.size() * static_cast<std::size_t>(p.stride()), gap_mark) {}

    [[nodiscard]] bool same_bits(answers const& other) const {
        return gates.elements().bytes() == other.gates.elements().bytes() && experts == other.experts &&
               gradient.elements().bytes() == other.gradient.elements().bytes() &&
               std::memcmp(&report, &other.report, sizeof report) == 0 &&
               std::memcmp(&gradient_report, &other.gradient_report, sizeof report) == 0;
    }

    rows_in_memory gates, gradient;
    indices experts;
    routing_report report, gradient_report;
};

answers on_host(problem const& p) {
    answers out(p);
    rows_in_memory const logits(p.type, p.logits, p.gap);
    rows_in_memory const slopes(p.type, p.slopes, p.gap);
    indices const recorded = p.recorded();
    asyncrl::expert_indices const given{recorded.data(), p.rows(), p.chosen(), p.stride()};
    asyncrl::routing_options options;
    if (!p.bias.empty()) {
        options.selection_bias = asyncrl::per_token(p.bias.data());
    }
    out.report =
        asyncrl::routing_replay(logits.in(), given, p.rule, {out.gates.out(), out.experts.data(), p.stride()}, options);
    out.gradient_report =
        asyncrl::routing_replay_gradient(logits.in(), given, p.rule, slopes.in(), out.gradient.out(), options);
    return out;
}

template <typename Number>
std::vector<unsigned char> bytes_of_numbers(std::vector<Number> const& all) {
    std::vector<unsigned char> bytes(std::max<std::size_t>(all.size() * sizeof(Number), 1));
    std::memcpy(bytes.data(), all.data(), all.size() * sizeof(Number));
    return bytes;
}

/// A problem, and what both calls write, in device memory.
class on_device {
  public:
    explicit on_device(problem const& p, bool in_place = false)
        : problem_(p),
          host_logits_(p.type, p.logits, p.gap),
          host_slopes_(p.type, p.slopes, p.gap),
          fresh_(p),
          in_place_(in_place),
          logits_(host_logits_.elements()),
          slopes_(host_slopes_.elements()),
          gates_(fresh_.gates.elements()),
          gradient_(in_place ? host_logits_.elements() : fresh_.gradient.elements()),
          recorded_(bytes_of_numbers(p.recorded())),
          bias_(bytes_of_numbers(p.bias)),
          experts_(bytes_of_numbers(fresh_.experts)),
          report_(sizeof(routing_report)),
          gradient_report_(sizeof(routing_report)),
          logits(matrix_of(in_place ? gradient_ : logits_, p.columns())),
          given{static_cast<std::int32_t const*>(at(recorded_)), p.rows(), p.chosen(), p.stride()},
          rule(p.rule),
          slopes(matrix_of(slopes_, p.chosen())),
          outputs{output_of(gates_, p.chosen()), static_cast<std::int32_t*>(at(experts_)), p.stride()},
          gradient(output_of(gradient_, p.columns())),
          report(report_.as<routing_report>()),
          gradient_report(gradient_report_.as<routing_report>()) {
        if (!p.bias.empty()) {
            options.selection_bias = asyncrl::per_token(static_cast<double const*>(at(bias_)));
        }
    }
    on_device(on_device const&) = delete;
    on_device& operator=(on_device const&) = delete;

    [[nodiscard]] cudaError_t replay(unsigned blocks = 0, cudaStream_t stream = nullptr) const {
        return device::routing_replay(logits, given, rule, outputs, report, options, blocks, stream);
    }
    [[nodiscard]] cudaError_t push_back(unsigned blocks = 0, cudaStream_t stream = nullptr) const {
        return device::routing_replay_gradient(logits, given, rule, slopes, gradient, gradient_report, options, blocks, stream);
    }
    /// Waits for the device. Throws if anything was written that is not an output.
    [[nodiscard]] answers fetch() const {
        must(cudaDeviceSynchronize());
        answers out(problem_);
        gates_.fetch(out.gates.elements());
        gradient_.fetch(out.gradient.elements());
        experts_.read(out.experts.data());
        out.report = report_.value<routing_report>();
        out.gradient_report = gradient_report_.value<routing_report>();
        if (!out.gates.elements().guards_hold() || !out.gradient.elements().guards_hold() || !report_.guards_hold() ||
            !gradient_report_.guards_hold()) {
            throw std::runtime_error("something beside the outputs was written");
        }
        if ((!in_place_ && !logits_.unchanged()) || !slopes_.unchanged()) {
            throw std::runtime_error("an input was written");
        }
        return out;
    }
    [[nodiscard]] bool untouched() const {
        must(cudaDeviceSynchronize());
        return gates_.unchanged() && gradient_.unchanged() && report_.untouched() && gradient_report_.untouched() &&
               experts_.read() == bytes_of_numbers(fresh_.experts);
    }

  private:
    static void* at(device::buffer const& b) { return b.data(); }
    [[nodiscard]] asyncrl::matrix matrix_of(device::device_column const& c, std::int64_t columns) const {
        return output_of(c, columns);
    }
    [[nodiscard]] asyncrl::output_matrix output_of(device::device_column const& c, std::int64_t columns) const {
        asyncrl::output_column const o = c.out();
        return {o.data, o.type, problem_.rows(), columns, o.row_stride};
    }

    problem const& problem_;
    rows_in_memory host_logits_, host_slopes_;
    answers fresh_;
    bool in_place_;
    device::device_column logits_, slopes_, gates_, gradient_;
    device::buffer recorded_, bias_, experts_;
    device::guarded report_, gradient_report_;

  public:
    asyncrl::matrix logits;
    asyncrl::expert_indices given;
    gate_rule rule;
    asyncrl::matrix slopes;
    asyncrl::routing_outputs outputs;
    asyncrl::output_matrix gradient;
    routing_report* report;
    routing_report* gradient_report;
    asyncrl::routing_options options;
};

answers run(problem const& p, unsigned blocks = 0, bool in_place = false) {
    on_device const d(p, in_place);
    must(d.replay(blocks));
    must(d.push_back(blocks));
    return d.fetch();
}

double tolerance_of(dtype type) {
    return type == dtype::f64 ? 1e-12 : type == dtype::f32 ? 0x1p-23 : type == dtype::f16 ? 0x1p-10 : 0x1p-7;
}

/// Where the device differs from the host, relative to the row's largest number; empty if nowhere.
std::string difference(problem const& p, answers const& got, answers const& want) {
    std::ostringstream text;
    text.precision(17);
    auto const compare = [&](char const* name, std::size_t row, numbers const& is, numbers const& should_be) {
        double size = p.type == dtype::f16 ? 0x1p-14 : 0;  // below it float16 has no 11 digits
        for (double const x : should_be) {
            size = std::isfinite(x) ? std::max(size, std::abs(x)) : size;
        }
        for (std::size_t i = 0; i < is.size() && text.str().empty(); ++i) {
            bool const agree =
                std::isnan(should_be[i]) ? std::isnan(is[i]) : std::abs(is[i] - should_be[i]) <= tolerance_of(p.type) * size;
            if (!agree) {
                text << name << "[" << row << "][" << i << "] is " << is[i] << ", expected " << should_be[i];
            }
        }
    };
    for (std::size_t row = 0; row < p.logits.size(); ++row) {
        compare("gates", row, got.gates.row(row), want.gates.row(row));
        compare("gradient", row, got.gradient.row(row), want.gradient.row(row));
    }
    if (got.experts != want.experts) {
        text << " experts differ";
    }
    auto const counts = [&](char const* name, routing_report const& a, routing_report const& b) {
        if (std::memcmp(&a, &b, sizeof a) != 0) {
            text << " " << name << " is " << a.replayed << ", " << a.fallen_back << ", " << a.differing << ", " << a.nonfinite
                 << ", " << a.first_nonfinite << ", expected " << b.replayed << ", " << b.fallen_back << ", " << b.differing
                 << ", " << b.nonfinite << ", " << b.first_nonfinite;
        }
    };
    counts("report", got.report, want.report);
    counts("report of the gradient", got.gradient_report, want.gradient_report);
    return text.str();
}

std::string difference_from_host(problem const& p) {
    return difference(p, run(p), on_host(p));
}

class generator {
  public:
    explicit generator(unsigned seed) : random_(seed) {}
    numbers reals(dtype type, std::size_t n, double spread) {
        std::normal_distribution<double> noise(0, spread);
        numbers all(n);
        for (double& x : all) {
            x = as_stored(type, noise(random_));
        }
        return all;
    }
    indices some(std::size_t k, std::size_t of) {
        indices all(of);
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), random_);
        all.resize(k);
        return all;
    }

  private:
    std::mt19937 random_;
};

indices top_of(numbers const& scores, std::size_t k) {
    indices all(scores.size());
    std::iota(all.begin(), all.end(), 0);
    std::stable_sort(all.begin(), all.end(), [&](std::int32_t a, std::int32_t b) {
        return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    all.resize(k);
    return all;
}

problem random_problem(unsigned seed, dtype type, gate_rule rule, std::size_t rows, std::size_t experts, std::size_t chosen) {
    generator make(seed);
    problem p;
    p.type = type;
    p.rule = rule;
    p.gap = seed % 3;
    for (std::size_t row = 0; row < rows; ++row) {
        p.logits.push_back(make.reals(type, experts, 2));
        p.experts.push_back(row % 4 == 1   ? indices(chosen, -1)
                            : row % 4 == 2 ? top_of(p.logits.back(), chosen)
                                           : make.some(chosen, experts));
        p.slopes.push_back(make.reals(type, chosen, 1));
    }
    return p;
}

}  // namespace

TEST_CASE("gates of two replayed experts and their gradient, worked out to twelve digits") {
    struct expected {
        gate_rule rule;
        double gate0, gate3;
        numbers slope_of_gate0;
    };
    expected const table[] = {
        {gate_rule::softmax_of_chosen, 0.622459331202, 0.377540668798, {0.235003712202, 0, 0, -0.235003712202}},
        {gate_rule::softmax_of_all,
         0.268267797394,
         0.162712644133,
         {0.196300186275, -0.0339950923731, -0.118654531253, -0.0436505626497}},
        {gate_rule::sigmoid, 0.554549562642, 0.445450437358, {0.0932617365021, 0, 0, -0.123512172608}}};
    for (expected const& want : table) {
        problem p;
        p.rule = want.rule;
        p.logits = {{0.5, -0.25, 1, 0}};  // its own top-2 is {2, 0}
        p.experts = {{0, 3}};
        p.slopes = {{1, 0}};
        answers const got = run(p);
        REQUIRE_THAT(got.gates.row(0)[0], Catch::Matchers::WithinAbs(want.gate0, 1e-12));
        REQUIRE_THAT(got.gates.row(0)[1], Catch::Matchers::WithinAbs(want.gate3, 1e-12));
        for (std::size_t i = 0; i < 4; ++i) {
            REQUIRE_THAT(got.gradient.row(0)[i], Catch::Matchers::WithinAbs(want.slope_of_gate0[i], 1e-12));
        }
        REQUIRE(got.report.differing == 1);
    }
}

TEST_CASE("random rows of every size, rule and dtype agree with the host") {
    unsigned seed = 0;
    for (gate_rule const rule : every_rule) {
        for (dtype const type : every_dtype) {
            for (auto const& [experts, chosen] : std::vector<std::pair<std::size_t, std::size_t>>{
                     {1, 1}, {2, 1}, {8, 2}, {8, 8}, {31, 5}, {33, 33}, {64, 6}, {257, 8}, {200, 128}}) {
                CAPTURE(static_cast<int>(rule), static_cast<int>(type), experts, chosen);
                REQUIRE(difference_from_host(random_problem(++seed, type, rule, 11, experts, chosen)) == "");
            }
        }
        REQUIRE(difference_from_host(random_problem(++seed, dtype::f32, rule, 3, 4096, 3)) == "");
    }
}

TEST_CASE("ties, biases, logits far out, slopes of 0 and rows that are not finite agree with the host") {
    for (gate_rule const rule : every_rule) {
        CAPTURE(static_cast<int>(rule));
        problem p = random_problem(7, dtype::f64, rule, 12, 5, 2);
        p.logits[0] = {1, 2, 2, 1, 2};
        p.logits[1] = {1, 2, 2, 1, 2};  // not recorded
        p.logits[2] = {1, 2, 2, 1, 2};
        p.experts[2] = {4, 2};
        p.logits[3] = {1e4, -1e4, 9999, -infinity, 0};
        p.logits[4] = {-40, -40, -40, -40, -40};
        p.logits[5] = {-1e4, -1e4, -1e4, -1e4, -1e4};
        p.logits[6] = {1, -infinity, -infinity, 2, 3};
        p.experts[6] = {1, 2};
        p.logits[7][3] = not_a_number;
        p.logits[8][1] = infinity;
        p.slopes[10] = {0, -0.0};
        p.slopes[11][1] = not_a_number;
        REQUIRE(difference_from_host(p) == "");
        if (rule == gate_rule::sigmoid) {
            p.bias = {0, -10, 0.25, 0.9, 0};
            REQUIRE(difference_from_host(p) == "");
        }
    }
}

TEST_CASE("rows whose experts cannot be meant are NaN throughout and counted, and only they") {
    for (gate_rule const rule : every_rule) {
        problem p = random_problem(8, dtype::f32, rule, 8, 6, 2);
        answers const before = run(p);
        p.experts[0] = {1, 6};
        p.experts[3] = {-1, 2};
        p.experts[4] = {5, 5};
        p.logits[5][2] = not_a_number;  // not recorded
        answers const got = run(p);
        for (std::size_t row = 0; row < 8; ++row) {
            bool const spoiled = row == 0 || row == 3 || row == 4 || row == 5;
            for (double const x : got.gates.row(row)) {
                REQUIRE(std::isnan(x) == spoiled);
            }
            numbers const slopes = got.gradient.row(row);
            for (std::size_t j = 0; j < 6; ++j) {
                REQUIRE(std::isnan(slopes[j]) == spoiled);
                REQUIRE((spoiled || slopes[j] == before.gradient.row(row)[j]));
            }
        }
        REQUIRE(got.report.nonfinite == 4);
        REQUIRE(got.report.first_nonfinite == 0);
        REQUIRE(got.gradient_report.nonfinite == 4);
        REQUIRE(got.report.replayed == 6);
        REQUIRE(got.report.fallen_back == 2);
    }
}

TEST_CASE("a second run, any grid and a gradient over the logits have the same bits") {
    for (gate_rule const rule : every_rule) {
        for (dtype const type : {dtype::f64, dtype::bf16}) {
            problem const p = random_problem(9, type, rule, 40, 40, 5);
            answers const want = run(p);
            for (unsigned const blocks : {0U, 1U, 3U}) {
                REQUIRE(run(p, blocks).same_bits(want));
            }
            answers const over = run(p, 0, true);
            for (std::size_t row = 0; row < 40; ++row) {
                REQUIRE(over.gradient.row(row) == want.gradient.row(row));
            }
        }
    }
}

TEST_CASE("no rows are nothing to do") {
    problem const p = random_problem(10, dtype::f32, gate_rule::sigmoid, 2, 6, 2);
    on_device d(p);
    d.logits.rows = d.given.rows = d.outputs.gates.rows = d.slopes.rows = d.gradient.rows = 0;
    must(d.replay());
    must(d.push_back());
    answers const got = d.fetch();
    REQUIRE(got.report.replayed + got.report.fallen_back + got.gradient_report.replayed == 0);
    REQUIRE(got.report.first_nonfinite == -1);
    REQUIRE(got.experts == answers(p).experts);
}

TEST_CASE("both calls are captured and replayed") {
    problem const p = random_problem(11, dtype::f32, gate_rule::softmax_of_all, 20, 30, 4);
    answers const want = run(p);
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    on_device const d(p);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(d.replay(0, stream));
    must(d.push_back(0, stream));
    must(cudaStreamEndCapture(stream, &graph));
    REQUIRE(d.untouched());
    must(cudaGraphInstantiate(&replay, graph, 0));
    for (int round = 0; round < 2; ++round) {
        must(cudaGraphLaunch(replay, stream));
        must(cudaStreamSynchronize(stream));
        REQUIRE(d.fetch().same_bits(want));
    }
    must(cudaGraphExecDestroy(replay));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
}

TEST_CASE("what cannot be meant is cudaErrorInvalidValue, is put in words, launches and writes nothing") {
    struct misuse {
        std::string words;  ///< `*`: an address
        std::function<void(on_device&)> spoil;
        bool of_replay = true;
        bool of_gradient = true;
    };
    std::vector<misuse> const all{
        {"logits.rows = -1, must be >= 0", [](on_device& d) { d.logits.rows = -1; }},
        {"logits.data is absent", [](on_device& d) { d.logits.data = nullptr; }},
        {"logits have dtype i32, must be f32, f64, bf16 or f16", [](on_device& d) { d.logits.type = dtype::i32; }},
        {"logits.columns = 4097, must be at most 4096", [](on_device& d) { d.logits.columns = asyncrl::most_experts + 1; }},
        {"experts.rows = 2, must be that of the logits, 3", [](on_device& d) { d.given.rows = 2; }},
        {"experts.data is absent", [](on_device& d) { d.given.data = nullptr; }},
        {"experts.chosen = 0, must be in [1, 6]", [](on_device& d) { d.given.chosen = 0; }},
        {"experts.chosen = 7, must be in [1, 6]", [](on_device& d) { d.given.chosen = 7; }},
        {"gate_rule = 3, must be one of its enumerators", [](on_device& d) { d.rule = static_cast<gate_rule>(3); }},
        {"routing_options.selection_bias is given, but only gate_rule::sigmoid has one",
         [](on_device& d) {
             d.options.selection_bias = {d.logits.data, dtype::f32, 0, 1};
         }},
        {"routing_options.selection_bias has dtype bf16, must be f32 or f64",
         [](on_device& d) {
             d.rule = gate_rule::sigmoid;
             d.options.selection_bias = {d.logits.data, dtype::bf16, 0, 1};
         }},
        {"report = null, must point to device memory", [](on_device& d) { d.report = d.gradient_report = nullptr; }},
        {"gates.data is absent", [](on_device& d) { d.outputs.gates.data = nullptr; }, true, false},
        {"gates has dtype f64, but the logits have f32: both are f64, or each is f32, bf16 or f16",
         [](on_device& d) { d.outputs.gates.type = dtype::f64; }, true, false},
        {"gates.columns = 3, must be 2", [](on_device& d) { ++d.outputs.gates.columns; }, true, false},
        {"gates.row_stride = 1, must be at least its columns, 2", [](on_device& d) { d.outputs.gates.row_stride = 1; }, true,
         false},
        {"routing_outputs.experts_stride = 1, must be at least experts.chosen, 2",
         [](on_device& d) { d.outputs.experts_stride = 1; }, true, false},
        {"gate_slopes.data is absent", [](on_device& d) { d.slopes.data = nullptr; }, false},
        {"gate_slopes.rows = 2, must be that of the logits, 3", [](on_device& d) { d.slopes.rows = 2; }, false},
        {"gradient.data is absent", [](on_device& d) { d.gradient.data = nullptr; }, false},
        {"gradient.columns = 5, must be 6", [](on_device& d) { --d.gradient.columns; }, false},
        {"gradient.data overlaps logits.data, must lie apart from it",
         [](on_device& d) {
             d.gradient.data = const_cast<void*>(d.logits.data);
             d.gradient.type = dtype::bf16;
         },
         false},
        {"logits.data = 0x*, must be a multiple of 4",
         [](on_device& d) { d.logits.data = static_cast<std::byte const*>(d.logits.data) + 2; }},
        {"gates.data overlaps logits.data, must lie apart from it",
         [](on_device& d) {
             d.outputs.gates.data = const_cast<float*>(static_cast<float const*>(d.logits.data) + 1);
             d.outputs.gates.row_stride = d.logits.row_stride;
         },
         true, false},
        {"routing_outputs.experts overlaps experts.data, must lie apart from it",
         [](on_device& d) { d.outputs.experts = const_cast<std::int32_t*>(d.given.data) + 1; }, true, false},
        {"routing_outputs.experts overlaps gates.data, must lie apart from it",
         [](on_device& d) { d.outputs.experts = static_cast<std::int32_t*>(d.outputs.gates.data); }, true, false},
        {"gradient.data overlaps gate_slopes.data, must lie apart from it",
         [](on_device& d) { d.gradient.data = const_cast<void*>(d.slopes.data); }, false},
        {"report overlaps experts.data, must lie apart from it",
         [](on_device& d) {
             d.report = d.gradient_report = reinterpret_cast<routing_report*>(const_cast<std::int32_t*>(d.given.data));
         }},
    };
    problem const p = random_problem(12, dtype::f32, gate_rule::softmax_of_chosen, 3, 6, 2);
    for (misuse const& wrong : all) {
        on_device d(p);
        auto const of_replay = [&] {
            return device::routing_replay_refusal(d.logits, d.given, d.rule, d.outputs, d.report, d.options);
        };
        auto const of_gradient = [&] {
            return device::routing_replay_gradient_refusal(d.logits, d.given, d.rule, d.slopes, d.gradient, d.gradient_report,
                                                           d.options);
        };
        REQUIRE(of_replay() == "");
        REQUIRE(of_gradient() == "");
        wrong.spoil(d);
        CAPTURE(wrong.words, of_replay(), of_gradient());
        if (wrong.of_replay) {
            REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) { return d.replay(0, on); }));
            REQUIRE(device::is_like(of_replay(), wrong.words));
        }
        if (wrong.of_gradient) {
            REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) { return d.push_back(0, on); }));
            REQUIRE(device::is_like(of_gradient(), wrong.words));
        }
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    }
}

TEST_CASE("gates exactly over the logits, and experts over the recorded ones") {
    for (gate_rule const rule : every_rule) {
        problem const p = random_problem(13, dtype::f32, rule, 20, 9, 3);
        answers const want = run(p);
        on_device d(p);
        d.outputs.gates.data = const_cast<void*>(d.logits.data);
        d.outputs.gates.row_stride = d.logits.row_stride;
        d.outputs.experts = const_cast<std::int32_t*>(d.given.data);
        d.outputs.experts_stride = d.given.row_stride;
        REQUIRE(device::routing_replay_refusal(d.logits, d.given, d.rule, d.outputs, d.report, d.options) == "");
        must(d.replay());
        must(cudaDeviceSynchronize());
        for (std::size_t row = 0; row < 20; ++row) {
            float gates[3];
            std::int32_t experts[3];
            auto const at = static_cast<std::int64_t>(row);
            must(cudaMemcpy(gates, static_cast<float const*>(d.logits.data) + at * d.logits.row_stride, sizeof gates,
                            cudaMemcpyDeviceToHost));
            must(cudaMemcpy(experts, d.given.data + at * d.given.row_stride, sizeof experts, cudaMemcpyDeviceToHost));
            for (std::size_t k = 0; k < 3; ++k) {
                REQUIRE(static_cast<double>(gates[k]) == want.gates.row(row)[k]);
            }
        }
    }
}
