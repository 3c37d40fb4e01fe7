// SPDX-License-Identifier: Apache-2.0
/// @file Limits that do not stay fixed for a whole run: windows that follow how far the policy moves, phases, weights that fall
/// with staleness, and how many tokens still fit before the next swap of weights.
///
/// *Drift* is how far two consecutive versions are apart, measured by the caller: a mean |log ratio| (`loss_report`,
/// `mismatch`) or a KL divergence. Its unit is the caller's, as long as marks and measurements share it.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

// --- windows that follow drift -----------------------------------------------------------------------------------------------

struct adaptive_limit_options {
    std::int64_t min = 1;
    std::int64_t max = 8;
    double narrow_above = 0;      ///< drift above this narrows by one at once
    double widen_below = 0;       ///< drift below this, `calm_steps` times in a row, widens by one; at most narrow_above
    std::int64_t calm_steps = 5;  ///< at least 1
};

/// A limit (keep_versions, max_switches, max_staleness) that narrows quickly when the policy moves fast and widens slowly when
/// it is calm. Between the two marks it stays, and the count of calm steps starts again.
class adaptive_limit {
  public:
    /// Throws std::invalid_argument unless 0 <= min <= start <= max, 0 <= widen_below <= narrow_above, calm_steps >= 1.
    adaptive_limit(adaptive_limit_options const& options, std::int64_t start) : options_(options), value_(start) {
        detail::require(options.min >= 0 && options.min <= options.max, "min", options.min, "0 to max");
        detail::require(start >= options.min && start <= options.max, "start", start, "min to max");
        detail::require(options.widen_below >= 0 && options.widen_below <= options.narrow_above, "widen_below",
                        options.widen_below, "0 to narrow_above");
        detail::require(options.calm_steps >= 1, "calm_steps", options.calm_steps, "at least 1");
    }

    [[nodiscard]] std::int64_t value() const noexcept { return value_; }

    /// The drift of one more version. Returns the value from now on.
    ///
    /// @pre drift >= 0; infinity narrows, NaN throws.
    std::int64_t update(double drift) {
        detail::require(drift >= 0, "drift", drift, "at least 0");
        calm_ = drift < options_.widen_below ? calm_ + 1 : 0;
        if (drift > options_.narrow_above) {
            value_ = std::max(value_ - 1, options_.min);
        } else if (calm_ >= options_.calm_steps) {
            value_ = std::min(value_ + 1, options_.max);
            calm_ = 0;
        }
        return value_;
    }

  private:
    adaptive_limit_options options_;
    std::int64_t value_;
    std::int64_t calm_ = 0;
};

struct drift_window_options {
    double max_drift = 0;            ///< at least 0
    std::int64_t max_versions = 64;  ///< at least 1: however little the policy moves
};

/// A window measured in drift: it keeps the newest versions that together moved by at most max_drift, so two versions that
/// hardly differ both stay, and one large step closes it. The newest version is always kept.
///
/// Drifts of steps are added up. For a mean |log ratio| the sum bounds the distance between the ends; a KL divergence obeys no
/// such rule, its square root nearly does. Cost: O(keep_versions()) a publish; memory max_versions numbers.
class drift_window {
  public:
    /// Throws std::invalid_argument for options outside their limits.
    explicit drift_window(drift_window_options const& options) : options_(options) {
        detail::require(options.max_drift >= 0, "max_drift", options.max_drift, "at least 0");
        detail::require(options.max_versions >= 1, "max_versions", options.max_versions, "at least 1");
        steps_.resize(static_cast<std::size_t>(options.max_versions));
    }

    /// One more version, which lies `drift` from the one before. Returns how many versions the window keeps now: the argument
    /// of batch_window::set_keep_versions.
    ///
    /// @pre drift >= 0; NaN throws.
    std::int64_t publish(double drift) {
        detail::require(drift >= 0, "drift", drift, "at least 0");
        newest_ = (newest_ + 1) % steps_.size();
        steps_[newest_] = drift;
        count_ = std::min(count_ + 1, options_.max_versions);
        keep_ = 1;
        for (double total = drift; keep_ < count_ && total <= options_.max_drift; total += step_before(keep_ - 1)) {
            ++keep_;
        }
        return keep_;
    }

    /// At least 1; the version that a run begins with is kept too, until drift or max_versions excludes it.
    [[nodiscard]] std::int64_t keep_versions() const noexcept { return keep_; }

    /// What the policy has moved since the version `age` publishes ago; none where that is not remembered.
    [[nodiscard]] std::optional<double> drift_since(std::int64_t age) const noexcept {
        if (age < 0 || age >= count_) {
            return std::nullopt;
        }
        double total = 0;
        for (std::int64_t i = 0; i < age; ++i) {
            total += step_before(i);
        }
        return total;
    }

  private:
    /// Drift of the step that led to the version `age` publishes ago.
    double step_before(std::int64_t age) const noexcept {
        return steps_[(newest_ + steps_.size() - static_cast<std::size_t>(age)) % steps_.size()];
    }

    drift_window_options options_;
    std::vector<double> steps_;  // ring
    std::size_t newest_ = 0;
    std::int64_t count_ = 1;  // versions remembered, the first included
    std::int64_t keep_ = 1;
};

// --- weights that fall with staleness ----------------------------------------------------------------------------------------

// Each maps staleness in batches to a weight in (0, 1], 1 at staleness 0 and for a sample from the future. A negative parameter
// throws std::invalid_argument.

/// 1, whatever the staleness.
struct constant_decay {
    [[nodiscard]] double operator()(std::int64_t) const noexcept { return 1; }
};

/// (1 + s)^-exponent (FedAsync).
struct polynomial_decay {
    double exponent = 0.5;

    [[nodiscard]] double operator()(std::int64_t staleness) const {
        detail::require(exponent >= 0, "exponent", exponent, "at least 0");
        return std::pow(1 + static_cast<double>(std::max<std::int64_t>(staleness, 0)), -exponent);
    }
};

/// 1 up to `free`, then 1 / (1 + slope (s - free)) (FedAsync).
struct hinge_decay {
    double slope = 10;
    std::int64_t free = 2;

    [[nodiscard]] double operator()(std::int64_t staleness) const {
        detail::require(slope >= 0, "slope", slope, "at least 0");
        return staleness <= free || staleness <= 0 ? 1 : 1 / (1 + slope * static_cast<double>(staleness - free));
    }
};

/// exp(-rate s).
struct exponential_decay {
    double rate = 0.25;

    [[nodiscard]] double operator()(std::int64_t staleness) const {
        detail::require(rate >= 0, "rate", rate, "at least 0");
        return std::exp(-rate * static_cast<double>(std::max<std::int64_t>(staleness, 0)));
    }
};

/// Writes decay(batch - version) for each token of a trajectory: one weight per token, by the version that made it.
///
/// @pre weights.size() == runs.tokens(); throws std::invalid_argument otherwise.
template <typename Decay, typename Number>
void weigh_by_staleness(Decay const& decay, version_runs const& runs, policy_version batch, std::span<Number> weights) {
    detail::require(static_cast<std::int64_t>(weights.size()) == runs.tokens(), "weights size", weights.size(),
                    "one entry per token");
    auto position = weights.begin();
    for (version_run const& run : runs.runs()) {
        position = std::fill_n(position, run.tokens, static_cast<Number>(decay(staleness(batch, run.version))));
    }
}

// --- phases ------------------------------------------------------------------------------------------------------------------

/// The limits from one step of training on.
struct phase {
    std::int64_t first_step = 0;
    std::int64_t keep_versions = 0;                           ///< as of `batch_window_options`
    std::optional<std::int64_t> max_switches = std::nullopt;  ///< as of `span_limit_options`
    std::int64_t max_staleness = 1;

    friend bool operator==(phase const&, phase const&) = default;
};

/// A table of phases: often wide at the start, when every sample teaches, and narrow towards the end.
class phase_schedule {
  public:
    /// Throws std::invalid_argument unless the phases begin with step 0, in rising order, with limits of at least 0.
    explicit phase_schedule(std::vector<phase> phases) : phases_(std::move(phases)) {
        detail::require(!phases_.empty(), "number of phases", phases_.size(), "at least 1");
        detail::require(phases_.front().first_step == 0, "first_step of the first phase", phases_.front().first_step, "0");
        for (std::size_t i = 0; i < phases_.size(); ++i) {
            phase const& each = phases_[i];
            detail::require(i == 0 || each.first_step > phases_[i - 1].first_step, "first_step", each.first_step,
                            "later than the one before");
            detail::require(each.keep_versions >= 0, "keep_versions", each.keep_versions, "at least 0");
            detail::require(each.max_switches.value_or(0) >= 0, "max_switches", each.max_switches.value_or(0), "at least 0");
            detail::require(each.max_staleness >= 0, "max_staleness", each.max_staleness, "at least 0");
        }
    }

    /// The phase that holds at a step; at a negative one, the first. Cost: O(log phases).
    [[nodiscard]] phase const& at(std::int64_t step) const noexcept {
        auto const later = std::upper_bound(phases_.begin() + 1, phases_.end(), step,
                                            [](std::int64_t at, phase const& each) { return at < each.first_step; });
        return *(later - 1);
    }

  private:
    std::vector<phase> phases_;
};

// --- the next interruption ---------------------------------------------------------------------------------------------------

struct interruption_forecast_options {
    double smoothing = 0.25;         ///< weight of the newest interval, in (0, 1]
    double margin = 1;               ///< mean deviations by which the forecast is early, at least 0
    std::int64_t min_tokens = 1;     ///< what to propose when the interruption is due
    std::int64_t max_tokens = 1024;  ///< what to propose at most, and while nothing can be forecast
};

/// Forecasts when weights are swapped next from when they were before, and proposes how many tokens to generate until then: a
/// chunk that ends in time is not cut, and one that would be cut is not begun.
///
/// Interval and deviation are moving averages, as of TCP's retransmission timer. Time is in seconds of any clock.
class interruption_forecast {
  public:
    /// Throws std::invalid_argument for options outside their limits.
    explicit interruption_forecast(interruption_forecast_options const& options = {}) : options_(options) {
        detail::require(options.smoothing > 0 && options.smoothing <= 1, "smoothing", options.smoothing, "above 0, at most 1");
        detail::require(options.margin >= 0, "margin", options.margin, "at least 0");
        detail::require(options.min_tokens >= 1, "min_tokens", options.min_tokens, "at least 1");
        detail::require(options.max_tokens >= options.min_tokens, "max_tokens", options.max_tokens, "at least min_tokens");
    }

    /// Generation was interrupted at `time`. @pre Not before the last one.
    void interrupted(double time) {
        detail::require(count_ == 0 || time >= last_, "time of an interruption", time, "not before the last one");
        if (count_ > 0) {
            double const interval = time - last_;
            double const error = count_ > 1 ? interval - interval_ : 0;
            deviation_ += options_.smoothing * (std::abs(error) - deviation_);
            interval_ = count_ > 1 ? interval_ + options_.smoothing * error : interval;
        }
        last_ = time;
        ++count_;
    }

    /// When the next interruption is expected at the earliest; none before the second one.
    [[nodiscard]] std::optional<double> next() const noexcept {
        return count_ > 1 ? std::optional(last_ + interval_ - options_.margin * deviation_) : std::nullopt;
    }

    /// How many tokens to generate at `now` by an engine that makes `tokens_per_second` of them in this sequence.
    ///
    /// @pre tokens_per_second >= 0.
    [[nodiscard]] std::int64_t propose_tokens(double now, double tokens_per_second) const {
        detail::require(tokens_per_second >= 0, "tokens_per_second", tokens_per_second, "at least 0");
        auto const expected = next();
        if (!expected) {
            return options_.max_tokens;
        }
        double const tokens = std::floor((*expected - now) * tokens_per_second);
        auto const low = static_cast<double>(options_.min_tokens);
        auto const high = static_cast<double>(options_.max_tokens);
        return tokens >= high ? options_.max_tokens : tokens > low ? static_cast<std::int64_t>(tokens) : options_.min_tokens;
    }

  private:
    interruption_forecast_options options_;
    std::int64_t count_ = 0;  // of interruptions
    double last_ = 0;
    double interval_ = 0;  // once two have come
    double deviation_ = 0;
};

ASYNCRL_END_NAMESPACE
