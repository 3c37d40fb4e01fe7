// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/metrics.hpp>

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace asyncrl;
using Catch::Matchers::WithinRel;

namespace {

version_runs runs_of(std::vector<version_run> const& parts) {
    version_runs runs;
    for (version_run const& part : parts) {
        runs.append(part.version, part.tokens);
    }
    return runs;
}

}  // namespace

static_assert(std::is_trivially_copyable_v<staleness_metrics>);

TEST_CASE("time in the queue counts: started and finished at 2, trained in batch 6", "[metrics]") {
    staleness_metrics metrics;
    metrics.train_unit({6}, {2}, {2});
    REQUIRE(metrics.counts.staleness.mean() == 4);
    REQUIRE(metrics.counts.in_flight.max() == 0);
    REQUIRE(metrics.counts.in_queue.min() == 4);
    metrics.train_unit({6}, {3}, {5});
    REQUIRE(metrics.counts.staleness.sum == 4 + 3);
    REQUIRE(metrics.counts.in_flight.sum == 0 + 2);
    REQUIRE(metrics.counts.in_queue.sum == 4 + 1);
    REQUIRE(metrics.counts.trained_units == 2);
}

TEST_CASE("a partial rollout is as stale as its last token, or as each token, by the variant", "[metrics]") {
    staleness_metrics metrics;
    metrics.train_trajectory({9}, runs_of({{{7}, 57}, {{8}, 71}}));
    metrics.train_trajectory({9}, runs_of({{{9}, 10}}));
    metrics.train_trajectory({9}, version_runs{});
    REQUIRE(metrics.counts.last_version.counts[1] == 1);
    REQUIRE(metrics.counts.last_version.counts[0] == 1);
    REQUIRE(metrics.counts.token_weighted.counts[2] == 57);
    REQUIRE(metrics.counts.token_weighted.counts[1] == 71);
    REQUIRE(metrics.counts.token_weighted.counts[0] == 10);
    REQUIRE_THAT(metrics.counts.token_weighted.mean(), WithinRel((57 * 2 + 71.0) / 138, 1e-12));
    REQUIRE(metrics.version_span_mean() == 1.5);
    REQUIRE(metrics.version_span_max() == 2);
    REQUIRE(metrics.version_span_min() == 1);
    REQUIRE(metrics.mean_trained_length() == 69);
}

TEST_CASE("a histogram keeps the future and the far past apart from the rest", "[metrics]") {
    staleness_histogram histogram;
    REQUIRE(histogram.mean() == 0);
    REQUIRE(histogram.min() == 0);
    REQUIRE(histogram.max() == 0);
    histogram.add(63);
    histogram.add(200, 2);
    REQUIRE(histogram.min() == 63);
    REQUIRE(histogram.max() == 64);
    REQUIRE(histogram.counts[64] == 2);
    histogram.add(-2);
    REQUIRE(histogram.future == 1);
    REQUIRE(histogram.counts[0] == 1);
    REQUIRE(histogram.total() == 4);
    REQUIRE(histogram.mean() == (63 + 400 - 2) / 4.0);
}

TEST_CASE("drops are told by reason and stage with what they cost, refusals by rule", "[metrics]") {
    staleness_metrics metrics;
    metrics.drop(drop_reason::stale, drop_stage::in_queue, 100);
    metrics.drop(drop_reason::stale, drop_stage::at_training, 30);
    metrics.drop(drop_reason::rejected, drop_stage::in_flight, 7);
    REQUIRE(metrics.dropped(drop_reason::stale) == 2);
    REQUIRE(metrics.dropped_tokens(drop_reason::stale) == 130);
    REQUIRE(metrics.dropped(drop_reason::rejected) == 1);
    REQUIRE(metrics.dropped(drop_reason::closed) == 0);
    auto const queue = static_cast<std::size_t>(drop_stage::in_queue);
    REQUIRE(metrics.counts.dropped[queue][static_cast<std::size_t>(drop_reason::stale)] == 1);
    REQUIRE(metrics.counts.dropped_tokens[queue][static_cast<std::size_t>(drop_reason::stale)] == 100);
    metrics.refuse(admission_status::no_place);
    metrics.refuse(admission_status::no_place);
    metrics.refuse(admission_status::open);
    REQUIRE(metrics.counts.refused[static_cast<std::size_t>(admission_status::no_place)] == 2);
    REQUIRE(metrics.counts.refused[static_cast<std::size_t>(admission_status::open)] == 0);
    static_assert(static_cast<std::size_t>(drop_reason::closed) + 1 == drop_reason_count);
    static_assert(static_cast<std::size_t>(drop_stage::at_training) + 1 == drop_stage_count);
}

TEST_CASE("waits by cause, rates and lengths", "[metrics]") {
    staleness_metrics metrics;
    REQUIRE(metrics.units_per_second() == 0);
    REQUIRE(metrics.mean_generated_length() == 0);
    metrics.wait(wait_cause::blocked, 2);
    metrics.wait(wait_cause::filling, 1);
    metrics.wait(wait_cause::blocked, 0.5);
    metrics.train_for(6);
    metrics.elapse(4);
    metrics.elapse(6);
    REQUIRE(metrics.seconds.blocked == 2.5);
    REQUIRE(metrics.seconds.filling == 1);
    REQUIRE(metrics.seconds.training == 6);
    for (std::int64_t const length : {10, 20, 90}) {
        metrics.generate(length);
    }
    metrics.train_unit({0}, {0}, {0});
    metrics.train_trajectory({0}, runs_of({{{0}, 10}}));
    metrics.train_trajectory({0}, runs_of({{{0}, 20}}));
    REQUIRE(metrics.units_per_second() == 0.1);
    REQUIRE(metrics.tokens_per_second() == 3);
    REQUIRE(metrics.mean_generated_length() == 40);
    REQUIRE(metrics.mean_trained_length() == 15);  // the long one was lost
    REQUIRE_THROWS_AS(metrics.wait(wait_cause::filling, -1), std::invalid_argument);
    REQUIRE_THROWS_AS(metrics.elapse(-1), std::invalid_argument);
    REQUIRE_THROWS_AS(metrics.train_for(-1), std::invalid_argument);
}

TEST_CASE("a group's retries and the window's place are taken over", "[metrics]") {
    staleness_metrics metrics;
    retry_budget good;
    retry_budget bad(1);
    bad.reject();
    bad.reject();
    bad.add_tokens(5);
    bad.settle();
    metrics.settle(good);
    metrics.settle(bad);
    REQUIRE(metrics.counts.rejected_groups == 1);
    REQUIRE(metrics.counts.rejected_samples == 2);
    REQUIRE(metrics.counts.retries == 1);
    REQUIRE(metrics.counts.waste_after_reject == 5);

    batch_window window({.keep_versions = 2});
    metrics.look_at(window);
    REQUIRE(metrics.maxima.current_version_index == -1);
    for (std::string_view const label : {"a", "b", "c"}) {
        window.observe(label);
    }
    metrics.look_at(window);
    REQUIRE(metrics.maxima.current_version_index == 2);
    REQUIRE(metrics.maxima.cutoff_version_index == 1);
}

TEST_CASE("metrics of two workers merge to those of one that saw both", "[metrics]") {
    staleness_metrics all, left, right;
    auto const tell = [&](staleness_metrics& mine, auto say) {
        say(mine);
        say(all);
    };
    tell(left, [](staleness_metrics& m) { m.train_unit({6}, {2}, {4}); });
    tell(left, [](staleness_metrics& m) { m.train_trajectory({6}, runs_of({{{2}, 5}, {{4}, 3}, {{5}, 1}})); });
    tell(left, [](staleness_metrics& m) { m.drop(drop_reason::closed, drop_stage::at_training, 11); });
    tell(left, [](staleness_metrics& m) { m.refuse(admission_status::max_in_flight); });
    tell(left, [](staleness_metrics& m) { m.wait(wait_cause::blocked, 3); });
    tell(right, [](staleness_metrics& m) { m.train_trajectory({7}, runs_of({{{6}, 5}, {{7}, 1}})); });
    tell(right, [](staleness_metrics& m) { m.train_unit({7}, {6}, {7}); });
    tell(right, [](staleness_metrics& m) { m.generate(9); });
    tell(right, [](staleness_metrics& m) { m.wait(wait_cause::filling, 2); });
    tell(right, [](staleness_metrics& m) { m.train_batch(); });
    left.elapse(5);
    right.elapse(4);
    all.elapse(5);  // the same stretch of time, seen by two
    staleness_metrics const merged = left + right;
    REQUIRE(merged.counts.staleness.counts == all.counts.staleness.counts);
    REQUIRE(merged.counts.staleness.sum == 5);
    REQUIRE(merged.counts.in_flight.sum == all.counts.in_flight.sum);
    REQUIRE(merged.counts.in_queue.sum == all.counts.in_queue.sum);
    REQUIRE(merged.counts.token_weighted.counts == all.counts.token_weighted.counts);
    REQUIRE(merged.counts.last_version.counts == all.counts.last_version.counts);
    REQUIRE(merged.counts.dropped == all.counts.dropped);
    REQUIRE(merged.counts.dropped_tokens == all.counts.dropped_tokens);
    REQUIRE(merged.counts.refused == all.counts.refused);
    REQUIRE(merged.counts.unversioned == 0);
    REQUIRE(merged.counts.batches == 1);
    REQUIRE(merged.counts.generated_tokens == 9);
    REQUIRE(merged.counts.trained_tokens == 15);
    REQUIRE(merged.seconds.blocked == 3);
    REQUIRE(merged.seconds.filling == 2);
    REQUIRE(merged.maxima.seconds == 5);
    REQUIRE(merged.version_span_min() == 2);
    REQUIRE(merged.version_span_max() == 3);
    REQUIRE(merged.version_span_mean() == 2.5);
}
