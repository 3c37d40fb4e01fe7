// SPDX-License-Identifier: Apache-2.0
#include "stored_calls.hpp"

#include <asyncrl/cuda.cuh>

namespace device {
namespace {

template <typename Call>
auto with_objective(stored_kind kind, schedule const& s, bool another_reduction, Call const& go) {
    using namespace asyncrl;
    ppo_clip const clip{.low = s.low, .high = s.high};
    k3_penalty const penalty{.coefficient = s.coefficient};
    methods::any_reduction const reduce{another_reduction                ? token_sum{.divisor = 17}.rule()
                                        : kind == stored_kind::sequences ? token_mean{.over = counted::kept}.rule()
                                                                         : sequence_mean_token_mean{}.rule()};
    switch (kind) {
        case stored_kind::staleness:
            return go(make_objective(clip, tis{.cap = s.cap}, staleness_power{}, penalty, reduce));
        case stored_kind::sequences:
            return go(make_objective(clip, sequence_ratio_shared_slope{}, mis{.low = 0.5, .high = s.cap}, penalty, reduce));
        case stored_kind::order_statistic:
            break;
    }
    return go(make_objective(sat_clip{.low = s.low, .high = s.high, .quantile = {3, 4}}, tis{.cap = s.cap}, penalty, reduce));
}

template <typename Objective>
cudaError_t both(Objective const& objective, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                 asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                 asyncrl::loss_options const& options, cudaStream_t stream) {
    asyncrl::gpu::workspace const workspace{room.data, room.bytes};
    cudaError_t const error = asyncrl::gpu::measure(objective, batch, sums, workspace, stream);
    return error != cudaSuccess ? error
                                : asyncrl::gpu::policy_loss(objective, batch, sums, to, report, workspace, options, stream);
}

}  // namespace

std::size_t numbers_bytes(stored_kind kind) {
    return with_objective(kind, {0.25, 0.25, 1, 0}, false, [](auto const& objective) {
        return asyncrl::gpu::stored_objective<std::remove_cvref_t<decltype(objective)>>::bytes;
    });
}

cudaError_t store(stored_kind kind, schedule const& numbers, void* at, bool another_reduction, cudaStream_t stream) {
    return with_objective(kind, numbers, false, [&](auto const& objective) {
        asyncrl::gpu::stored_objective const stored(objective, at);
        return with_objective(kind, numbers, another_reduction, [&](auto const& given) {
            if constexpr (std::is_same_v<decltype(given), decltype(objective)>) {
                return stored.store(given, stream);
            } else {
                return cudaErrorUnknown;
            }
        });
    });
}

cudaError_t both_by_value(stored_kind kind, schedule const& numbers, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                          asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room, cudaStream_t stream) {
    return with_objective(kind, numbers, false,
                          [&](auto const& objective) { return both(objective, batch, sums, to, report, room, {}, stream); });
}

cudaError_t both_stored(stored_kind kind, void* stored, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                        asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                        asyncrl::loss_options const& options, cudaStream_t stream) {
    return with_objective(kind, {0.25, 0.25, 1, 0}, false, [&](auto const& objective) {
        return both(asyncrl::gpu::stored_objective(objective, stored), batch, sums, to, report, room, options, stream);
    });
}

}  // namespace device
