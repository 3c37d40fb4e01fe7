// SPDX-License-Identifier: Apache-2.0
/// @file The life of a unit, told in the words that every staleness control shares: ticket, status, drop reason, counters.
///
/// A unit is what is admitted, trained or dropped as one: a trajectory, or a whole prompt group whose members train together.
/// It is admitted by a reserve, which answers with a ticket; it is in flight until its result is there (occupy) or it is given
/// up (discard); then it is completed until a batch takes it or a filter drops it.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE

/// Names one admission. `id` counts admissions from 0 and is never used again, so a late result finds its ticket void.
///
/// A plain value: copy it, log it, send it to another thread. It means something only to the control that issued it.
struct unit_ticket {
    std::uint64_t id = 0;
    policy_version version = {};   ///< stamped in the same step that took the place; staleness counts from it
    void const* origin = nullptr;  ///< the control that issued the ticket
    std::uint32_t index = 0;       ///< where that control keeps the unit

    friend constexpr bool operator==(unit_ticket const&, unit_ticket const&) = default;
};

/// What came of a call with a ticket. Every status but `ok` means that nothing has changed, except as `oversampled`, `closed`
/// and `failed` say.
enum class ticket_status : std::uint8_t {
    ok,
    duplicate,    ///< the unit is completed already: a second result, or a cancel that lost the race
    in_flight,    ///< the unit is not completed yet, so there is nothing to filter
    gone,         ///< the unit was taken or dropped before: a late result
    foreign,      ///< not a ticket of this control
    oversampled,  ///< enough others were faster: no batch can use the result; the unit was dropped and counted
    closed,       ///< controller only: closed before the result came; the unit was dropped and counted under that reason
    failed,       ///< controller only: the same after a failure
};

/// Whether a unit would be admitted now, and if not, the first rule that forbids it.
enum class admission_status : std::uint8_t {
    open,
    future_version,  ///< made by a version that has not been published
    stale_version,   ///< made by a version so old that no batch to come could use it
    no_place,        ///< every batch within its bound is promised to others
    pipeline_full,   ///< the pipeline is as deep as allowed
    max_in_flight,   ///< as many units are generated as allowed
};

/// Why a unit left without being trained.
enum class drop_reason : std::uint8_t {
    discarded,      ///< given up by its worker
    failed,         ///< the infrastructure failed; never a reward of 0
    timed_out,      ///< generation took too long
    stuck_timeout,  ///< the trainer waited too long for its batch
    stale,          ///< too old, by a rule outside the bound
    rejected,       ///< nothing in it to train on: empty, or refused by a limit
    filtered,       ///< completed, then found useless: no gradient, dirty data
    oversampled,    ///< surplus: enough others were faster
    closed,         ///< its result came after the controller was closed
};
inline constexpr std::size_t drop_reason_count = 9;

/// Where all admitted units are: `admitted == in_flight + completed + taken + dropped_total()` after every call.
struct unit_counters {
    std::int64_t admitted = 0;
    std::int64_t in_flight = 0;
    std::int64_t completed = 0;  ///< completed and not yet taken
    std::int64_t taken = 0;
    std::array<std::int64_t, drop_reason_count> dropped{};

    [[nodiscard]] constexpr std::int64_t dropped_for(drop_reason reason) const noexcept {
        return dropped[static_cast<std::size_t>(reason)];
    }
    [[nodiscard]] constexpr std::int64_t dropped_total() const noexcept {
        std::int64_t total = 0;
        for (std::int64_t const count : dropped) {
            total += count;
        }
        return total;
    }
};

/// One unit of a taken batch.
template <typename Handle>
struct taken_unit {
    Handle handle{};
    std::uint64_t id = 0;         ///< admission number: sort by it for an order that does not depend on who finished first
    policy_version version = {};  ///< the version it was admitted under
    std::int64_t staleness = 0;   ///< batch - version, in batches
};

/// What a controller, a simulator or a user's loop needs from a staleness control; see `slot_buffer` for the meaning of each.
template <typename Control>
concept staleness_control = requires {
    typename Control::handle_type;
}
&&requires(Control& control, Control const& view, typename Control::handle_type handle, unit_ticket const& ticket,
           drop_reason reason, std::span<taken_unit<typename Control::handle_type>> batch) {
    { view.admissible() } -> std::same_as<std::int64_t>;
    { view.can_take() } -> std::same_as<bool>;
    { view.batch_size() } -> std::same_as<std::int64_t>;
    { view.version() } -> std::same_as<policy_version>;
    { view.counters() } -> std::convertible_to<unit_counters>;
    { control.reserve(std::move(handle)) } -> std::same_as<std::optional<unit_ticket>>;
    { control.occupy(ticket) } -> std::same_as<ticket_status>;
    { control.occupy(ticket, std::move(handle)) } -> std::same_as<ticket_status>;
    { control.discard(ticket, reason) } -> std::same_as<ticket_status>;
    { control.filter(ticket, reason) } -> std::same_as<ticket_status>;
    { control.take(batch) } -> std::same_as<std::optional<policy_version>>;
    { control.begin_publish() } -> std::same_as<policy_version>;
    { control.commit_publish() } -> std::same_as<policy_version>;
    control.abort_publish();
};

ASYNCRL_END_NAMESPACE
