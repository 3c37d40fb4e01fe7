// SPDX-License-Identifier: Apache-2.0
/// @file Function annotations and the versioned namespace. Every other header includes this one.
#pragma once

#include <asyncrl/version.hpp>

#if defined(_MSVC_LANG) ? _MSVC_LANG < 202002L : __cplusplus < 202002L
#error "asyncrl needs C++20: compile with -std=c++20 or newer"
#endif
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 12
#error "asyncrl needs nvcc 12 or newer"
#endif

/// The inline namespace names the minor version, so that two versions of the library in one program do not mix.
#define ASYNCRL_BEGIN_NAMESPACE \
    namespace asyncrl {         \
    inline namespace v0_1 {
#define ASYNCRL_END_NAMESPACE \
    }                         \
    }

/// Marks per-token math that one source text serves to the host and to the device.
#if defined(__CUDACC__)
#define ASYNCRL_HOST_DEVICE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define ASYNCRL_HOST_DEVICE __attribute__((always_inline)) inline
#else
#define ASYNCRL_HOST_DEVICE inline
#endif
