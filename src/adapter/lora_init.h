// Initialisation of adapters from the weights that they adapt.
//
// The base is never changed. PiSSA and OLoRA, which subtract the initial adapter s B0 A0 from it,
// are held as an adapter of twice the rank, [B, -B0] [A; A0], whose second half stays as it is: the
// same function, exactly, and a plain LoRA adapter in every file.
#ifndef QLORA_ADAPTER_LORA_INIT_H_
#define QLORA_ADAPTER_LORA_INIT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/lora.h"
#include "model/weights.h"

namespace qlora {

enum class LoraInit : std::uint8_t {
  kDefault,  // A random, B zero
  kPissa,    // Meng et al., arXiv:2404.02948: the largest singular values of W
  kOlora,    // Buyukakyuz, arXiv:2406.01775: the first columns of Q and rows of R of W = Q R
  kLoftq,    // Li et al., arXiv:2310.08659, one iteration: the largest of W - NF4(W)
};

// The values of init_lora_weights.
std::vector<std::string> LoraInitNames();
// Errors: InvalidInput for a text that is not among LoraInitNames.
LoraInit ParseLoraInit(std::string_view name);

// True when the adapter has a second half that is not trained.
inline bool DoublesRank(LoraInit init) {
  return init == LoraInit::kPissa || init == LoraInit::kOlora;
}

// Errors: InvalidInput when the weights cannot give this start: kLoftq where loading quantizes
// nothing (a dense base, or a checkpoint that is 4-bit itself), a rank above the size of a matrix.
void CheckLoraInit(LoraInit init, const LoraAdapter& adapter, bool quantizes_on_load);

// Sets A and B (float32) of every linear, as CheckLoraInit allows. init: not kDefault. backend:
// with the compute type kF32, in whose memory the weights and the adapter are; it has reserved
// nothing. progress: called after each linear with the number done and in all; an exception from it
// ends the work.
void InitializeFromWeights(Backend& backend, LoraInit init, const DecoderWeights& weights,
                           std::uint64_t seed,
                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                           LoraAdapter& adapter);

}  // namespace qlora

#endif  // QLORA_ADAPTER_LORA_INIT_H_
