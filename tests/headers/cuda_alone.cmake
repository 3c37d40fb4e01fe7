# SPDX-License-Identifier: Apache-2.0
# A copy of cuda/ and of the headers that it shares with the host compiles with nvcc, each .cuh alone and included twice.
file(REMOVE_RECURSE ${FOLDER})
file(COPY ${SOURCE}/include/asyncrl DESTINATION ${FOLDER} FILES_MATCHING
    REGEX "/asyncrl/[a-z]+\\.(hpp|cuh)$" REGEX "/asyncrl/cuda/.*\\.cuh$" REGEX "/asyncrl/correction/${SHARED}")
file(GLOB_RECURSE headers RELATIVE ${FOLDER} ${FOLDER}/asyncrl/*.cuh)
foreach(header IN LISTS headers)
    string(MAKE_C_IDENTIFIER ${header} id)
    file(WRITE ${FOLDER}/${id}.cu "#include <${header}>\n#include <${header}>\n")
    list(APPEND files ${id}.cu)
endforeach()
execute_process(COMMAND ${NVCC} -std=c++20 -arch=sm_80 -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror -I. -c -t 0 ${files}
    WORKING_DIRECTORY ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
