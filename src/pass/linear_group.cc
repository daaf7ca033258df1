#include "pass/linear_group.h"

#include <algorithm>

#include "base/matrix.h"
#include "pass/dora.h"

namespace qlora {
namespace {

// The operands of an adapter. With dropout, each linear of each micro-batch has its own random
// numbers, which forward and backward passes compute again from the key:
//
//   key number   micro_step (25 bits) | layer (12) | index (11)
//
// index: of the linear in its layer.
LoraView BindLora(const LoraLinear& lora, const DropoutState& dropout, std::int64_t layer,
                  std::size_t index) {
  LoraView view{lora.a, lora.b, lora.scale, 0, {}, lora.packed_a, lora.packed_b};
  if (!dropout.enabled) return view;
  constexpr std::uint64_t kIndices = 2048;
  static_assert(3 * kMaxExperts + 12 <= kIndices && kMaxLayers * kIndices <= 1 << 23);
  const std::uint64_t place = static_cast<std::uint64_t>(layer) * kIndices + index;
  view.dropout = lora.dropout;
  view.dropout_key =
      MakeKey(dropout.seed, RandomPlace::kLoraDropout, (dropout.micro_step << 23) | place);
  return view;
}

// The rows of a range, and as many columns of u as the adapter of the range has ranks.
std::vector<LinearOutput> OutputsOf(const AdapterRows& range, std::span<const LinearView> views,
                                    std::span<const LinearOutput> outputs) {
  std::vector<LinearOutput> out;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const LoraView& lora = views[i].lora;
    LinearOutput part{Rows(outputs[i].y, range.begin, range.rows), {}};
    if (!outputs[i].base.empty()) part.base = Rows(outputs[i].base, range.begin, range.rows);
    if (!lora.a.empty()) {
      part.u = Columns(Rows(outputs[i].u, range.begin, range.rows), 0, lora.a.rows);
    }
    out.push_back(part);
  }
  return out;
}

bool HasDora(const AdapterRows& range) {
  return range.adapter != nullptr && range.adapter->config().use_dora;
}

// One op for the rows of all adapters, which may read the weights once.
void ForwardRanges(const LayerContext& context, LinearGroup group, const MatrixView& x,
                   std::span<const LinearOutput> outputs, Store store) {
  const std::vector<LinearView> views = BindGroup(context, group, nullptr);
  std::vector<LoraView> loras;  // of the group, one range after the other
  for (const AdapterRows& range : context.inputs.adapters) {
    for (const LinearView& view : BindGroup(context, group, range.adapter)) {
      loras.push_back(view.lora);
    }
  }
  std::vector<LoraRows> ranges;
  for (const AdapterRows& range : context.inputs.adapters) {
    const std::span of_range = std::span(loras).subspan(ranges.size() * views.size(), views.size());
    ranges.push_back({range.begin, range.rows, of_range});
  }
  context.Run(ops::Linear{views, x, outputs, store, context.inputs.order, ranges});
}

}  // namespace

void LayerContext::ClearNewSlots(const MatrixView& all) const {
  if (all.empty()) return;
  const std::int64_t rows = all.rows / pool->slots;
  for (const std::int64_t slot : inputs.new_slots) Run(ops::Zero{Rows(all, slot * rows, rows)});
}

std::vector<LinearView> BindGroup(const LayerContext& context, LinearGroup group,
                                  const LoraAdapter* adapter) {
  const PerLinear<FrozenLinear>& all = context.weights().linears;
  const std::span<const FrozenLinear> frozen = GroupOf(all, group);
  // The index of the first linear of the group in its layer, which is a key of dropout: o is 3 also
  // where there are fewer linears before it.
  std::size_t first = 0;
  for (const LinearGroup before : kLinearGroups) {
    if (before == group) break;
    const std::size_t size = GroupOf(all, before).size();
    first += before == LinearGroup::kQkv ? std::max<std::size_t>(3, size) : size;
  }
  std::vector<LinearView> views;
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    views.push_back({frozen[i].weight, frozen[i].bias, {}});
    if (adapter == nullptr) continue;
    const LoraLinear& lora = GroupOf(adapter->layers()[context.layer], group)[i];
    if (lora.rank == 0) continue;
    views.back().lora = BindLora(lora, context.inputs.dropout, context.layer, first + i);
  }
  return views;
}

std::vector<LinearView> BindExperts(const LayerContext& context, LinearGroup group) {
  const std::vector<AdapterRows>& ranges = context.inputs.adapters;
  std::vector<std::vector<LinearView>> all;
  for (const AdapterRows& range : ranges) all.push_back(BindGroup(context, group, range.adapter));
  if (all.size() == 1) return std::move(all.front());
  const std::int64_t of_expert = std::ssize(all.front()) / context.config().experts().num_experts;
  std::vector<LinearView> views;
  for (std::int64_t first = 0; first < std::ssize(all.front()); first += of_expert) {
    for (const std::vector<LinearView>& of : all) {
      views.insert(views.end(), of.begin() + first, of.begin() + first + of_expert);
    }
  }
  return views;
}

LinearOutput OutputOfExperts(const MatrixView& y, const MatrixView& u,
                             std::span<const LinearView> linears, std::int64_t group,
                             std::int64_t i) {
  std::int64_t rank = 0;
  for (std::int64_t l = i; l < std::ssize(linears); l += group) {
    rank = std::max(rank, linears[l].lora.a.rows);
  }
  return {y, rank == 0 ? MatrixView{} : Columns(u, 0, rank)};
}

MatrixView Narrowed(const MatrixView& u, const LoraLinear& lora) {
  return lora.rank == 0 ? MatrixView{} : Columns(u, 0, lora.rank);
}

void ForwardGroup(const LayerContext& context, LinearGroup group, const MatrixView& x,
                  std::span<const LinearOutput> outputs, Store store) {
  context.Observe(group, x);
  const PassInputs& inputs = context.inputs;
  if (inputs.order != SumOrder::kFastest && inputs.adapters.size() > 1 &&
      std::ranges::none_of(inputs.adapters, HasDora)) {
    return ForwardRanges(context, group, x, outputs, store);
  }
  // Otherwise each range of rows with its own adapter is a separate product. Training has one
  // range.
  for (const AdapterRows& range : inputs.adapters) {
    const std::vector<LinearView> views = BindGroup(context, group, range.adapter);
    const MatrixView rows = Rows(x, range.begin, range.rows);
    const std::vector<LinearOutput> out = OutputsOf(range, views, outputs);
    if (HasDora(range)) {
      ForwardDora(context.backend(), views, GroupOf(range.adapter->layers()[context.layer], group),
                  rows, out, store, inputs.order, context.buffers.dora);
    } else {
      context.Run(ops::Linear{views, rows, out, store, inputs.order});
    }
  }
}

void BackwardGroup(const LayerContext& context, LinearGroup group, const ConstMatrixView& x,
                   std::span<const ConstMatrixView> dys, std::span<const MatrixView> us,
                   const MatrixView& dx, LoraAdapter& trained) {
  const std::vector<LinearView> views = BindGroup(context, group, &trained);
  const std::span<const LoraLinear> loras = GroupOf(trained.layers()[context.layer], group);
  // u is as wide as the largest adapter of the layout; the ops expect the rank of this one.
  std::vector<MatrixView> narrow;
  std::vector<LinearGradient> gradients;
  for (std::size_t i = 0; i < dys.size(); ++i) {
    narrow.push_back(Narrowed(us[i], loras[i]));
    gradients.push_back({dys[i], narrow[i], loras[i].da, loras[i].db});
  }
  if (trained.config().use_dora) {
    BackwardDora(context.backend(), views, loras, x, narrow, context.buffers.dora, gradients);
  }
  context.backend().Run(ops::LinearBackward{views, x, gradients, dx, Store::kSet});
}

std::vector<LinearGradient> ExpertGradients(std::span<const LoraLinear> loras,
                                            std::span<const ConstMatrixView> dys,
                                            std::span<const MatrixView> us) {
  std::vector<LinearGradient> gradients;
  for (std::size_t i = 0; i < loras.size(); ++i) {
    const std::size_t linear = i % dys.size();
    gradients.push_back({dys[linear], us[linear], loras[i].da, loras[i].db});
  }
  return gradients;
}

}  // namespace qlora
