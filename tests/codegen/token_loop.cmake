# SPDX-License-Identifier: Apache-2.0
# Fails if the float loss loop was compiled to scalar arithmetic. Arguments: OBJDUMP, OBJECT.
execute_process(COMMAND ${OBJDUMP} -d --no-show-raw-insn -C ${OBJECT} OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)

# The function that holds the loop: from its label to the empty line behind it.
string(REGEX MATCH "loss_of_chunk<[^\n]*simd::lanes<[0-9]+>[^\n]*>:\n" label "${listing}")
if(label STREQUAL "")
    message(FATAL_ERROR "the loss loop over simd::lanes is not in ${OBJECT}")
endif()
string(FIND "${listing}" "${label}" start)
string(SUBSTRING "${listing}" ${start} -1 code)
string(FIND "${code}" "\n\n" end)
string(SUBSTRING "${code}" 0 ${end} code)

string(REGEX MATCHALL "[ \t]v?(add|sub|mul|div|fn?m(add|sub)[0-9]*)ps[ \t]" packed "${code}")
# One addition a number is scalar: the lanes of the sums, after the loop, are added up in double.
string(REGEX MATCHALL "[ \t]v?(mul|div|sub|fn?m(add|sub)[0-9]*)ss[ \t]" scalar "${code}")
list(LENGTH packed packed_count)
list(LENGTH scalar scalar_count)
message(STATUS "packed float operations: ${packed_count}, scalar float operations: ${scalar_count}")
if(packed_count LESS 30 OR scalar_count GREATER 4)
    message(FATAL_ERROR "the loss loop is not packed arithmetic")
endif()
