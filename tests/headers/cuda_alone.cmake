# SPDX-License-Identifier: Apache-2.0
# What scripts/copy_kernels.cmake copies is all that nvcc needs: no Eigen, no fmt, no host loops.
# Each .cuh compiles alone and included twice, and two translation units with the same kernels link.
file(REMOVE_RECURSE ${FOLDER})
execute_process(COMMAND ${CMAKE_COMMAND} -DTO=${FOLDER} -P ${SOURCE}/scripts/copy_kernels.cmake COMMAND_ERROR_IS_FATAL ANY)
file(COPY ${SOURCE}/tests/headers/cuda_odr_a.cu ${SOURCE}/tests/headers/cuda_odr_b.cu DESTINATION ${FOLDER})
file(GLOB_RECURSE headers RELATIVE ${FOLDER} ${FOLDER}/asyncrl/*.cuh)
set(files cuda_odr_a.cu cuda_odr_b.cu)
foreach(header IN LISTS headers)
    string(MAKE_C_IDENTIFIER ${header} id)
    file(WRITE ${FOLDER}/${id}.cu "#include <${header}>\n#include <${header}>\n")
    list(APPEND files ${id}.cu)
endforeach()
set(nvcc ${NVCC} -std=c++20 -arch=sm_80 -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror -I.)
execute_process(COMMAND ${nvcc} -c -t 0 ${files} WORKING_DIRECTORY ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${nvcc} -o cuda_odr cuda_odr_a.o cuda_odr_b.o WORKING_DIRECTORY ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ./cuda_odr WORKING_DIRECTORY ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
