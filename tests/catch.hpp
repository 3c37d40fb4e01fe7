// SPDX-License-Identifier: Apache-2.0
/// @file The one place that knows whether Catch2 is 2.13 or 3.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
