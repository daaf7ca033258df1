// The linears of experts as one Linear for each expert.
#ifndef QLORA_BACKEND_EXPERT_RANGES_H_
#define QLORA_BACKEND_EXPERT_RANGES_H_

#include <array>
#include <cstdint>
#include <span>

#include "backend/ops.h"
#include "base/matrix.h"

namespace qlora {

inline constexpr std::int64_t kMostExpertLinears = 2;  // gate and up

// The rows of one expert in matrices that hold the rows of all.
struct ExpertRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  template <typename View>
  View Of(const View& m) const {
    return m.empty() ? m : Rows(m, begin, count);
  }
  // The columns of u(S, R) that an adapter of this rank uses.
  template <typename View>
  View Of(const View& u, std::int64_t rank) const {
    if (rank == 0) return {};
    View out = Rows(u, begin, count);
    out.cols = rank;
    return out;
  }
};

// fn(first linear of the expert, range) for every expert that has slots.
template <typename Fn>
void ForEachRange(std::span<const std::int32_t> begin, std::int64_t group, const Fn& fn) {
  for (std::int64_t e = 0; e + 1 < std::ssize(begin); ++e) {
    const ExpertRange range{begin[e], begin[e + 1] - begin[e]};
    if (range.count > 0) fn(e * group, range);
  }
}

// run(ops::Linear) for every expert that has slots.
template <typename Run>
void ForEachExpert(const ops::ExpertLinear& op, const Run& run) {
  const std::int64_t group = std::ssize(op.outputs);
  ForEachRange(op.begin, group, [&](std::int64_t first, const ExpertRange& range) {
    std::array<LinearOutput, kMostExpertLinears> outputs;
    for (std::int64_t i = 0; i < group; ++i) {
      outputs[i] = {range.Of(op.outputs[i].y),
                    range.Of(op.outputs[i].u, op.linears[first + i].lora.a.rows)};
    }
    run(ops::Linear{op.linears.subspan(first, group), range.Of(op.x),
                    std::span(outputs).first(group), Store::kSet, op.order});
  });
}

// run(ops::LinearBackward) for every expert that has slots.
template <typename Run>
void ForEachExpert(const ops::ExpertLinearBackward& op, const Run& run) {
  const std::int64_t group = std::ssize(op.linears) / (std::ssize(op.begin) - 1);
  ForEachRange(op.begin, group, [&](std::int64_t first, const ExpertRange& range) {
    std::array<LinearGradient, kMostExpertLinears> gradients;
    for (std::int64_t i = 0; i < group; ++i) {
      const LinearGradient& all = op.gradients[first + i];
      gradients[i] = {range.Of(op.gradients[i].dy),
                      range.Of(op.gradients[i].u, op.linears[first + i].lora.a.rows), all.da_acc,
                      all.db_acc};
    }
    run(ops::LinearBackward{op.linears.subspan(first, group), range.Of(op.x),
                            std::span(gradients).first(group), range.Of(op.dx), Store::kSet});
  });
}

}  // namespace qlora

#endif  // QLORA_BACKEND_EXPERT_RANGES_H_
