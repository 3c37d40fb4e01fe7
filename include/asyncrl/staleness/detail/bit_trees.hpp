// SPDX-License-Identifier: Apache-2.0
/// @file Sets of small integers that know their first and last element: the index behind the slot buffer.
#pragma once

#include <asyncrl/config.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// A row of equally large sets over {0, ..., bits - 1}, each a 64-ary tree of three levels: a bit of an upper word says that
/// the word below it is not zero. Every operation on one element costs three words, whatever the size.
class bit_trees {
  public:
    static constexpr std::uint32_t max_bits = 64 * 64 * 64;

    /// All sets start empty. @pre 0 < bits <= max_bits
    bit_trees(std::size_t trees, std::uint32_t bits)
        : bits_(bits), leaf_(1 + words_for(words_for(bits))), stride_(leaf_ + words_for(bits)), words_(trees * stride_) {}

    void set(std::size_t tree, std::uint32_t bit) noexcept {
        std::uint64_t* const root = at(tree);
        root[leaf_ + (bit >> 6)] |= one(bit);
        root[1 + (bit >> 12)] |= one(bit >> 6);
        *root |= one(bit >> 12);
    }

    void clear(std::size_t tree, std::uint32_t bit) noexcept {
        std::uint64_t* const root = at(tree);
        if ((root[leaf_ + (bit >> 6)] &= ~one(bit)) == 0 && (root[1 + (bit >> 12)] &= ~one(bit >> 6)) == 0) {
            *root &= ~one(bit >> 12);
        }
    }

    [[nodiscard]] bool any(std::size_t tree) const noexcept { return *at(tree) != 0; }

    /// @pre any(tree)
    [[nodiscard]] std::uint32_t first(std::size_t tree) const noexcept {
        std::uint64_t const* const root = at(tree);
        std::uint32_t const middle = lowest(*root);
        std::uint32_t const leaf = middle * 64 + lowest(root[1 + middle]);
        return leaf * 64 + lowest(root[leaf_ + leaf]);
    }

    /// @pre any(tree)
    [[nodiscard]] std::uint32_t last(std::size_t tree) const noexcept {
        std::uint64_t const* const root = at(tree);
        std::uint32_t const middle = highest(*root);
        std::uint32_t const leaf = middle * 64 + highest(root[1 + middle]);
        return leaf * 64 + highest(root[leaf_ + leaf]);
    }

    void clear_all(std::size_t tree) noexcept { std::fill_n(at(tree), stride_, std::uint64_t{0}); }

    void set_all(std::size_t tree) noexcept {
        std::uint64_t* const root = at(tree);
        set_prefix(root + leaf_, bits_);
        set_prefix(root + 1, words_for(bits_));
        set_prefix(root, words_for(words_for(bits_)));
    }

  private:
    static constexpr std::uint64_t one(std::uint32_t bit) noexcept { return std::uint64_t{1} << (bit & 63); }
    static constexpr std::uint32_t words_for(std::uint32_t bits) noexcept { return (bits + 63) / 64; }
    static std::uint32_t lowest(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(std::countr_zero(word)); }
    static std::uint32_t highest(std::uint64_t word) noexcept {
        return 63 - static_cast<std::uint32_t>(std::countl_zero(word));
    }
    static void set_prefix(std::uint64_t* words, std::uint32_t count) noexcept {
        std::fill_n(words, count / 64, ~std::uint64_t{0});
        if (count % 64 != 0) {
            words[count / 64] = one(count) - 1;
        }
    }

    std::uint64_t* at(std::size_t tree) noexcept { return words_.data() + tree * stride_; }
    std::uint64_t const* at(std::size_t tree) const noexcept { return words_.data() + tree * stride_; }

    std::uint32_t bits_;
    std::size_t leaf_;  // offset of the lowest level within a tree: root, middle words, leaf words
    std::size_t stride_;
    std::vector<std::uint64_t> words_;
};

}  // namespace detail
ASYNCRL_END_NAMESPACE
