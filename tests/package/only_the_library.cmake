# SPDX-License-Identifier: Apache-2.0
# Ends each consumer that builds from source: to a user's build the library adds itself, and no tests, examples, benchmarks,
# install rules or compiler options.
get_target_property(directory asyncrl SOURCE_DIR)
get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
get_property(folders DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
get_target_property(options asyncrl INTERFACE_COMPILE_OPTIONS)
if(NOT targets STREQUAL "asyncrl" OR folders OR options OR ASYNCRL_INSTALL)
    message(FATAL_ERROR "asyncrl brought more than itself: targets ${targets}, folders ${folders}, options ${options}")
endif()
