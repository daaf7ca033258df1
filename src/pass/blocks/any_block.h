// One of several blocks of a kind, by value. A block is a file of its own that has
//
//   Activations    what a layer keeps for the backward pass, and in it
//     Block        the block that they are of
//     Scratch      memory that all layers share; the backward pass computes its values again
//   State          of mixers: what sequences carry from pass to pass, in slots of a pool
//   kPromptPart    of mixers: prompts may be cut at multiples of so many tokens
//   Layout, LayoutScratch, LayoutState     which carve them
//   Forward, Recompute, Backward           its steps; mixers are computed again by Forward
//
// and a block that lacks one of them does not compile. LayerMixer and LayerMlp are the blocks that
// a layer may have, and the only places that list them.
#ifndef QLORA_PASS_BLOCKS_ANY_BLOCK_H_
#define QLORA_PASS_BLOCKS_ANY_BLOCK_H_

#include <variant>

#include "pass/blocks/attention.h"
#include "pass/blocks/delta_rule.h"
#include "pass/blocks/dense_mlp.h"
#include "pass/blocks/expert_mlp.h"
#include "pass/blocks/short_conv.h"
#include "pass/blocks/side_mlp.h"

namespace qlora {

template <typename... Blocks>
class AnyBlock {
 public:
  using Activations = std::variant<typename Blocks::Activations...>;

  // The block that the activations are of. context must outlive this.
  AnyBlock(const LayerContext& context, Activations& activations)
      : block_(std::visit(
            [&]<typename A>(A& a) {
              return std::variant<Blocks...>(typename A::Block(context, a));
            },
            activations)) {}

  static void Layout(LayerCarver& c, Activations& activations) {
    std::visit([&]<typename A>(A& a) { A::Block::Layout(c, a); }, activations);
  }
  static void LayoutScratch(LayerCarver& c, Activations& activations) {
    std::visit([&]<typename A>(A& a) { A::Block::LayoutScratch(c, a); }, activations);
  }

  // x_out = in.x + block(norm), where norm is that of `in`, computed before.
  void Forward(const BlockInput& in, const MatrixView& x_out) {
    std::visit([&](auto& block) { block.Forward(in, x_out); }, block_);
  }
  // Computes again what Backward reads; the same norm.
  void Recompute(const BlockInput& in) {
    std::visit([&](auto& block) { block.Recompute(in); }, block_);
  }
  // From dx, to which the gradient of in.x is added. Norms are computed again.
  void Backward(const BlockInput& in, LoraAdapter& trained) {
    std::visit([&](auto& block) { block.Backward(in, trained); }, block_);
  }

 private:
  std::variant<Blocks...> block_;
};

template <typename Mixers>
struct StatesOf;
template <typename... Mixers>
struct StatesOf<AnyBlock<Mixers...>> {
  using Type = std::variant<typename Mixers::State...>;
};

// What mixes tokens, and what mixes features.
using LayerMixer = AnyBlock<AttentionMixer, DeltaRuleMixer, ShortConvMixer>;
using LayerMlp = AnyBlock<DenseMlp, ExpertMlp, SideMlp>;

// The activations, yet empty, of the blocks that a layer has.
LayerMixer::Activations MixerOf(const DecoderConfig& config, std::int64_t layer);
LayerMlp::Activations MlpOf(const DecoderConfig& config, std::int64_t layer);

// The kPromptPart of all layers.
std::int64_t PromptPart(const DecoderConfig& config);

// What `slots` sequences carry from pass to pass in one layer.
using LayerState = StatesOf<LayerMixer>::Type;
LayerState LayoutState(LayerCarver& c, std::int64_t slots);

}  // namespace qlora

#endif  // QLORA_PASS_BLOCKS_ANY_BLOCK_H_
