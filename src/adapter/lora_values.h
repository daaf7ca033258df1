// Adapters as values in host memory, whatever file they come from: what is combined, reduced to a
// lower rank and written in another program's format.
//
//   a folder of PEFT        peft_values.cc   ->
//   a folder of mlx-lm      mlx_adapter.cc   ->  AdapterValues  ->  LoraAdapter, for passes
//   a GGUF of llama.cpp     gguf_adapter.cc  ->        |         ->  PEFT, mlx-lm, GGUF
//                                              combined_adapter.h
//
// Changes of linears and LoRA on the two tables have this form. Whole tables (modules_to_save) and
// rows of tokens do not.
#ifndef QLORA_ADAPTER_LORA_VALUES_H_
#define QLORA_ADAPTER_LORA_VALUES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "adapter/rank_patterns.h"
#include "config/config.h"
#include "io/peft/peft_config.h"
#include "model/tensor_list.h"
#include "qlora/context.h"

namespace qlora {

// The change of one matrix, scale * B A, with the rows and columns of the checkpoint.
//   a linear            A (R, I), B (O, R)
//   "lm_head"           A (R, D), B (V, R)
//   "model.embed_tokens"  A (R, V), B (D, R): row v of the table += scale (B A)[:, v]
struct LoraValues {
  std::string path;
  std::int64_t in = 0;   // I
  std::int64_t out = 0;  // O
  std::int64_t rank = 0;
  double scale = 1;
  std::vector<float> a = {};
  std::vector<float> b = {};
  std::vector<float> magnitude = {};  // (O) with DoRA, otherwise empty
};

struct AdapterValues {
  std::string name;  // of the folder or file, for messages
  std::string base_model_name_or_path;
  std::string revision;
  std::string module_prefix = "model.";  // AdapterConfig::module_prefix
  double dropout = 0;
  bool use_dora = false;
  std::vector<LoraValues> modules;  // of different paths
  std::vector<std::string> notes;   // for the user: what was left out or lost
};

// What a matrix is made of: where it is and its sizes.
struct LinearPlace {
  std::string path;
  std::int64_t out = 0;
  std::int64_t in = 0;
};
// A tensor of a file: one linear, or the linears of all experts.
struct LinearStack {
  std::string name;                  // in the file
  std::vector<LinearPlace> linears;  // one, or E
};
// The linears of one row of a layer's list, under this name in a file.
LinearStack StackLinears(const LayerTensor& row, std::int64_t layer, std::string name);

// Reads a folder of PEFT. Errors: InvalidInput as LoraAdapter::Load, and for whole tables and rows
// of tokens, with what to do.
AdapterValues ReadPeftValues(const std::filesystem::path& folder, const DecoderConfig& decoder,
                             const ProgressFn& progress = {});

// Reads the adapter GGUF of llama.cpp, with rows that it reorders in the order of Hugging Face.
// Errors: InvalidInput for an adapter of another architecture or of other shapes, kinds of adapters
// that this program does not know, NaN and Inf.
AdapterValues ReadGgufValues(const std::filesystem::path& file, const DecoderConfig& decoder,
                             const ProgressFn& progress = {});

// The configuration in which PEFT finds these modules, ranks and scales: short names where all
// layers have the module, otherwise full paths.
AdapterConfig ConfigOf(const AdapterValues& adapter, const DecoderConfig& decoder);
// The same modules for SetPatterns, of a configuration without rsLoRA.
std::vector<RankedTarget> RankedTargets(const std::vector<LoraValues>& modules,
                                        const AdapterConfig& config, const DecoderConfig& decoder);

}  // namespace qlora

#endif  // QLORA_ADAPTER_LORA_VALUES_H_
