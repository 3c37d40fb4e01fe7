// SPDX-License-Identifier: Apache-2.0
/// @file Device memory for tests, with guards around all that a call may write.
#pragma once

#include "correction/support/columns.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace device {

using support::memory;

inline void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

/// Device memory that begins as a copy of the host's.
class buffer {
  public:
    explicit buffer(std::vector<unsigned char> const& bytes) : size_(bytes.size()) {
        must(cudaMalloc(&data_, size_));
        write(bytes);
    }
    buffer(buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
    buffer& operator=(buffer&&) = delete;
    ~buffer() { (void)cudaFree(data_); }

    void write(std::vector<unsigned char> const& bytes) {
        must(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    }
    void read(void* to) const { must(cudaMemcpy(to, data_, size_, cudaMemcpyDeviceToHost)); }
    [[nodiscard]] std::vector<unsigned char> read() const {
        std::vector<unsigned char> bytes(size_);
        read(bytes.data());
        return bytes;
    }
    [[nodiscard]] unsigned char* data() const { return static_cast<unsigned char*>(data_); }

  private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
};

/// `bytes` of device memory at 256-byte alignment, between two guards. Filled with 0xff: NaN, and -1.
class guarded {
  public:
    explicit guarded(std::size_t bytes) : bytes_(bytes), memory_(std::vector<unsigned char>(bytes + 2 * guard, 0xff)) {}

    [[nodiscard]] void* data() const { return memory_.data() + guard; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }
    template <typename Value>
    [[nodiscard]] Value* as() const {
        return static_cast<Value*>(data());
    }
    template <typename Value>
    [[nodiscard]] Value value() const {
        Value out;
        must(cudaMemcpy(&out, data(), sizeof out, cudaMemcpyDeviceToHost));
        return out;
    }
    [[nodiscard]] bool untouched() const { return only_ff(0, bytes_ + 2 * guard); }
    [[nodiscard]] bool guards_hold() const { return only_ff(0, guard) && only_ff(guard + bytes_, guard); }

  private:
    static constexpr std::size_t guard = 256;

    [[nodiscard]] bool only_ff(std::size_t from, std::size_t count) const {
        std::vector<unsigned char> const bytes = memory_.read();
        auto const begin = bytes.begin() + static_cast<std::ptrdiff_t>(from);
        return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(count), [](unsigned char b) { return b == 0xff; });
    }

    std::size_t bytes_;
    buffer memory_;
};

/// Where an element of a column is among its bytes.
inline std::size_t origin_of(memory const& m) {
    return static_cast<std::size_t>(static_cast<unsigned char const*>(m.in().data) - m.bytes().data());
}

/// A column of a test batch in device memory, guards and gaps included.
class device_column {
  public:
    explicit device_column(memory const& from) : host_(&from), bytes_(from.bytes()) {}

    [[nodiscard]] asyncrl::column in() const { return out(); }
    [[nodiscard]] asyncrl::output_column out() const {
        asyncrl::column const c = host_->in();
        return {bytes_.data() + origin_of(*host_), c.type, c.row_stride, c.token_stride};
    }
    [[nodiscard]] bool unchanged() const { return bytes_.read() == host_->bytes(); }
    void rewrite(memory const& from) {
        host_ = &from;
        bytes_.write(from.bytes());
    }
    void fetch(memory& into) const { bytes_.read(static_cast<unsigned char*>(into.out().data) - origin_of(into)); }

  private:
    memory const* host_;
    buffer bytes_;
};

}  // namespace device
