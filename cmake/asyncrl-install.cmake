# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(asyncrl_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/asyncrl)
install(DIRECTORY include/asyncrl TYPE INCLUDE)
install(TARGETS asyncrl EXPORT asyncrl-targets)
install(EXPORT asyncrl-targets NAMESPACE asyncrl:: DESTINATION ${asyncrl_package_dir})
configure_package_config_file(cmake/asyncrl-config.cmake.in asyncrl-config.cmake
    INSTALL_DESTINATION ${asyncrl_package_dir})
write_basic_package_version_file(asyncrl-config-version.cmake
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/asyncrl-config.cmake
              ${PROJECT_BINARY_DIR}/asyncrl-config-version.cmake
              cmake/asyncrl-components.cmake
        DESTINATION ${asyncrl_package_dir})
