#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the headers cost a compiler: CPU seconds, the least of three runs each. The CUDA lines where nvcc is found.
set -euo pipefail
cd "$(dirname "$0")/.."

cxx=${CXX:-g++}
eigen=${EIGEN_INCLUDE_DIR:-/usr/include/eigen3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# least_of_three COMMAND...: user + system seconds
least_of_three() {
    for _ in 1 2 3; do
        { TIMEFORMAT='%U %S'; time "$@" >/dev/null 2>"$work/errors"; } 2>"$work/time" || { cat "$work/errors" >&2; return 1; }
        awk '{ printf "%.2f\n", $1 + $2 }' "$work/time"
    done | sort -n | sed -n 1p
}

# objectives FILE COUNT: a translation unit with one function a loss, of COUNT different types
objectives() {
    # The last one is the first that needs an order statistic.
    local parts=(
        'ppo_clip{}, tis{}' 'ppo_clip{}' 'ppo_clip{}, mis{}' 'policy_gradient{}, tis{}' 'dual_clip{}, tis{}'
        'ppo_clip{}, k3_penalty{.coefficient = 0.01}' 'ppo_clip{}, kpop_gate{}, importance_weight{}' 'cispo{}, anchor_rollout{}'
        'importance_gradient{}, tv_gate{}, squared_log_ratio_penalty{.coefficient = 1e-3}, anchor_rollout{}' 'sapo{}'
        'ppo_clip{}, anchor_between{}, tis{}' 'sat_clip{}, anchor_rollout{}'
    )
    {
        if [[ $1 == *.cu ]]; then echo '#include <asyncrl/cuda.cuh>'; else echo '#include <asyncrl/correction.hpp>'; fi
    for ((i = 0; i < $2; ++i)); do
        if [[ $1 == *.cu ]]; then
            cat <<EOF
cudaError_t loss_$i(asyncrl::token_batch const& batch, asyncrl::totals* sums, asyncrl::loss_outputs const& to, asyncrl::loss_report* report,
                    asyncrl::gpu::workspace scratch, cudaStream_t stream) {
    using namespace asyncrl;
    auto const objective = make_objective(${parts[i]}, token_mean{});
    cudaError_t const status = asyncrl::gpu::measure(objective, batch, sums, scratch, stream);
    return status != cudaSuccess ? status : asyncrl::gpu::policy_loss(objective, batch, sums, to, report, scratch, stream);
}
EOF
        else
            cat <<EOF
asyncrl::loss_report loss_$i(asyncrl::token_batch const& batch, asyncrl::loss_outputs const& to, asyncrl::workspace& scratch) {
    using namespace asyncrl;
    auto const objective = make_objective(${parts[i]}, token_mean{});
    return asyncrl::policy_loss(objective, batch, asyncrl::measure(objective, batch, scratch), to, scratch);
}
EOF
        fi
    done
    } >"$1"
}

line() { printf '%-52s %8s\n' "$1" "$2"; }

# row NAME COMMAND...: what the command costs
row() {
    local seconds
    seconds=$(least_of_three "${@:2}")
    line "$1" "$seconds"
}

line "what ($cxx -O2)" "CPU s"
echo '#include <Eigen/Core>' >"$work/eigen.cpp"
echo '#include <asyncrl/staleness.hpp>' >"$work/staleness.cpp"
echo '#include <asyncrl/asyncrl.hpp>' >"$work/umbrella.cpp"
host=("$cxx" -std=c++20 -O2 -Iinclude -isystem "$eigen" -c -o "$work/out.o")
row "include <Eigen/Core>" "${host[@]}" "$work/eigen.cpp"
row "include <asyncrl/staleness.hpp>" "${host[@]}" "$work/staleness.cpp"
row "include <asyncrl/asyncrl.hpp>" "${host[@]}" "$work/umbrella.cpp"
for count in 1 11 12; do
    objectives "$work/host_$count.cpp" $count
    row "$count host objective(s), measure and policy_loss" "${host[@]}" "$work/host_$count.cpp"
done

if nvcc=$(command -v nvcc); then
    line "what (nvcc -O3)" "CPU s"
    for arch in "sm_90" "sm_80 sm_90 sm_100"; do
        flags=()
        for a in $arch; do flags+=(-gencode "arch=compute_${a#sm_},code=$a"); done
        for count in 1 11 12; do
            objectives "$work/device_$count.cu" $count
            row "$count CUDA objective(s), $arch" \
                "$nvcc" -std=c++20 -O3 "${flags[@]}" -Iinclude -c -o "$work/out.o" "$work/device_$count.cu"
        done
    done
fi
