// Linears that programs store under other names, or in other pieces, than the class of the family
// in transformers has them, in checkpoints and in adapters. Told once: the reader of checkpoints
// (checkpoint.cc) and that of adapters (adapter/fitted_adapter.h) walk the list.
#ifndef QLORA_MODEL_MODULE_SPELLINGS_H_
#define QLORA_MODEL_MODULE_SPELLINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace qlora {

// One matrix of all rows, and its parts with some of them each. One of the two forms is of linears
// of a layer, the other is what a file may hold.
struct RecutLinear {
  std::string whole;               // inside the layer: "self_attn.qkv_proj"
  std::vector<std::string> parts;  // one is the same matrix under another name
  std::vector<std::int64_t> rows;  // of the parts; empty where the parts are no linears here
  // Row i of part p is row i parts + p of the whole; otherwise the parts follow each other.
  bool in_turn = false;

  bool is_cut() const { return !rows.empty(); }  // the layer has the parts
};

std::vector<RecutLinear> RecutLinears(const DecoderConfig& config, std::int64_t layer);

// The name inside a layer as the family has it: of a router that a program wrapped in a linear.
std::string RouterSpelled(const DecoderConfig& config, std::string name);

}  // namespace qlora

#endif  // QLORA_MODEL_MODULE_SPELLINGS_H_
