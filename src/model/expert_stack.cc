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
  const bool fits = stack->a->shape == std::vector<std::int64_t>{experts_ * r, lora.in} &&
                    stack->b->shape == std::vector<std::int64_t>{out, experts_ * r};
  if (!fits) {
    ThrowInvalidInput(
        "{}: '{}' has the shapes [{}] and [{}], expected [{}, {}] and [{}, {}] for {} experts of "
        "rank {}",
        peft_.tensors->FileOf(*stack->a), stack->a->name, fmt::join(stack->a->shape, ", "),
        fmt::join(stack->b->shape, ", "), experts_ * r, lora.in, out, experts_ * r, experts_, r);
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
  UploadWide(memory_, std::span<const float>(a_).subspan(expert * r * lora.in, r * lora.in),
             lora.a);
  std::vector<float> mine(lora.out * r);
  for (std::int64_t o = 0; o < lora.out; ++o) {
    const float* row = b_.data() + (o + (second ? lora.out : 0)) * experts_ * r;
    for (std::int64_t i = 0; i < r; ++i) mine[o * r + i] = row[i * experts_ + expert];
  }
  UploadWide(memory_, mine, lora.b);
  return &*stack;
}

}  // namespace qlora
