#include "model/expert_stack.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "io/float_encoding.h"
#include "model/table_change.h"

namespace qlora {

const ExpertStack* ExpertStackReader::Read(const LoraLinear& lora) {
  const auto stack =
      std::find_if(peft_.stacks.begin(), peft_.stacks.end(), [&](const ExpertStack& s) {
        const bool down = lora.path.ends_with(".down_proj") || lora.path.ends_with(".w2");
        const bool up_or_down = down == (s.parameter == "down_proj");
        // Mixtral's files name the block of the experts otherwise than its class does now.
        const std::string experts = ReplaceAll(s.experts, ".mlp.", ".block_sparse_moe.");
        return up_or_down &&
               (lora.path.starts_with(s.experts + ".") || lora.path.starts_with(experts + "."));
      });
  if (stack == peft_.stacks.end()) return nullptr;
  const std::int64_t r = lora.rank;
  const bool down = stack->parameter == "down_proj";
  const std::int64_t out = down ? lora.out : 2 * lora.out;
  const std::int64_t columns = experts_ * r;  // of lora_B
  const auto has_sides = [&](std::int64_t a_side, std::int64_t b_side) {
    return stack->a->shape == std::vector<std::int64_t>{columns, a_side} &&
           stack->b->shape == std::vector<std::int64_t>{b_side, columns};
  };
  // A square parameter fits both; then it is read as newer versions of PEFT write it.
  const bool is_direct = has_sides(lora.in, out);
  if (!is_direct && !has_sides(out, lora.in)) {
    ThrowInvalidInput(
        "{}: '{}' has the shapes [{}] and [{}], expected [{}, {}] and [{}, {}], or the last two "
        "sides exchanged, for {} experts of rank {}",
        peft_.tensors->FileOf(*stack->a), stack->a->name, fmt::join(stack->a->shape, ", "),
        fmt::join(stack->b->shape, ", "), columns, lora.in, out, columns, experts_, r);
  }
  // "....experts.3.gate_proj"
  const std::size_t end = lora.path.rfind('.');
  const std::size_t begin = lora.path.rfind('.', end - 1) + 1;
  const std::int64_t expert = std::stoll(lora.path.substr(begin, end - begin));
  const bool second = lora.path.ends_with(".up_proj") || lora.path.ends_with(".w3");
  if (last_ != &*stack) {
    last_ = &*stack;
    a_ = FiniteValues(peft_, *stack->a);
    b_ = FiniteValues(peft_, *stack->b);
  }
  // The rows of this expert in A (R, side), and its columns in B (side, R).
  const std::int64_t first = second ? lora.out : 0;  // row of the linear in the parameter
  const auto a_at = [&](std::int64_t i, std::int64_t side, std::int64_t sides) {
    return a_[(expert * r + i) * sides + side];
  };
  const auto b_at = [&](std::int64_t side, std::int64_t i) {
    return b_[side * columns + i * experts_ + expert];
  };
  std::vector<float> a(r * lora.in);
  std::vector<float> b(lora.out * r);
  for (std::int64_t i = 0; i < r; ++i) {
    for (std::int64_t x = 0; x < lora.in; ++x) {
      a[i * lora.in + x] = is_direct ? a_at(i, x, lora.in) : b_at(x, i);
    }
    for (std::int64_t y = 0; y < lora.out; ++y) {
      b[y * r + i] = is_direct ? b_at(first + y, i) : a_at(i, first + y, out);
    }
  }
  UploadWide(memory_, a, lora.a);
  UploadWide(memory_, b, lora.b);
  return &*stack;
}

}  // namespace qlora
