// SPDX-License-Identifier: Apache-2.0
/// Objectives that together use every part, on random batches: against whole-array formulas, and in micro-batches.
#include "catch.hpp"
#include "support/examples.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

using namespace arrays;

namespace {

[[nodiscard]] std::vector<example> all_examples() {
    std::vector<example> all;
    for (auto const& some :
         {clip_examples(), score_examples(), weight_examples(), gate_examples(), coupling_examples(), sequence_examples()}) {
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

/// Relative to the sizes of the terms that make up a number, as the oracle gives them, plus as much absolutely; gradients in
/// units of the reduction's weight. In float the logarithms of ratios are differences and sums of rounded numbers.
struct allowance {
    double relative;
    double absolute;
    double near;  ///< a decision this near its bound may fall either way
};
constexpr allowance for_double{1e-11, 1e-11, 1e-11};
constexpr allowance for_float{4e-6, 1e-6, 1e-6};

struct outcome {
    std::string difference;  ///< the first one; empty where library and oracle agree
    int undecided = 0;       ///< tokens so near a bound that they were not compared
    int tokens = 0;
    int kept = 0;
};

[[nodiscard]] outcome compare(example const& e, memory& at, bool single) {
    outcome found;
    std::ostringstream line;
    line.precision(17);
    auto const differs = [&](auto const&... words) {
        if (line.str().empty()) {
            (line << ... << words);
        }
    };
    allowance const allow = single ? for_float : for_double;
    answer const want = evaluate(e.means, at.source.values);
    asyncrl::workspace scratch(at.batch);
    asyncrl::totals const sums = e.objective.measure(at.batch, scratch);
    asyncrl::loss_report const report = e.objective.loss(at.batch, sums, at.to(), scratch);

    double reduced_size = 0;
    for (Eigen::Index i = 0; i < at.size(); ++i) {
        if (!at.source.values.active(i)) {
            bool const zero = at.gradient(i) == 0 && at.loss(i) == 0 && at.weight(i) == 0 && !std::signbit(at.gradient(i));
            if (!zero || at.flags[static_cast<std::size_t>(i)] != 0) {
                differs("inactive position ", i, " has gradient ", at.gradient(i), ", loss ", at.loss(i));
            }
            continue;
        }
        ++found.tokens;
        found.kept += want.kept(i) ? 1 : 0;
        reduced_size += want.size(i) * want.share(i);
        if (want.margin(i) < allow.near) {
            ++found.undecided;
            continue;
        }
        double const size = allow.relative * want.size(i) + allow.absolute;
        auto const number = [&](char const* name, double got, double expected, double within) {
            if (!(std::abs(got - expected) <= within)) {
                differs(name, "[", i, "] of row ", at.source.values.row(i), " is ", got, ", expected ", expected, " to ",
                        within, ", margin ", want.margin(i));
            }
        };
        number("loss", at.loss(i), want.loss(i), size);
        number("gradient", at.gradient(i), want.gradient(i), size * want.share(i));
        number("weight", at.weight(i), want.weight(i), size + allow.relative * want.weight(i));
        if (at.flags[static_cast<std::size_t>(i)] != want.flags(i)) {
            differs("flags[", i, "] are ", at.flags[static_cast<std::size_t>(i)], ", expected ", want.flags(i), ", margin ",
                    want.margin(i));
        }
    }
    auto const count = [&](char const* name, std::int64_t got, std::int64_t expected, int slack = 0) {
        if (std::abs(got - expected) > slack) {
            differs(name, " are ", got, ", expected ", expected);
        }
    };
    count("tokens", sums.counts.tokens, want.tokens);
    count("sequences", sums.counts.sequences, want.sequences);
    if (e.means.over_kept) {
        count("kept tokens", sums.counts.kept_tokens, want.kept_tokens, found.undecided);
        count("kept sequences", sums.counts.kept_sequences, want.kept_sequences, found.undecided);
    }
    count("kept in the report", report.counts.kept, want.kept_tokens, found.undecided);
    if ((e.means.ratio.kind == loss::sat || e.means.ratio.kind == loss::sat_dual) &&
        !(std::abs(sums.quantile - want.quantile) <= allow.relative * want.quantile + 1e-7)) {
        differs("the quantile is ", sums.quantile, ", expected ", want.quantile);
    }
    if (found.undecided == 0) {
        double const size = allow.relative * reduced_size;
        if (!(std::abs(report.sums.loss - want.reduced) <= size)) {
            differs("the reduced loss is ", report.sums.loss, ", expected ", want.reduced);
        }
        if (!(std::abs(report.sums.absolute_loss - want.absolute) <= size)) {
            differs("the reduced |loss| is ", report.sums.absolute_loss, ", expected ", want.absolute);
        }
        if (!(std::abs(report.sums.penalty - want.penalty) <= allow.relative * (1 + std::abs(want.penalty)) * 10)) {
            differs("the penalty is ", report.sums.penalty, ", expected ", want.penalty);
        }
    }
    found.difference = line.str();
    return found;
}

[[nodiscard]] std::vector<int> random_lengths(stream& random, int rows) {
    std::vector<int> lengths;
    for (int row = 0; row < rows; ++row) {
        lengths.push_back(random.chance(0.3) ? 1 + random.below(300) : 1 + random.below(40));
    }
    lengths[0] = 300;
    lengths.insert(lengths.begin() + 3, {0, 1});
    return lengths;
}

[[nodiscard]] std::string describe(shape const& how) {
    return std::string(how.packed ? "packed" : "padded") + (how.single ? ", float" : ", double") +
           (how.row_advantage ? ", one advantage a row" : "") + (how.segments ? ", segments" : "");
}

void check_all(bool single) {
    int undecided = 0;
    int tokens = 0;
    for (example const& e : all_examples()) {
        int kept = 0;
        int seen = 0;
        for (int repeat = 0; repeat < 6; ++repeat) {
            stream random(static_cast<std::uint64_t>(100 + repeat));
            shape how;
            how.single = single;
            how.packed = repeat % 3 != 0;
            how.row_advantage = repeat % 2 == 0;
            how.segments = repeat == 1 || repeat == 5;
            how.missing = repeat < 3 ? how.missing : -9999;
            how.lengths = random_lengths(random, 9);
            memory at(random_positions(random, how), how);
            outcome const found = compare(e, at, single);
            INFO(e.name << ": " << describe(how) << ", repeat " << repeat);
            CHECK(found.difference == "");
            undecided += found.undecided;
            tokens += found.tokens;
            kept += found.kept;
            seen += found.tokens;
        }
        INFO(e.name << ": " << kept << " kept of " << seen);
        CHECK(kept > seen / 100);
    }
    INFO(undecided << " of " << tokens << " tokens undecided");
    CHECK(undecided < tokens / 1000);
}

}  // namespace

TEST_CASE("every part agrees with whole-array formulas in double") {
    CHECK(all_examples().size() >= 25);
    check_all(false);
}

TEST_CASE("every part agrees with whole-array formulas in float") {
    check_all(true);
}

TEST_CASE("one advantage a row is that of all its segments") {
    for (example const& e : all_examples()) {
        for (bool const single : {false, true}) {
            stream random(102);
            shape how;
            how.single = single;
            how.row_advantage = true;
            how.segments = true;
            how.lengths = random_lengths(random, 9);
            memory at(random_positions(random, how), how);
            INFO(e.name << ": " << describe(how));
            CHECK(compare(e, at, single).difference == "");
        }
    }
}

TEST_CASE("a step in one batch or in three micro-batches with added totals has the same loss and gradient") {
    for (example const& e : all_examples()) {
        stream random(7);
        shape how;
        how.lengths = random_lengths(random, 10);
        memory whole(random_positions(random, how), how);
        asyncrl::workspace scratch(whole.batch);
        asyncrl::totals const sums = e.objective.measure(whole.batch, scratch);
        double const loss = e.objective.loss(whole.batch, sums, whole.to(), scratch).sums.loss;

        auto const rows = static_cast<std::size_t>(whole.batch.rows);
        std::vector<std::size_t> const cuts{0, 2, 7, rows};
        std::vector<asyncrl::token_batch> parts;
        std::vector<std::vector<std::int64_t>> offsets(3);
        asyncrl::totals added;
        for (std::size_t part = 0; part < 3; ++part) {
            std::int64_t const begin = whole.source.offsets[cuts[part]];
            for (std::size_t row = cuts[part]; row <= cuts[part + 1]; ++row) {
                offsets[part].push_back(whole.source.offsets[row] - begin);
            }
            asyncrl::token_batch b = whole.batch;
            b.rows = static_cast<std::int64_t>(cuts[part + 1] - cuts[part]);
            b.tokens = offsets[part].back();
            b.offsets = offsets[part].data();
            for (asyncrl::column* c :
                 {&b.log_prob, &b.old_log_prob, &b.rollout_log_prob, &b.advantage, &b.anchor_log_prob, &b.reference_log_prob,
                  &b.sync_log_prob, &b.log_kept_mass, &b.weight, &b.divergence, &b.score}) {
                c->data = static_cast<double const*>(c->data) + begin;
            }
            b.mask.data = static_cast<std::uint8_t const*>(b.mask.data) + begin;
            b.keep.data = static_cast<std::uint8_t const*>(b.keep.data) + begin;
            b.version.data = static_cast<std::int32_t const*>(b.version.data) + begin;
            parts.push_back(b);
            added += e.objective.measure(b, scratch);
        }
        added.quantile = sums.quantile;
        std::vector<double> gradient(static_cast<std::size_t>(whole.size()));
        double share = 0;
        for (std::size_t part = 0; part < 3; ++part) {
            std::int64_t const begin = whole.source.offsets[cuts[part]];
            share += e.objective.loss(parts[part], added, asyncrl::per_token(gradient.data() + begin), scratch).sums.loss;
        }
        INFO(e.name);
        CHECK(added.counts.batches == 3);
        CHECK(added.counts.kept_tokens == sums.counts.kept_tokens);
        CHECK(std::abs(share - loss) <= 1e-12 * (1 + std::abs(loss)));
        double off = 0;
        for (Eigen::Index i = 0; i < whole.size(); ++i) {
            double const want = whole.gradient(i);
            off = std::max(off, std::abs(gradient[static_cast<std::size_t>(i)] - want) / std::max(1e-3, std::abs(want)));
        }
        CHECK(off <= 1e-12);
    }
}
