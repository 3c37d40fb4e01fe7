// SPDX-License-Identifier: Apache-2.0
/// @file How far do an engine's log-probs lie from the trainer's when both hold the same weights? The policy of the training
/// example, decoded step by step and recomputed at once, in several arithmetics. The program fails if what
/// docs/experiments.md says of them does not hold.
///
///   mismatch [--answers N (3000)] [--csv DIRECTORY]
#include "../async_training/learner.hpp"
#include "engine.hpp"
#include "scoring.hpp"

#include <asyncrl/correction/mismatch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct options {
    std::size_t answers = 3000;
    std::filesystem::path csv{};  ///< none: nothing is written
};

options read_options(std::span<char const* const> words) {
    options o;
    for (std::size_t i = 0; i < words.size(); i += 2) {
        std::string_view const option = words[i];
        std::string_view const value = i + 1 < words.size() ? words[i + 1] : "";
        if (option == "--csv" && !value.empty()) {
            o.csv = value;
        } else if (option == "--answers") {
            auto const [end, failure] = std::from_chars(value.data(), value.data() + value.size(), o.answers);
            if (failure != std::errc() || end != value.data() + value.size() || o.answers < 300 || o.answers > 1'000'000) {
                throw std::invalid_argument(fmt::format("--answers '{}': must be a number from 300 to 1000000", value));
            }
        } else {
            throw std::invalid_argument(fmt::format("'{}': must be --answers N or --csv DIRECTORY", option));
        }
    }
    return o;
}

constexpr arithmetic in_fp32{};
constexpr arithmetic in_bf16{.weights = precision::bf16, .activations = precision::bf16};
constexpr arithmetic in_bf16_fp32_head{.weights = precision::bf16, .activations = precision::bf16, .fp32_head = true};
constexpr arithmetic in_bf16_fp32_sums{.weights = precision::bf16, .activations = precision::bf16, .fp32_partial_sums = true};
constexpr arithmetic bf16_weights{.weights = precision::bf16};
constexpr arithmetic fp8_weights{.weights = precision::fp8};

/// Log-probs of the same tokens by two policies that should be one.
struct comparison {
    std::string name;
    minibatch const* tokens;
    std::vector<float> trainer, rollout;

    [[nodiscard]] double difference(std::size_t i) const { return std::abs(static_cast<double>(trainer[i]) - rollout[i]); }
};

/// Statistics of trainer / rollout, over the tokens of the mask if there is one.
asyncrl::mismatch_report measure(comparison const& c, std::vector<std::uint8_t> const* mask = nullptr) {
    // [snippet: mismatch]
    asyncrl::token_batch batch{.rows = static_cast<std::int64_t>(c.tokens->offsets.size()) - 1,
                               .tokens = static_cast<std::int64_t>(c.trainer.size()),
                               .offsets = c.tokens->offsets.data()};
    batch.old_log_prob = asyncrl::per_token(c.trainer.data());
    batch.rollout_log_prob = asyncrl::per_token(c.rollout.data());
    batch.mask = mask != nullptr ? asyncrl::per_token(mask->data()) : asyncrl::column{};
    asyncrl::workspace scratch(batch);
    return asyncrl::mismatch(batch, scratch);
    // [snippet: end]
}

constexpr std::array<double, 5> bin_edges{0, 0.1, 0.5, 0.9, 1};
constexpr std::size_t bins = bin_edges.size() - 1;

/// The same for the tokens whose probability under the rollout policy lies in one bin; the last one is closed.
asyncrl::mismatch_report measure_bin(comparison const& c, std::size_t bin) {
    std::vector<std::uint8_t> mask;
    for (float const log_prob : c.rollout) {
        double const p = std::exp(static_cast<double>(log_prob));
        mask.push_back(p >= bin_edges[bin] && (p < bin_edges[bin + 1] || bin + 1 == bins) ? 1 : 0);
    }
    return measure(c, &mask);
}

using sums = asyncrl::mismatch_report::sum_range;
using counts = asyncrl::mismatch_report::count_range;

double mean(asyncrl::mismatch_report const& report) {
    return report.mean(&sums::absolute_log_ratio);
}

void print_comparisons(std::vector<comparison> const& all) {
    fmt::print("{:<46} | mean|d| |  median |     p99 |     max | max |seq sum| | token ratios | sequence ratios\n",
               "comparison");
    for (comparison const& c : all) {
        asyncrl::mismatch_report const r = measure(c);
        fmt::print("{:<46} | {:.1e} | {:.1e} | {:.1e} | {:.1e} | {:13.1e} | {:.3f}, {:.3f} | {:.3f}, {:.3f}\n", c.name, mean(r),
                   r.absolute_log_ratio_quantile(0.5), r.absolute_log_ratio_quantile(0.99), r.largest_absolute_log_ratio(),
                   r.largest_absolute_sequence_log_ratio(), r.smallest_ratio(), r.largest_ratio(), r.smallest_sequence_ratio(),
                   r.largest_sequence_ratio());
    }
}

void print_bins(std::vector<comparison> const& all) {
    fmt::print("\n{:<46} |", "mean |d| (tokens) by rollout probability");
    for (std::size_t bin = 0; bin < bins; ++bin) {
        fmt::print(" {:>16} |", fmt::format("[{}, {}{}", bin_edges[bin], bin_edges[bin + 1], bin + 1 < bins ? ")" : "]"));
    }
    fmt::print("\n");
    for (comparison const& c : all) {
        fmt::print("{:<46} |", c.name);
        for (std::size_t bin = 0; bin < bins; ++bin) {
            asyncrl::mismatch_report const r = measure_bin(c, bin);
            fmt::print(" {:.1e} ({:>6}) |", mean(r), r.counts.tokens);
        }
        fmt::print("\n");
    }
}

void write_csv(std::vector<comparison> const& all, std::filesystem::path const& directory) {
    std::filesystem::create_directories(directory);
    std::ofstream cdf(directory / "cdf.csv");
    std::ofstream by_bin(directory / "bins.csv");
    cdf << "comparison,share,absolute_difference\n";
    by_bin << "comparison,low,high,tokens,mean,median,p99,largest\n";
    for (comparison const& c : all) {
        std::vector<double> sorted;
        for (std::size_t i = 0; i < c.trainer.size(); ++i) {
            sorted.push_back(c.difference(i));
        }
        std::sort(sorted.begin(), sorted.end());
        constexpr std::size_t points = 200;
        for (std::size_t point = 1; point <= points; ++point) {
            std::size_t const rank = (sorted.size() * point + points - 1) / points;  // the smallest with that share at or below
            cdf << fmt::format("\"{}\",{},{:.9g}\n", c.name, static_cast<double>(point) / points, sorted[rank - 1]);
        }
        for (std::size_t bin = 0; bin < bins; ++bin) {
            asyncrl::mismatch_report const r = measure_bin(c, bin);
            by_bin << fmt::format("\"{}\",{},{},{},{:.9g},{:.9g},{:.9g},{:.9g}\n", c.name, bin_edges[bin], bin_edges[bin + 1],
                                  r.counts.tokens, mean(r), r.absolute_log_ratio_quantile(0.5),
                                  r.absolute_log_ratio_quantile(0.99), r.largest_absolute_log_ratio());
        }
    }
    if (!cdf.flush() || !by_bin.flush()) {
        throw std::runtime_error(fmt::format("--csv '{}': cannot be written", directory.string()));
    }
}

enum row : std::size_t {
    bf16_1_against_engine,
    bf16_30_against_engine,
    fp32_1_against_engine,
    bf16_trainers,
    fp32_trainers,
    fp32_sums_trainers,
    engine_at_1,
    engine_at_10,
    both_at_1,
    fp32_head,
    rounded_to_bf16,
    rounded_to_fp8,
};

/// Samples with an engine of each arithmetic, 30 answers at a time.
std::array<minibatch, 4> write_answers(policy<float> const& trained, std::size_t answers) {
    auto const by = [&](arithmetic how) {
        engine sampler(trained, how);
        return sample(sampler, 1, answers, 30);
    };
    return {by(in_bf16), by(in_bf16_fp32_head), by(bf16_weights), by(fp8_weights)};
}

/// Scores what was sampled in all the ways that are compared, in the order of `row`.
std::vector<comparison> compare(policy<float> const& trained, std::array<minibatch, 4> const& written) {
    engine fp32(trained, in_fp32);
    engine bf16(trained, in_bf16);
    engine head(trained, in_bf16_fp32_head);
    engine wide_sums(trained, in_bf16_fp32_sums);
    auto const& [tokens, by_head, by_bf16_weights, by_fp8_weights] = written;
    std::vector<float> const& decoded = tokens.rollout_log_prob;
    auto const bf16_1 = score_whole(bf16, tokens, 1);
    auto const bf16_30 = score_whole(bf16, tokens, 30);
    auto const fp32_1 = score_whole(fp32, tokens, 1);
    auto const step_1 = score_stepwise(bf16, tokens, 1);
    auto const step_10 = score_stepwise(bf16, tokens, 10);
    auto const against_engine = [](char const* name, engine& trainer, minibatch const& sampled) {
        return comparison{name, &sampled, score_whole(trainer, sampled, 30), sampled.rollout_log_prob};
    };
    return {{"bf16 trainer, batch 1 / bf16 engine, batch 30", &tokens, bf16_1, decoded},
            {"bf16 trainer, batch 30 / bf16 engine, batch 30", &tokens, bf16_30, decoded},
            {"fp32 trainer, batch 1 / bf16 engine, batch 30", &tokens, fp32_1, decoded},
            {"bf16 trainer, batch 1 / batch 30", &tokens, bf16_1, bf16_30},
            {"fp32 trainer, batch 1 / batch 30", &tokens, fp32_1, score_whole(fp32, tokens, 30)},
            {"bf16 trainer, fp32 partial sums, batch 1 / 30", &tokens, score_whole(wide_sums, tokens, 1),
             score_whole(wide_sums, tokens, 30)},
            {"bf16 engine, batch 1 / batch 30", &tokens, step_1, decoded},
            {"bf16 engine, batch 10 / batch 30", &tokens, step_10, decoded},
            {"bf16 trainer, batch 1 / bf16 engine, batch 1", &tokens, bf16_1, step_1},
            against_engine("bf16 with an fp32 head, both at batch 30", head, by_head),
            against_engine("fp32 trainer / engine with bf16 weights", fp32, by_bf16_weights),
            against_engine("fp32 trainer / engine with fp8 weights", fp32, by_fp8_weights)};
}

/// The policy of the training example itself, for the tokens that were sampled.
std::vector<float> score_by_example(policy<float> const& trained, minibatch const& written) {
    policy<float>::activations scratch;
    trained.forward(written.contexts, scratch);
    std::vector<float> log_prob;
    for (std::size_t i = 0; i < written.tokens.size(); ++i) {
        log_prob.push_back(scratch.log_probs(written.tokens[i], static_cast<Eigen::Index>(i)));
    }
    return log_prob;
}

bool check(char const* statement, bool holds) {
    fmt::print("{:<92} {}\n", statement, holds ? "holds" : "DOES NOT HOLD");
    return holds;
}

bool check_statements(policy<float> const& trained, minibatch const& tokens, std::vector<comparison> const& all) {
    fmt::print("\n");
    engine bf16(trained, in_bf16);
    comparison const to_example{"", &tokens, score_by_example(trained, tokens), all[fp32_1_against_engine].trainer};
    auto const mean_of = [&](row which) { return mean(measure(all[which])); };
    auto const each = [&](auto const& predicate) { return std::all_of(all.begin(), all.end(), predicate); };

    bool held = check("in fp32 the kernels give what the training example's policy gives, to 1e-5",
                      measure(to_example).largest_absolute_log_ratio() < 1e-5);
    held &= check("decoding the same tokens again gives the same bits",
                  score_stepwise(bf16, tokens, 30) == tokens.rollout_log_prob);
    held &= check("where trainer and engine have equal batches, their bits are equal", mean_of(both_at_1) == 0);
    held &= check("bf16: the batch alone makes at least half of the gap between trainer and engine",
                  mean_of(bf16_trainers) > mean_of(bf16_1_against_engine) / 2 &&
                      mean_of(engine_at_10) > mean_of(bf16_1_against_engine) / 2);
    held &= check("fp32: the batch alone makes less than a thousandth of that",
                  mean_of(fp32_trainers) < mean_of(bf16_trainers) / 1000);
    held &= check("bf16 with partial sums in fp32: less than a hundredth",
                  mean_of(fp32_sums_trainers) < mean_of(bf16_trainers) / 100);
    held &= check("an fp32 trainer is no nearer to a bf16 engine than a bf16 trainer is",
                  mean_of(fp32_1_against_engine) > mean_of(bf16_1_against_engine));
    held &= check("an fp32 head on both sides brings them nearer", mean_of(fp32_head) < 0.8 * mean_of(bf16_30_against_engine));
    held &=
        check("fp8 weights are ten times as far off as bf16 weights", mean_of(rounded_to_fp8) > 10 * mean_of(rounded_to_bf16));
    held &= check("tokens below probability 0.1 are at least ten times as far off as those above 0.9",
                  each([](comparison const& c) { return mean(measure_bin(c, 0)) >= 10 * mean(measure_bin(c, bins - 1)); }));
    held &= check("no ratio reaches the cap 2 of TIS or leaves the band [0.5, 5] of MIS", each([](comparison const& c) {
                      asyncrl::mismatch_report const r = measure(c);
                      return r.counts.at_cap == 0 && r.counts.out_of_band == 0;
                  }));
    return held;
}

}  // namespace

int main(int argc, char** argv) try {
    options const o = read_options({argv + 1, argv + argc});
    policy<float> const trained = warm_start(1, 120);  // where training begins
    std::array<minibatch, 4> const written = write_answers(trained, o.answers);
    std::vector<comparison> const all = compare(trained, written);
    fmt::print("{} answers with {} tokens\n", o.answers, written[0].tokens.size());
    print_comparisons(all);
    print_bins(all);
    if (!o.csv.empty()) {
        write_csv(all, o.csv);
    }
    return check_statements(trained, written[0], all) ? 0 : 1;
} catch (std::exception const& failure) {
    fmt::print(stderr, "mismatch: {}\n", failure.what());
    return 2;
}
