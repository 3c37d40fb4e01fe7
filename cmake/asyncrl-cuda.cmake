# SPDX-License-Identifier: Apache-2.0
# CUDA for this tree's own tests, examples and benchmarks.
if(ASYNCRL_CUDA_RUNTIME_DIR)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
    set(CMAKE_SKIP_BUILD_RPATH ON)  # else the toolkit's own library may come first
endif()
enable_language(CUDA)
if(ASYNCRL_CUDA_RUNTIME_DIR)
    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--no-compress>)
endif()
