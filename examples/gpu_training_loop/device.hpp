// SPDX-License-Identifier: Apache-2.0
/// @file Device memory, streams and events with owners, and buffers that are used again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace device {

inline void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

struct memory_free {
    void operator()(void* data) const { (void)cudaFree(data); }
};
template <typename Element>
using array = std::unique_ptr<Element[], memory_free>;

template <typename Element>
array<Element> make_array(std::size_t count) {
    void* data = nullptr;
    must(cudaMalloc(&data, count * sizeof(Element)));
    return array<Element>(static_cast<Element*>(data));
}

/// Host memory that a stream copies from and to without a detour.
struct pinned_free {
    void operator()(void* data) const { (void)cudaFreeHost(data); }
};
template <typename Element>
using pinned_array = std::unique_ptr<Element[], pinned_free>;

template <typename Element>
pinned_array<Element> make_pinned(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<Element>);
    void* data = nullptr;
    must(cudaMallocHost(&data, count * sizeof(Element)));
    return pinned_array<Element>(static_cast<Element*>(data));
}

template <typename Element>
void copy(Element* to, std::type_identity_t<Element> const* from, std::size_t count, cudaStream_t stream) {
    must(cudaMemcpyAsync(to, from, count * sizeof(Element), cudaMemcpyDefault, stream));
}

class stream {
  public:
    stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    stream(stream const&) = delete;
    stream& operator=(stream const&) = delete;
    ~stream() { (void)cudaStreamDestroy(stream_); }

    operator cudaStream_t() const { return stream_; }  // NOLINT: what the runtime and the library take
    void wait() const { must(cudaStreamSynchronize(stream_)); }

  private:
    cudaStream_t stream_ = nullptr;
};

class event {
  public:
    event() { must(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
    event(event const&) = delete;
    event& operator=(event const&) = delete;
    ~event() { (void)cudaEventDestroy(event_); }

    operator cudaEvent_t() const { return event_; }  // NOLINT

  private:
    cudaEvent_t event_ = nullptr;
};

/// Device buffers of one size. A buffer that its last holder lets go is handed out again, since cudaMalloc and cudaFree would
/// halt every stream. Whoever lets go has waited for all work on the buffer.
template <typename Element>
class pool {
  public:
    explicit pool(std::size_t count) : free_(std::make_shared<list>()), count_(count) {}

    std::shared_ptr<Element[]> take() {
        array<Element> buffer;
        {
            std::lock_guard const lock(free_->mutex);
            if (!free_->buffers.empty()) {
                buffer = std::move(free_->buffers.back());
                free_->buffers.pop_back();
            }
        }
        if (buffer == nullptr) {
            buffer = make_array<Element>(count_);
        }
        return std::shared_ptr<Element[]>(buffer.release(), [to = free_](Element* data) {
            std::lock_guard const lock(to->mutex);
            to->buffers.emplace_back(data);
        });
    }

  private:
    struct list {
        std::mutex mutex;
        std::vector<array<Element>> buffers;
    };
    std::shared_ptr<list> free_;
    std::size_t count_;
};

}  // namespace device
