// Names of tensors and modules in checkpoints and adapters: what trainers and wrappers put before
// them. The decoder of a model is "model.embed_tokens", "model.layers.0..." and "model.norm" in
// transformers, with other words in the place of "model." in multimodal models, in models that were
// saved without their head, and under wrappers of PyTorch.
#ifndef QLORA_IO_CHECKPOINT_NAMES_H_
#define QLORA_IO_CHECKPOINT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// What models call their embedding, the usual name first.
inline constexpr std::string_view kEmbeddingNames[] = {"embed_tokens", "embedding"};

// True for such a name.
bool IsEmbedding(std::string_view name);

// Returns the name without the words of wrappers: "module." (DistributedDataParallel) and
// "base_model.model." (PEFT) in front, "_orig_mod." (torch.compile) and those of FSDP anywhere.
std::string WithoutWrappers(std::string_view name);

// A name of the decoder in two parts: "language_model.model." and "layers.0.mlp.up_proj".
struct DecoderName {
  std::string_view prefix;
  std::string_view rest;  // begins with "embed_tokens", "layers.N.", "norm" or such
};

// Splits a name without wrappers. Nothing for other names: of the head, of an image encoder, or
// after a word that no known model has there.
std::optional<DecoderName> SplitDecoderName(std::string_view name);

// What is inside a layer.
struct DecoderPlace {
  std::int64_t layer = 0;
  std::string rest;  // "mlp.up_proj"
};
// Of "model.layers.3.mlp.up_proj"; nothing for names outside of layers.
std::optional<DecoderPlace> PlaceInDecoder(std::string_view name);

// The prefixes that transformers writes: of a text model, and of the text part of multimodal models
// in two generations of transformers.
bool IsUsualPrefix(std::string_view prefix);

// Returns the prefix of the decoder among the names of a checkpoint without wrappers; nothing where
// no name is that of an embedding. With several decoders (of drafts, of encoders) a known
// prefix comes first.
std::optional<std::string> DecoderPrefixOf(const std::vector<std::string>& names);

// Returns the prefix of "lm_head.weight" that belongs to the decoder with this prefix:
// "language_model." for "language_model.model."; nothing where there is no head.
std::optional<std::string> HeadPrefixOf(const std::vector<std::string>& names,
                                        std::string_view decoder_prefix);

}  // namespace qlora

#endif  // QLORA_IO_CHECKPOINT_NAMES_H_
