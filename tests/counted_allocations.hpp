// SPDX-License-Identifier: Apache-2.0
/// @file Counts allocations, for tests that calls make none. Include it in one file of a program: it replaces operator new.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::int64_t allocations = 0;
}  // namespace

// Not inlined: g++ would warn of new and free as a pair.
[[gnu::noinline]] void* operator new(std::size_t size, std::nothrow_t const&) noexcept {
    ++allocations;
    return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
    if (void* const memory = operator new(size, std::nothrow)) {
        return memory;
    }
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
