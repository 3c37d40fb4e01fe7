// SPDX-License-Identifier: Apache-2.0
/// @file What a run says: progress while it lasts, numbers that can be checked at its end, and JSON.
#pragma once

#include "options.hpp"
#include "run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

/// A run in a few numbers.
struct summary {
    double first_quarter = 0;  ///< mean reward of the batches in each quarter of the run
    double second_quarter = 0;
    double third_quarter = 0;
    double last_quarter = 0;
    double held_out = 0;                ///< share of held-out problems solved after the run
    double held_out_error = 0;          ///< its standard error
    double mismatch = 0;                ///< mean |log old - log rollout| over tokens, in nats
    double last_mismatch = 0;           ///< of the last quarter
    double largest_mismatch = 0;        ///< of one token
    double over_cap = 0;                ///< share of tokens with w = old / rollout above 2
    double below_one = 0;               ///< share of tokens with w below 1
    double effective_sample_share = 0;  ///< of the weights that the loss used
    double clipped = 0;                 ///< share of tokens beyond a bound of the clip
    double entropy = 0;                 ///< of the last quarter, in nats per token
    double collapsed = 0;               ///< 1 or 0
    double tokens = 0;                  ///< trained on
    double publishing_seconds = 0;      ///< in all
    double generation_ratio = 0;        ///< seconds generating per second training
};
inline constexpr std::array<std::pair<char const*, double summary::*>, 18> summary_fields{{
    {"first_quarter", &summary::first_quarter},
    {"second_quarter", &summary::second_quarter},
    {"third_quarter", &summary::third_quarter},
    {"last_quarter", &summary::last_quarter},
    {"held_out", &summary::held_out},
    {"held_out_error", &summary::held_out_error},
    {"mismatch", &summary::mismatch},
    {"last_mismatch", &summary::last_mismatch},
    {"largest_mismatch", &summary::largest_mismatch},
    {"over_cap", &summary::over_cap},
    {"below_one", &summary::below_one},
    {"effective_sample_share", &summary::effective_sample_share},
    {"clipped", &summary::clipped},
    {"entropy", &summary::entropy},
    {"collapsed", &summary::collapsed},
    {"tokens", &summary::tokens},
    {"publishing_seconds", &summary::publishing_seconds},
    {"generation_ratio", &summary::generation_ratio},
}};

/// Whether the mean reward of 5 batches ends below half of the best that it had reached.
inline bool has_collapsed(std::vector<step_report> const& steps) {
    constexpr std::size_t window = 5;
    double best = 0;
    double mean = 0;
    for (std::size_t end = window; end <= steps.size(); ++end) {
        mean = 0;
        for (std::size_t i = end - window; i < end; ++i) {
            mean += steps[i].reward / window;
        }
        best = std::max(best, mean);
    }
    return mean < best / 2;
}

/// `trained` is what the run has made.
inline summary summarize(run_result const& run, policy<float> const& trained) {
    using sums = asyncrl::mismatch_report::sum_range;
    using counts = asyncrl::mismatch_report::count_range;
    using loss_counts = asyncrl::loss_report::count_range;
    constexpr std::array quarters{&summary::first_quarter, &summary::second_quarter, &summary::third_quarter,
                                  &summary::last_quarter};
    summary s;
    asyncrl::mismatch_report all;
    asyncrl::loss_report loss;
    for (std::size_t quarter = 0; quarter < 4; ++quarter) {
        std::size_t const begin = run.steps.size() * quarter / 4;
        std::size_t const end = run.steps.size() * (quarter + 1) / 4;
        asyncrl::mismatch_report part;
        s.entropy = 0;
        for (std::size_t i = begin; i < end; ++i) {
            s.*quarters[quarter] += run.steps[i].reward / static_cast<double>(end - begin);
            s.entropy += run.steps[i].entropy / static_cast<double>(end - begin);
            part += run.steps[i].mismatch;
            loss += run.steps[i].loss;
        }
        s.last_mismatch = part.mean(&sums::absolute_log_ratio);
        all += part;
    }
    s.held_out = held_out_rate(trained);
    s.held_out_error = std::sqrt(s.held_out * (1 - s.held_out) / held_out_problems);
    s.mismatch = all.mean(&sums::absolute_log_ratio);
    s.largest_mismatch = all.largest_absolute_log_ratio();
    s.over_cap = all.share(&counts::at_cap);
    s.below_one = all.share(&counts::below_one);
    s.effective_sample_share = loss.effective_sample_share();
    s.clipped = loss.share(&loss_counts::clipped_high) + loss.share(&loss_counts::clipped_low);
    s.collapsed = has_collapsed(run.steps) ? 1 : 0;
    s.tokens = static_cast<double>(all.counts.tokens);
    s.publishing_seconds = run.seconds.publishing;
    s.generation_ratio = run.seconds.generating / run.seconds.training;
    return s;
}

/// One line that is rewritten on a terminal; elsewhere a line at each tenth of the work.
class progress {
  public:
    explicit progress(int total) : total_(total), is_terminal_(isatty(STDOUT_FILENO) == 1) {}

    void show(int done, std::string const& text) const {
        if (is_terminal_) {
            fmt::print("\r[{:.<20}] {}/{}  {} {}", std::string(static_cast<std::size_t>(20 * done / total_), '#'), done, total_,
                       text, done == total_ ? "\n" : "");
        } else if (done * 10 / total_ != (done - 1) * 10 / total_) {
            fmt::print("{}/{}  {}\n", done, total_, text);
        }
        std::fflush(stdout);
    }

  private:
    int total_;
    bool is_terminal_;
};

inline void print_run(options const& o, run_result const& run, double held_out_before, summary const& s) {
    fmt::print("\nstaleness of the trained units, in batches ({} {})\n", o.lag ? "lag" : "bound", o.bound());
    for (std::size_t i = 0; i < run.staleness_histogram.size(); ++i) {
        std::int64_t const units = run.staleness_histogram[i];
        fmt::print("  {:2} {:8}  {}\n", i, units, std::string(static_cast<std::size_t>(50 * units / run.units.taken), '#'));
    }
    std::int64_t answers = 0;
    std::int64_t switched = 0;
    for (step_report const& step : run.steps) {
        answers += step.answers;
        switched += step.switched;
    }
    fmt::print("units     {} admitted = {} trained + {} in flight + {} completed and not trained + {} dropped\n",
               run.units.admitted, run.units.taken, run.units.in_flight, run.units.completed, run.units.dropped_total());
    if (o.keep_versions || o.max_switches) {
        fmt::print("dropped   {} by the window over versions, {} groups rejected for crossing too many\n",
                   run.units.dropped_for(asyncrl::drop_reason::stale), run.units.dropped_for(asyncrl::drop_reason::rejected));
    }
    fmt::print("answers   {} with {:.0f} tokens; {} answers went on under new weights\n", answers, s.tokens, switched);
    fmt::print(
        "mismatch  mean |log(old / rollout)| {:.2g} nats, last quarter {:.2g}, largest {:.2g}; {:.1f} % of tokens above 2\n",
        s.mismatch, s.last_mismatch, s.largest_mismatch, 100 * s.over_cap);
    fmt::print("weights   {}; effective sample size {:.1f} %; {:.2f} % of tokens clipped\n",
               correction_names[static_cast<std::size_t>(o.weight)], 100 * s.effective_sample_share, 100 * s.clipped);
    fmt::print("entropy   {:.3f} nats per token in the last quarter\n", s.entropy);
    fmt::print("reward    {:.3f}  {:.3f}  {:.3f}  {:.3f}  by quarter of the run{}\n", s.first_quarter, s.second_quarter,
               s.third_quarter, s.last_quarter, s.collapsed > 0 ? ": collapsed" : "");
    fmt::print("held out  {:.3f} before, {:.3f} after, standard error {:.3f}\n", held_out_before, s.held_out, s.held_out_error);
    fmt::print("rollouts  {:.1f} s generating, {:.1f} s waiting for admission, over {} threads\n", run.seconds.generating,
               run.seconds.waiting_for_admission, o.threads);
    fmt::print("trainer   {:.1f} s training, {:.1f} s waiting for batches, {:.2f} s publishing; {:.1f} s in all\n",
               run.seconds.training, run.seconds.waiting_for_batches, run.seconds.publishing, run.seconds.all);
}

/// The members of a JSON object that says what was run and what came of it; a run and a sweep share them.
inline std::string json_members(options const& o, summary const& s) {
    std::string text =
        fmt::format(R"("{}": {}, "correction": "{}", "precision": "{}", "learning_rate": {}, "clip_low": {}, "clip_high": {}, )"
                    R"("steps": {}, "groups": {}, "members": {}, "minibatches": {}, "warm_start": {}, "seed": {})",
                    o.lag ? "lag" : "staleness", o.bound(), correction_names[static_cast<std::size_t>(o.weight)],
                    precision_names[static_cast<std::size_t>(o.engines)], o.learning_rate, o.clip_low, o.clip_high, o.steps,
                    o.groups, o.members, o.minibatches, o.warm_start, o.seed);
    for (auto const& [name, field] : summary_fields) {
        text += fmt::format(R"(, "{}": {:.6g})", name, s.*field);
    }
    return text;
}

inline std::string json(options const& o, run_result const& run, double held_out_before, summary const& s) {
    auto const by_step = [&](char const* name, auto&& value) {
        std::vector<double> values;
        for (step_report const& step : run.steps) {
            values.push_back(value(step));
        }
        return fmt::format("  \"{}\": [{:.6g}],\n", name, fmt::join(values, ", "));
    };
    using sums = asyncrl::mismatch_report::sum_range;
    return fmt::format("{{\n  {},\n", json_members(o, s)) +
           by_step("reward_by_batch", [](step_report const& step) { return step.reward; }) +
           by_step("entropy_by_batch", [](step_report const& step) { return step.entropy; }) +
           by_step("staleness_by_batch", [](step_report const& step) { return step.staleness; }) +
           by_step("mismatch_by_batch", [](step_report const& step) { return step.mismatch.mean(&sums::absolute_log_ratio); }) +
           fmt::format("  \"staleness_histogram\": [{}],\n", fmt::join(run.staleness_histogram, ", ")) +
           fmt::format(R"(  "admitted": {}, "trained": {}, "in_flight": {}, "completed": {}, "dropped": {},)"
                       "\n",
                       run.units.admitted, run.units.taken, run.units.in_flight, run.units.completed,
                       run.units.dropped_total()) +
           fmt::format(
               R"(  "reward_gain": {:.6g}, "held_out_before": {:.6g}, "seconds": {{"generating": {:.3f}, "waiting_for_admission": {:.3f}, )"
               R"("training": {:.3f}, "waiting_for_batches": {:.3f}, "publishing": {:.3f}, "all": {:.3f}}})"
               "\n}}\n",
               s.last_quarter - s.first_quarter, held_out_before, run.seconds.generating, run.seconds.waiting_for_admission,
               run.seconds.training, run.seconds.waiting_for_batches, run.seconds.publishing, run.seconds.all);
}
