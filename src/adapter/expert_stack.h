// Adapters of experts that PEFT stores for a whole layer (target_parameters): the matrices of E
// experts of rank R in one tensor each.
//
//   down_proj      A (E R, F), B (D, E R)
//   gate_up_proj   A (E R, D), B (2 F, E R): the rows of gate, then those of up, in gpt-oss in
//                  turn; both read one A
//   column r E + e of B belongs to expert e
//
// PEFT takes the sides of a parameter (E, x, y) for inputs and outputs. Up to version 0.18 x is the
// inputs of every parameter, so that those of the families here, (E, out, in), have A and B with
// the sides exchanged: W[e] += (B[e] A[e])^T. The shapes tell; of a square stack, those of the
// others.
//
//   down_proj      A (E R, D), B (F, E R)
//   gate_up_proj   A (E R, 2 F), B (D, E R): the columns of gate, then those of up
//
// The parameters of gpt-oss are (E, in, out), so that no version exchanges the sides.
#ifndef QLORA_ADAPTER_EXPERT_STACK_H_
#define QLORA_ADAPTER_EXPERT_STACK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "adapter/lora_values.h"
#include "backend/backend.h"
#include "io/peft/peft.h"

namespace qlora {

class ExpertStackReader {
 public:
  // All references must outlive the reader.
  ExpertStackReader(const Adapter& peft, const DecoderConfig& decoder, Memory& memory)
      : peft_(peft),
        experts_(decoder.experts().num_experts),
        take_turns_(decoder.moe.is_joined),
        memory_(memory) {}

  // Reads A (R, I) and B (O, R) of one linear of an expert out of the stack of its layer, which is
  // returned; null where there is none. Errors: InvalidInput for shapes of another model, NaN or
  // Inf.
  const ExpertStack* Read(const LoraLinear& lora);

 private:
  const Adapter& peft_;
  std::int64_t experts_;
  bool take_turns_;  // gate and up, of gpt-oss
  Memory& memory_;
  // The values of the stack that was read last: its linears follow each other.
  const ExpertStack* last_ = nullptr;
  std::vector<float> a_;
  std::vector<float> b_;
};

// One parameter of a layer's experts in the first of these forms.
struct StackedLora {
  std::string path;     // of its linear of the first expert
  std::string wrapper;  // of PEFT: "model.layers.0.mlp.experts.base_layer"
  std::int64_t experts = 0;
  std::int64_t rank = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::vector<float> a;  // (E R, in)
  std::vector<float> b;  // (out, E R)
};

// Joins the adapters of experts among `modules`, where PEFT has no other form for experts
// (DecoderConfig::joins_experts); in_halves: of a LoRA for each expert (WritesParameters). Errors:
// InvalidInput where an expert has none, or another rank or scale than its neighbours, and where
// gate and up have to have one A and have not.
std::vector<StackedLora> StackExperts(const std::vector<LoraValues>& modules,
                                      const DecoderConfig& decoder, bool in_halves = false);

// A LoRA for each expert, in the forms that PEFT reads whole. In some families it passes over them
// (ExpertDefaults::needs_parameters); in the others it makes parameters of them on loading, which
// is right for adapters of one rank and scale alone. Parameters are right in all: gate and up are
// one of twice the rank, with the A of up below that of gate, and B in two blocks.
// fitted_adapter.h is the way back.
bool NeedsParameters(const DecoderConfig& decoder);
// Whether the experts of each layer can be written so: all have adapters of one rank and scale, or
// none have.
bool HaveEqualExperts(const AdapterConfig& config, const DecoderConfig& decoder);
// Whether PEFT has no form for this adapter.
bool HasUnevenExperts(const AdapterConfig& config, const DecoderConfig& decoder);
// Whether it is written as parameters.
bool WritesParameters(const AdapterConfig& config, const DecoderConfig& decoder);
// The configuration that names them, with their ranks and scales.
AdapterConfig ConfigOfParameters(const AdapterConfig& config, const DecoderConfig& decoder);

}  // namespace qlora

#endif  // QLORA_ADAPTER_EXPERT_STACK_H_
