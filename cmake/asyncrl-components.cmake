# SPDX-License-Identifier: Apache-2.0
# Components of the package beyond asyncrl::asyncrl. Runs in this project and in a consumer's find_package alike.
#
#   asyncrl::correction  the host loops, where Eigen 3.4 or newer is found
#   asyncrl::cuda        the kernels, where the project has enabled the CUDA language
#
# Debian's Eigen config accepts no version range, and its newest major is 5: hence the comparison by hand.
if(NOT TARGET asyncrl::correction)
    find_package(Eigen3 CONFIG QUIET)
    if(TARGET Eigen3::Eigen AND NOT Eigen3_VERSION VERSION_LESS 3.4)
        add_library(asyncrl::correction INTERFACE IMPORTED GLOBAL)
        target_link_libraries(asyncrl::correction INTERFACE asyncrl::asyncrl Eigen3::Eigen)
    endif()
endif()

get_property(asyncrl_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if("CUDA" IN_LIST asyncrl_languages AND NOT TARGET asyncrl::cuda)
    add_library(asyncrl::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(asyncrl::cuda INTERFACE asyncrl::asyncrl)
    if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
        target_compile_features(asyncrl::cuda INTERFACE cuda_std_20)
    else()
        # CMake before 3.25.2 has no C++20 flag for nvcc in its tables; nvcc 12 and later has.
        target_compile_options(asyncrl::cuda INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
    endif()
endif()
