// SPDX-License-Identifier: Apache-2.0
/// @file Memory for tests of places far apart: of the host, mapped for the device.
#pragma once

#include "device_memory.hpp"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace device {

/// Bytes that the device reads and writes where they lie in the host's memory. Pages that are not touched cost nothing.
class shared_bytes {
  public:
    explicit shared_bytes(std::size_t size)
        : size_(size), data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
        if (data_ == MAP_FAILED) {
            throw std::runtime_error("no address space");
        }
        must(cudaHostRegister(data_, size_, cudaHostRegisterMapped));
    }
    shared_bytes(shared_bytes const&) = delete;
    shared_bytes& operator=(shared_bytes const&) = delete;
    ~shared_bytes() {
        (void)cudaHostUnregister(data_);
        (void)munmap(data_, size_);
    }
    [[nodiscard]] std::uint8_t* host() const { return static_cast<std::uint8_t*>(data_); }
    [[nodiscard]] std::uint8_t* on_device() const {
        void* data = nullptr;
        must(cudaHostGetDevicePointer(&data, data_, 0));
        return static_cast<std::uint8_t*>(data);
    }

  private:
    std::size_t size_;
    void* data_;
};

}  // namespace device
