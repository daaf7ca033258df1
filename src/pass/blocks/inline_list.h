// A short list without memory of its own.
#ifndef QLORA_PASS_BLOCKS_INLINE_LIST_H_
#define QLORA_PASS_BLOCKS_INLINE_LIST_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace qlora {

// At most kMost values, such as the operands of linears that share an input.
template <typename T, std::size_t kMost>
class InlineList {
 public:
  InlineList() = default;
  InlineList(std::initializer_list<T> some) : count_(some.size()) {
    std::copy(some.begin(), some.end(), all_.begin());
  }
  void Add(const T& one) { all_[count_++] = one; }
  std::size_t size() const { return count_; }
  operator std::span<const T>() const { return std::span(all_).first(count_); }

 private:
  std::array<T, kMost> all_;
  std::size_t count_ = 0;
};

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_INLINE_LIST_H_
