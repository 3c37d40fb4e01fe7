// SPDX-License-Identifier: Apache-2.0
/// @file The version of the library. CMake reads it from here, so that a copied folder carries it too.
#pragma once

#define ASYNCRL_VERSION_MAJOR 0
#define ASYNCRL_VERSION_MINOR 1
#define ASYNCRL_VERSION_PATCH 0
