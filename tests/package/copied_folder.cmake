# SPDX-License-Identifier: Apache-2.0
# Copies what a program needs of include/ into a project's third_party/, then runs the README's one compiler call there.
# admit gets staleness/ and weigh gets correction/ alone: the two include nothing of each other.
set(folders_admit staleness)
set(folders_weigh correction)
file(READ ${SOURCE}/README.md readme)
if(NOT readme MATCHES "<!-- command: copied_${PROGRAM} -->\n```sh\n([^\n]+)\n")
    message(FATAL_ERROR "README.md has no line for ${PROGRAM}")
endif()
string(REGEX REPLACE "^g\\+\\+ " "'${COMPILER}' " command "${CMAKE_MATCH_1}")
string(REPLACE "-I/usr/include/eigen3" "'-I${EIGEN}'" command "${command}")

file(REMOVE_RECURSE "${PROJECT}")
file(COPY ${SOURCE}/include DESTINATION "${PROJECT}/third_party/asyncrl" FILES_MATCHING
    REGEX "/asyncrl/(config|error|fwd|version|${folders_${PROGRAM}})\\.hpp$" REGEX "/asyncrl/${folders_${PROGRAM}}/.*\\.hpp$")
file(COPY ${SOURCE}/tests/package/${PROGRAM}.cpp DESTINATION "${PROJECT}")
execute_process(COMMAND sh -c "${command}" WORKING_DIRECTORY "${PROJECT}" COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
