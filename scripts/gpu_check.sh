#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What to run where there is a GPU, on a machine with nvcc, CMake and Ninja and nothing else: the calls twice, captured and replayed, under
# compute-sanitizer, and their bandwidths beside a copy. Where Catch2 and Eigen are it builds the CUDA tests and runs them; where not, those that came
# along in build/cuda, built by `cmake --preset cuda && cmake --build --preset cuda` on another machine: they need neither at run time, and are an
# eighth as large once stripped. Each step has its limit; they add up to six minutes.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/cuda/bin
build=${1:-build/gpu}
mkdir -p "$build"
failed=0
step() {
    printf '\n=== %s\n' "$1"
    timeout "$2" "${@:3}" || { printf '=== %s: FAILED (%d)\n' "$1" $?; failed=1; }
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
step 'compile' 80 nvcc -std=c++20 -O3 -arch=native -Iinclude -o "$build/gpu_check" bench/cuda/gpu_check.cpp bench/cuda/cases.cu
[[ -x $build/gpu_check ]] || exit 1
step 'the same bits, graphs, streams; bandwidths' 40 "$build/gpu_check"
step 'a loss by hand: compile' 25 nvcc -std=c++20 -O3 -arch=native -Iinclude -o "$build/custom_trainer" \
    examples/custom_trainer/main.cpp examples/custom_trainer/loss.cu
step 'a loss by hand' 5 "$build/custom_trainer"
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        step "compute-sanitizer $tool" 20 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/gpu_check" 14 1000 1
    done
fi
programs=(build/cuda/tests/cuda/asyncrl_cuda_*_test)
if cmake --preset cuda -B "$build/tests" -DCMAKE_CUDA_ARCHITECTURES=native >"$build/configure.log" 2>&1; then
    step 'build the CUDA tests' 95 cmake --build "$build/tests" --target asyncrl_cuda_tests
    step 'CUDA tests' 55 ctest --test-dir "$build/tests" --label-regex '^cuda$' --parallel 8 --output-on-failure
elif [[ -x ${programs[0]} ]]; then
    step 'CUDA tests, built elsewhere' 150 xargs -P 8 -n 1 sh -c 'echo "$0" && "$0" || exit 255' < <(printf '%s\n' "${programs[@]}")
else
    echo 'no Catch2 or no Eigen here, and no tests in build/cuda that were built where they are: the CUDA tests are left out'
fi
exit $failed
