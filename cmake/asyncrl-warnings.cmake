# SPDX-License-Identifier: Apache-2.0
# Warnings for this tree's own tests, examples and benchmarks. Never installed, never a user's.
add_library(asyncrl_warnings INTERFACE)
set(asyncrl_cxx_warnings -Wall -Wextra -Wconversion -Wshadow -Wpedantic $<$<BOOL:${ASYNCRL_WERROR}>:-Werror>)
target_compile_options(asyncrl_warnings INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:${asyncrl_cxx_warnings}>"
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra>"
    "$<$<AND:$<BOOL:${ASYNCRL_WERROR}>,$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>>:-Werror=all-warnings>")
