# SPDX-License-Identifier: Apache-2.0
# Copies what a project takes that wants the kernels alone: cuda/, correction/token/ and the few headers that they include. The
# copies need nvcc, and neither Eigen nor fmt.
#
#   cmake -DTO=<include folder> -P scripts/copy_kernels.cmake

# Below correction/.
set(shared_with_cuda "(token/.*|detail/batch_numbers|detail/fault|detail/footprint|token_batch|objective|presets|reduction|totals|loss_report|loss_options|advantage_options|magnitude_histogram|mismatch_report|routing_options|matrix|log_prob_options)\\.hpp$")

if(CMAKE_SCRIPT_MODE_FILE AND TO)
    file(COPY ${CMAKE_CURRENT_LIST_DIR}/../include/asyncrl DESTINATION ${TO} FILES_MATCHING
        REGEX "/asyncrl/(config|error|fwd|version)\\.hpp$" REGEX "/asyncrl/cuda\\.cuh$" REGEX "/asyncrl/cuda/.*\\.cuh$"
        REGEX "/asyncrl/correction/${shared_with_cuda}")
endif()
