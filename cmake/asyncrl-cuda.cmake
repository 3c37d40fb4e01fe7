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

# The runtime library for .cpp files that call it: the one nvcc links for .cu files.
find_package(CUDAToolkit REQUIRED)
add_library(asyncrl_cuda_runtime INTERFACE)
target_link_libraries(asyncrl_cuda_runtime INTERFACE $<IF:$<BOOL:${ASYNCRL_CUDA_RUNTIME_DIR}>,CUDA::cudart,CUDA::cudart_static>)

# asyncrl_add_cuda_run(<ctest name> <program> [<variable>=<value>...] [ARGUMENTS <word>...]): a program that ends with 77 where
# there is no device.
function(asyncrl_add_cuda_run name program)
    cmake_parse_arguments(arg "" "" "ARGUMENTS" ${ARGN})
    set(environment ${arg_UNPARSED_ARGUMENTS})
    add_test(NAME ${name} COMMAND ${program} ${arg_ARGUMENTS})
    if(ASYNCRL_CUDA_RUNTIME_DIR)
        list(PREPEND environment "LD_LIBRARY_PATH=${ASYNCRL_CUDA_RUNTIME_DIR}")
    endif()
    set_tests_properties(${name} PROPERTIES LABELS cuda TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
    add_dependencies(asyncrl_cuda_tests ${program})
endfunction()
add_custom_target(asyncrl_cuda_tests)
