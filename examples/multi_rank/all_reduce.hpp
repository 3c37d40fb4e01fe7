// SPDX-License-Identifier: Apache-2.0
/// @file What ranks merge, each in place and on the stream that measured it: one call of NCCL for each range of numbers. A
/// group makes one launch of them.
#pragma once

#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/mismatch_report.hpp>
#include <asyncrl/correction/totals.hpp>

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace trainer {

// [snippet: all_reduce]
template <typename Range>
ncclResult_t sum_integers(Range* range, ncclComm_t ranks, cudaStream_t stream) {
    return ncclAllReduce(range, range, sizeof(Range) / 8, ncclInt64, ncclSum, ranks, stream);
}
template <typename Range>
ncclResult_t sum_doubles(Range* range, ncclComm_t ranks, cudaStream_t stream) {
    return ncclAllReduce(range, range, sizeof(Range) / 8, ncclFloat64, ncclSum, ranks, stream);
}
template <typename Range>
ncclResult_t take_largest(Range* range, ncclComm_t ranks, cudaStream_t stream) {
    return ncclAllReduce(range, range, sizeof(Range) / 8, ncclFloat64, ncclMax, ranks, stream);
}

/// Between measure and policy_loss: every rank then divides by the counts of all.
inline ncclResult_t all_reduce(asyncrl::totals* totals, ncclComm_t ranks, cudaStream_t stream) {
    ncclGroupStart();
    sum_integers(&totals->counts, ranks, stream);
    sum_doubles(&totals->weight, ranks, stream);  // NaN, and stays so, where no part of the objective asks for it
    return ncclGroupEnd();                        // the first error of the group
}

/// In each round of the search for the order statistic that SAT reads.
template <std::size_t Count>
ncclResult_t all_reduce(std::int64_t (*counts)[Count], ncclComm_t ranks, cudaStream_t stream) {
    return sum_integers(counts, ranks, stream);
}

/// `first_nonfinite` stays the rank's own: a position in its batch.
inline ncclResult_t all_reduce(asyncrl::loss_report* report, ncclComm_t ranks, cudaStream_t stream) {
    ncclGroupStart();
    sum_doubles(&report->sums, ranks, stream);
    sum_integers(&report->counts, ranks, stream);
    take_largest(&report->maxima, ranks, stream);
    return ncclGroupEnd();
}

inline ncclResult_t all_reduce(asyncrl::mismatch_report* report, ncclComm_t ranks, cudaStream_t stream) {
    ncclGroupStart();
    sum_doubles(&report->sums, ranks, stream);
    sum_integers(&report->counts, ranks, stream);
    take_largest(&report->maxima, ranks, stream);
    sum_integers(&report->histogram, ranks, stream);
    return ncclGroupEnd();
}
// [snippet: end]

}  // namespace trainer
