// SPDX-License-Identifier: Apache-2.0
/// @file Text for people and for log files: names of the enumerations, formatters of the value types, the slot table as a
/// picture, and reports as a table or as JSON lines. Opt-in: needs {fmt} 9 or newer, which no other header includes.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/staleness.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

// --- names -------------------------------------------------------------------------------------------------------------------

// The enumerator as it is written in the code; "?" for a value that is none.

[[nodiscard]] constexpr std::string_view name_of(freshness value) noexcept {
    switch (value) {
        case freshness::fresh:
            return "fresh";
        case freshness::stale:
            return "stale";
        case freshness::future:
            return "future";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(append_status value) noexcept {
    switch (value) {
        case append_status::appended:
            return "appended";
        case append_status::older_version:
            return "older_version";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(span_verdict value) noexcept {
    switch (value) {
        case span_verdict::proceed:
            return "proceed";
        case span_verdict::reject:
            return "reject";
        case span_verdict::mask:
            return "mask";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(retry_verdict value) noexcept {
    switch (value) {
        case retry_verdict::completed:
            return "completed";
        case retry_verdict::retry:
            return "retry";
        case retry_verdict::drop:
            return "drop";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(gate_mode value) noexcept {
    switch (value) {
        case gate_mode::boundary:
            return "boundary";
        case gate_mode::drain:
            return "drain";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(gate_state value) noexcept {
    switch (value) {
        case gate_state::open:
            return "open";
        case gate_state::pausing:
            return "pausing";
        case gate_state::quiet:
            return "quiet";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(gate_status value) noexcept {
    switch (value) {
        case gate_status::ok:
            return "ok";
        case gate_status::not_open:
            return "not_open";
        case gate_status::stale_epoch:
            return "stale_epoch";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(ticket_status value) noexcept {
    switch (value) {
        case ticket_status::ok:
            return "ok";
        case ticket_status::duplicate:
            return "duplicate";
        case ticket_status::in_flight:
            return "in_flight";
        case ticket_status::gone:
            return "gone";
        case ticket_status::foreign:
            return "foreign";
        case ticket_status::oversampled:
            return "oversampled";
        case ticket_status::closed:
            return "closed";
        case ticket_status::failed:
            return "failed";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(admission_status value) noexcept {
    switch (value) {
        case admission_status::open:
            return "open";
        case admission_status::future_version:
            return "future_version";
        case admission_status::stale_version:
            return "stale_version";
        case admission_status::no_place:
            return "no_place";
        case admission_status::pipeline_full:
            return "pipeline_full";
        case admission_status::max_in_flight:
            return "max_in_flight";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(drop_reason value) noexcept {
    switch (value) {
        case drop_reason::discarded:
            return "discarded";
        case drop_reason::failed:
            return "failed";
        case drop_reason::timed_out:
            return "timed_out";
        case drop_reason::stuck_timeout:
            return "stuck_timeout";
        case drop_reason::stale:
            return "stale";
        case drop_reason::rejected:
            return "rejected";
        case drop_reason::filtered:
            return "filtered";
        case drop_reason::oversampled:
            return "oversampled";
        case drop_reason::closed:
            return "closed";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(window_order value) noexcept {
    switch (value) {
        case window_order::observed:
            return "observed";
        case window_order::numeric:
            return "numeric";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(stale_scope value) noexcept {
    switch (value) {
        case stale_scope::group:
            return "group";
        case stale_scope::member:
            return "member";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(member_role value) noexcept {
    switch (value) {
        case member_role::trained:
            return "trained";
        case member_role::baseline_only:
            return "baseline_only";
        case member_role::excluded:
            return "excluded";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(member_status value) noexcept {
    switch (value) {
        case member_status::ok:
            return "ok";
        case member_status::duplicate:
            return "duplicate";
        case member_status::old_attempt:
            return "old_attempt";
        case member_status::surplus:
            return "surplus";
        case member_status::gone:
            return "gone";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(group_state value) noexcept {
    switch (value) {
        case group_state::collecting:
            return "collecting";
        case group_state::short_of_members:
            return "short_of_members";
        case group_state::selected:
            return "selected";
        case group_state::complete:
            return "complete";
        case group_state::dropped:
            return "dropped";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(short_group value) noexcept {
    switch (value) {
        case short_group::drop:
            return "drop";
        case short_group::shrink:
            return "shrink";
        case short_group::wait:
            return "wait";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(slot_state value) noexcept {
    switch (value) {
        case slot_state::empty:
            return "empty";
        case slot_state::reserved:
            return "reserved";
        case slot_state::occupied:
            return "occupied";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(buffer_state value) noexcept {
    switch (value) {
        case buffer_state::pending:
            return "pending";
        case buffer_state::stuck:
            return "stuck";
        case buffer_state::ready:
            return "ready";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(slot_event_kind value) noexcept {
    switch (value) {
        case slot_event_kind::reserved:
            return "reserved";
        case slot_event_kind::occupied:
            return "occupied";
        case slot_event_kind::moved_back:
            return "moved_back";
        case slot_event_kind::moved_forward:
            return "moved_forward";
        case slot_event_kind::dropped:
            return "dropped";
        case slot_event_kind::taken:
            return "taken";
        case slot_event_kind::published:
            return "published";
        case slot_event_kind::displaced:
            return "displaced";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(readiness_state value) noexcept {
    switch (value) {
        case readiness_state::pending:
            return "pending";
        case readiness_state::blocked:
            return "blocked";
        case readiness_state::ready:
            return "ready";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(sacrifice_mode value) noexcept {
    switch (value) {
        case sacrifice_mode::wait:
            return "wait";
        case sacrifice_mode::drop:
            return "drop";
        case sacrifice_mode::mask:
            return "mask";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(wait_status value) noexcept {
    switch (value) {
        case wait_status::ok:
            return "ok";
        case wait_status::timed_out:
            return "timed_out";
        case wait_status::stopped:
            return "stopped";
        case wait_status::closed:
            return "closed";
        case wait_status::failed:
            return "failed";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(drop_stage value) noexcept {
    switch (value) {
        case drop_stage::in_flight:
            return "in_flight";
        case drop_stage::in_queue:
            return "in_queue";
        case drop_stage::at_training:
            return "at_training";
    }
    return "?";
}
[[nodiscard]] constexpr std::string_view name_of(wait_cause value) noexcept {
    switch (value) {
        case wait_cause::filling:
            return "filling";
        case wait_cause::blocked:
            return "blocked";
    }
    return "?";
}

/// An enumeration of this library.
template <typename Enum>
concept named_enum = std::is_enum_v<Enum> && requires(Enum value) {
    { asyncrl::name_of(value) } -> std::same_as<std::string_view>;
};

// --- the slot table ----------------------------------------------------------------------------------------------------------

/// A picture of all slots, one line for a buffer:
///
///     version 0, next batch 0: 5 in flight, 3 completed
///     0 STUCK   | A * | D * | C * | E R |
///     1 STUCK   | G R | H R | B R | F R |
///
/// `*` is occupied, `R` reserved, `--` empty; `||` stands where the slots beyond a batch begin. `name(handle)` gives what fmt
/// can print, as a name or a number.
template <typename Handle, typename Listener, std::invocable<Handle const&> Name>
[[nodiscard]] std::string slot_picture(slot_buffer<Handle, Listener> const& buffer, Name name) {
    auto const table = buffer.table();
    auto const slots = static_cast<std::size_t>(buffer.slots_per_buffer());
    std::vector<std::string> cells;
    std::size_t width = 2;
    std::int64_t reserved = 0;
    for (slot_view<Handle> const& slot : table) {
        cells.push_back(slot.state == slot_state::empty
                            ? "--"
                            : fmt::format("{} {}", name(slot.handle), slot.state == slot_state::occupied ? '*' : 'R'));
        width = std::max(width, cells.back().size());
        reserved += slot.state == slot_state::reserved ? 1 : 0;
    }
    fmt::memory_buffer text;
    auto const out = std::back_inserter(text);
    unit_counters const& counters = buffer.counters();
    fmt::format_to(out, "version {}, next batch {}: {} in flight, {} completed", buffer.version().value,
                   buffer.next_batch().value, counters.in_flight, counters.completed);
    if (reserved < counters.in_flight) {
        fmt::format_to(out, ", {} without a slot", counters.in_flight - reserved);
    }
    text.push_back('\n');
    std::size_t const digits = fmt::formatted_size("{}", buffer.last_buffer().value);
    for (std::size_t first = 0; first < cells.size(); first += slots) {
        policy_version const number{buffer.next_batch().value + static_cast<std::int64_t>(first / slots)};
        buffer_state const state = buffer.state(number);
        std::string_view const label = state == buffer_state::pending ? "PENDING"
                                       : state == buffer_state::stuck ? "STUCK"
                                                                      : "READY";
        fmt::format_to(out, "{:>{}} {:<7} |", number.value, digits, label);
        for (std::size_t slot = 0; slot < slots; ++slot) {
            bool const ends_batch = slot + 1 == static_cast<std::size_t>(buffer.batch_size()) && slot + 1 < slots;
            fmt::format_to(out, " {:>{}} {}", cells[first + slot], width, ends_batch ? "||" : "|");
        }
        text.push_back('\n');
    }
    return fmt::to_string(text);
}

template <typename Handle, typename Listener>
[[nodiscard]] std::string slot_picture(slot_buffer<Handle, Listener> const& buffer) {
    return slot_picture(buffer, [](Handle const& handle) -> Handle const& { return handle; });
}

// --- the numbers of a report -------------------------------------------------------------------------------------------------

// Each calls visit(name, number) for each number of a report, in a fixed order. The names of staleness metrics are those of
// Dressage where the meaning is the same.

template <typename Visit>
void for_each_number(staleness_metrics const& metrics, Visit&& visit) {
    auto const& counts = metrics.counts;
    auto const spread = [&](std::string_view name, staleness_histogram const& histogram) {
        visit(fmt::format("staleness/{}_mean", name), histogram.mean());
        visit(fmt::format("staleness/{}_min", name), histogram.min());
        visit(fmt::format("staleness/{}_max", name), histogram.max());
    };
    spread("oldest", counts.staleness);
    spread("in_flight", counts.in_flight);
    spread("in_queue", counts.in_queue);
    spread("version_gap", counts.last_version);
    spread("token", counts.token_weighted);
    visit("staleness/future_units", counts.staleness.future);
    visit("staleness/version_span_mean", metrics.version_span_mean());
    visit("staleness/version_span_max", metrics.version_span_max());
    visit("staleness/version_span_min", metrics.version_span_min());
    visit("staleness/dropped_groups", metrics.dropped(drop_reason::stale));
    visit("staleness/current_version_index", static_cast<std::int64_t>(metrics.maxima.current_version_index));
    visit("staleness/cutoff_version_index", static_cast<std::int64_t>(metrics.maxima.cutoff_version_index));
    visit("staleness/partial_rollout_rejected_groups", counts.rejected_groups);
    visit("staleness/partial_rollout_rejected_samples", counts.rejected_samples);
    visit("staleness/retries", counts.retries);
    visit("staleness/waste_after_reject", counts.waste_after_reject);
    visit("staleness/unversioned", counts.unversioned);
    for (std::size_t i = 1; i < admission_status_count; ++i) {
        visit(fmt::format("refused/{}", name_of(static_cast<admission_status>(i))), counts.refused[i]);
    }
    for (std::size_t stage = 0; stage < drop_stage_count; ++stage) {
        for (std::size_t reason = 0; reason < drop_reason_count; ++reason) {
            auto const name =
                fmt::format("{}/{}", name_of(static_cast<drop_stage>(stage)), name_of(static_cast<drop_reason>(reason)));
            visit(fmt::format("dropped/{}", name), counts.dropped[stage][reason]);
            visit(fmt::format("dropped_tokens/{}", name), counts.dropped_tokens[stage][reason]);
        }
    }
    visit("batches", counts.batches);
    visit("trained_units", counts.trained_units);
    visit("trained_trajectories", counts.trained_trajectories);
    visit("trained_tokens", counts.trained_tokens);
    visit("generated_trajectories", counts.generated_trajectories);
    visit("generated_tokens", counts.generated_tokens);
    visit("mean_trained_length", metrics.mean_trained_length());
    visit("mean_generated_length", metrics.mean_generated_length());
    visit("units_per_second", metrics.units_per_second());
    visit("tokens_per_second", metrics.tokens_per_second());
    visit("seconds", metrics.maxima.seconds);
    visit("seconds_blocked", metrics.seconds.blocked);
    visit("seconds_filling", metrics.seconds.filling);
    visit("seconds_training", metrics.seconds.training);
}

template <typename Visit>
void for_each_number(loss_report const& report, Visit&& visit) {
    using sums = loss_report::sum_range;
    using counts = loss_report::count_range;
    visit("loss", report.sums.loss);
    visit("tokens", report.counts.tokens);
    visit("sequences", report.counts.sequences);
    visit("kept", report.counts.kept);
    visit("effective_sample_share", report.effective_sample_share());
    visit("weight_mean", report.mean(&sums::weight));
    visit("mismatch_mean", report.mean(&sums::mismatch));
    visit("mismatch_k1", -report.mean(&sums::log_mismatch));
    visit("mismatch_k3", report.mean(&sums::k3_mismatch));
    visit("absolute_log_mismatch_mean", report.mean(&sums::absolute_log_mismatch));
    visit("absolute_log_mismatch_max", report.maxima.absolute_log_mismatch);
    visit("absolute_log_ratio_mean", report.mean(&sums::absolute_log_ratio));
    visit("absolute_log_ratio_max", report.maxima.absolute_log_ratio);
    visit("clipped_high_share", report.share(&counts::clipped_high));
    visit("clipped_low_share", report.share(&counts::clipped_low));
    visit("capped_share", report.share(&counts::capped));
    visit("gated_share", report.share(&counts::gated));
    visit("tail_share", report.share(&counts::tail));
    visit("clamped_share", report.share(&counts::clamped));
    visit("penalty_mean", report.mean(&sums::penalty));
    visit("nonfinite", report.counts.nonfinite);
    visit("unscored", report.counts.unscored);
}

template <typename Visit>
void for_each_number(totals const& sums, Visit&& visit) {
    visit("batches", sums.counts.batches);
    visit("tokens", sums.counts.tokens);
    visit("sequences", sums.counts.sequences);
    visit("kept_tokens", sums.counts.kept_tokens);
    visit("kept_sequences", sums.counts.kept_sequences);
    visit("quantile", sums.quantile);
}

template <typename Visit>
void for_each_number(unit_counters const& counters, Visit&& visit) {
    visit("admitted", counters.admitted);
    visit("in_flight", counters.in_flight);
    visit("completed", counters.completed);
    visit("taken", counters.taken);
    for (std::size_t reason = 0; reason < drop_reason_count; ++reason) {
        visit(fmt::format("dropped/{}", name_of(static_cast<drop_reason>(reason))), counters.dropped[reason]);
    }
}

template <typename Visit>
void for_each_number(group_counters const& counters, Visit&& visit) {
    visit("opened", counters.opened);
    visit("completed", counters.completed);
    visit("shrunk", counters.shrunk);
    visit("dropped", counters.dropped);
    visit("delivered", counters.delivered);
    visit("surplus", counters.surplus);
    visit("fenced", counters.fenced);
    for (std::size_t reason = 0; reason < drop_reason_count; ++reason) {
        visit(fmt::format("failed/{}", name_of(static_cast<drop_reason>(reason))), counters.failed[reason]);
    }
}

namespace detail {

struct any_visit {
    void operator()(std::string_view, std::int64_t) const {}
    void operator()(std::string_view, double) const {}
};

/// Formatters of types that take no options: "{}" only.
struct plain_formatter {
    template <typename Context>
    constexpr auto parse(Context& context) {
        return context.begin();
    }
};

}  // namespace detail

template <typename Report>
concept number_report = requires(Report const& numbers) {
    asyncrl::for_each_number(numbers, detail::any_visit{});
};

// --- writers -----------------------------------------------------------------------------------------------------------------

/// The numbers of a report that are not 0, one a line, names to the left.
template <number_report Report>
[[nodiscard]] std::string number_table(Report const& numbers) {
    std::vector<std::pair<std::string, std::string>> lines;
    std::size_t width = 0;
    for_each_number(numbers, [&](std::string_view name, auto number) {
        if (number != 0) {
            lines.emplace_back(name, fmt::format("{:.6g}", static_cast<double>(number)));
            if constexpr (std::integral<decltype(number)>) {
                lines.back().second = fmt::format("{}", number);
            }
            width = std::max(width, name.size());
        }
    });
    fmt::memory_buffer text;
    for (auto const& [name, number] : lines) {
        fmt::format_to(std::back_inserter(text), "{:<{}}  {:>12}\n", name, width, number);
    }
    return fmt::to_string(text);
}

/// One line of a JSON lines file, built up from parts:
///
///     log << json_line().add("step", step).add(metrics).add("loss/", report).text();
///
/// Numbers are written so that reading them back gives the same bits; one that is not finite becomes null, as JSON has none.
class json_line {
  public:
    template <typename Number>
    requires std::is_arithmetic_v<Number> json_line& add(std::string_view name, Number number) {
        begin(name);
        if constexpr (std::floating_point<Number>) {
            if (!std::isfinite(number)) {
                put("null");
                return *this;
            }
        }
        fmt::format_to(out(), "{}", number);
        return *this;
    }
    json_line& add(std::string_view name, std::string_view value) {
        begin(name);
        put_string(value);
        return *this;
    }

    /// All numbers of a report, those that are 0 too: so that every line has the same columns.
    template <number_report Report>
    json_line& add(Report const& numbers) {
        return add(std::string_view{}, numbers);
    }
    template <number_report Report>
    json_line& add(std::string_view prefix, Report const& numbers) {
        for_each_number(numbers, [&](std::string_view name, auto number) { add(fmt::format("{}{}", prefix, name), number); });
        return *this;
    }

    /// The counts of a histogram as an array, up to the last that is not 0.
    json_line& add(std::string_view name, staleness_histogram const& histogram) {
        begin(name);
        auto const end = histogram.counts.begin() + (histogram.total() == 0 ? 0 : histogram.max() + 1);
        put("[");
        for (auto count = histogram.counts.begin(); count != end; ++count) {
            fmt::format_to(out(), "{}{}", count == histogram.counts.begin() ? "" : ",", *count);
        }
        put("]");
        return *this;
    }

    json_line& add(std::string_view name, std::span<std::string_view const> labels) {
        begin(name);
        std::string_view separator = "[";
        for (std::string_view const label : labels) {
            put(std::exchange(separator, ","));
            put_string(label);
        }
        put(labels.empty() ? "[]" : "]");
        return *this;
    }

    /// What a proxy answers when it ends a trajectory; limits that are not set are left out.
    json_line& add(span_decision const& decision) {
        add("error", decision.error);
        add("version_span", decision.version_span);
        add("version_switches", decision.version_switches);
        if (decision.max_switches) {
            add("max_switches", *decision.max_switches);
            add("max_version_span", *decision.max_version_span);
        }
        return *this;
    }

    /// One move of a slot table, with what its kind names: enough to draw the table move by move.
    template <typename Handle>
    json_line& add(slot_event<Handle> const& event) {
        using kind = slot_event_kind;
        add("kind", name_of(event.kind));
        add("version", event.version.value);
        if (event.kind == kind::published) {
            return *this;
        }
        add("unit", fmt::format("{}", *event.handle));
        add("id", event.id);
        if (event.kind != kind::reserved) {
            add("from", event.from);
        }
        if (event.kind == kind::dropped) {
            add("reason", name_of(event.reason));
        } else if (event.kind != kind::taken && event.kind != kind::displaced) {
            add("to", event.to);
        }
        return *this;
    }
    /// As [buffer, slot].
    json_line& add(std::string_view name, slot_place place) {
        begin(name);
        fmt::format_to(out(), "[{},{}]", place.buffer.value, place.slot);
        return *this;
    }

    /// The whole line, with its end.
    [[nodiscard]] std::string text() const { return fmt::format("{{{}}}\n", std::string_view(text_.data(), text_.size())); }

  private:
    std::back_insert_iterator<fmt::memory_buffer> out() { return std::back_inserter(text_); }
    void put(std::string_view raw) { text_.append(raw.data(), raw.data() + raw.size()); }
    void begin(std::string_view name) {
        put(text_.size() == 0 ? "" : ",");
        put_string(name);
        put(":");
    }
    void put_string(std::string_view value) {
        put("\"");
        for (char const c : value) {
            if (c == '"' || c == '\\') {
                text_.push_back('\\');
                text_.push_back(c);
            } else if (static_cast<unsigned char>(c) < 0x20) {
                fmt::format_to(out(), "\\u{:04x}", static_cast<unsigned>(c));
            } else {
                text_.push_back(c);
            }
        }
        put("\"");
    }

    fmt::memory_buffer text_;
};

ASYNCRL_END_NAMESPACE

// --- formatters --------------------------------------------------------------------------------------------------------------

template <asyncrl::named_enum Enum>
struct fmt::formatter<Enum, char> : fmt::formatter<fmt::string_view> {
    template <typename Context>
    auto format(Enum value, Context& context) const {
        std::string_view const name = asyncrl::name_of(value);
        return fmt::formatter<fmt::string_view>::format({name.data(), name.size()}, context);
    }
};

/// As its number, with the options of a number.
template <>
struct fmt::formatter<asyncrl::policy_version> : fmt::formatter<std::int64_t> {
    template <typename Context>
    auto format(asyncrl::policy_version version, Context& context) const {
        return fmt::formatter<std::int64_t>::format(version.value, context);
    }
};

/// "(7, 57)": version, tokens.
template <>
struct fmt::formatter<asyncrl::version_run> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::version_run const& run, Context& context) const {
        return fmt::format_to(context.out(), "({}, {})", run.version, run.tokens);
    }
};

/// "(7, 57) (8, 71)".
template <>
struct fmt::formatter<asyncrl::version_runs> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::version_runs const& runs, Context& context) const {
        auto out = context.out();
        std::string_view separator;
        for (asyncrl::version_run const& run : runs.runs()) {
            out = fmt::format_to(out, "{}{}", separator, run);
            separator = " ";
        }
        return out;
    }
};

/// "unit 12, version 3".
template <>
struct fmt::formatter<asyncrl::unit_ticket> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::unit_ticket const& ticket, Context& context) const {
        return fmt::format_to(context.out(), "unit {}, version {}", ticket.id, ticket.version);
    }
};

/// "admitted 9, in flight 3, completed 2, taken 3, dropped 1 (1 stale)".
template <>
struct fmt::formatter<asyncrl::unit_counters> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::unit_counters const& counters, Context& context) const {
        auto out =
            fmt::format_to(context.out(), "admitted {}, in flight {}, completed {}, taken {}, dropped {}", counters.admitted,
                           counters.in_flight, counters.completed, counters.taken, counters.dropped_total());
        std::string_view separator = " (";
        for (std::size_t i = 0; i < asyncrl::drop_reason_count; ++i) {
            if (counters.dropped[i] != 0) {
                out = fmt::format_to(out, "{}{} {}", separator, counters.dropped[i], static_cast<asyncrl::drop_reason>(i));
                separator = ", ";
            }
        }
        return fmt::format_to(out, "{}", counters.dropped_total() == 0 ? "" : ")");
    }
};

/// "1.2": buffer, slot from 0.
template <>
struct fmt::formatter<asyncrl::slot_place> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::slot_place const& place, Context& context) const {
        return fmt::format_to(context.out(), "{}.{}", place.buffer, place.slot);
    }
};

/// "moved_back F 0.2 > 1.3", "dropped C 0.1 filtered", "published 2".
template <typename Handle>
struct fmt::formatter<asyncrl::slot_event<Handle>> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::slot_event<Handle> const& event, Context& context) const {
        using kind = asyncrl::slot_event_kind;
        auto out = fmt::format_to(context.out(), "{}", event.kind);
        if (event.kind == kind::published) {
            return fmt::format_to(out, " {}", event.version);
        }
        out = fmt::format_to(out, " {}", *event.handle);
        if (event.kind != kind::reserved) {
            out = fmt::format_to(out, " {}", event.from);
        }
        if (event.kind == kind::dropped) {
            return fmt::format_to(out, " {}", event.reason);
        }
        if (event.kind == kind::taken || event.kind == kind::displaced) {
            return out;
        }
        return fmt::format_to(out, " {}{}", event.kind == kind::reserved ? "" : "> ", event.to);
    }
};

/// "proceed", or "reject: partial_rollout_staleness_exceeded, 4 versions, at most 3".
template <>
struct fmt::formatter<asyncrl::span_decision> : asyncrl::detail::plain_formatter {
    template <typename Context>
    auto format(asyncrl::span_decision const& decision, Context& context) const {
        auto out = fmt::format_to(context.out(), "{}", decision.verdict);
        if (decision) {
            return out;
        }
        out = fmt::format_to(out, ": {}, {} versions", decision.error, decision.version_span);
        return decision.max_version_span ? fmt::format_to(out, ", at most {}", *decision.max_version_span) : out;
    }
};
