#include "model/shared_options.h"

#include "base/check.h"

namespace qlora {

void DeclareModelPath(OptionTable& table, std::string* model_name_or_path) {
  table.AddPath("model_name_or_path", model_name_or_path,
                "Hugging Face directory, or org/name in the local cache", {"base_model", "model"});
}

// The names of LLaMA-Factory and Axolotl are aliases, so that their files work unchanged; svd_rank
// is PEFT's.
void DeclareAdapters(OptionTable& table, std::vector<std::string>* adapters, std::int64_t* rank,
                     const std::string& use) {
  table
      .AddPath("adapter", adapters,
               "adapter " + use +
                   ": a folder of PEFT or mlx-lm, or a GGUF adapter; several, each "
                   "as PATH:WEIGHT, are added up",
               {"adapter_name_or_path", "lora_model_dir"})
      .repeats = true;
  table.Add("adapter_rank", rank,
            "reduce the adapters, added up, to this rank; 0: exact, with the sum of their ranks",
            {"svd_rank"});
}

void DeclareComputeType(OptionTable& table, std::string* compute_dtype) {
  table.Choice("compute_dtype", compute_dtype, {"auto", "float32", "bfloat16", "int8"},
               "element type of matrix products; int8: of those with quantized weights, beside "
               "bfloat16; auto: bfloat16 where that is fastest, else float32",
               {"bnb_4bit_compute_dtype"});
}

// {activation, wide}: the wide type is float32 in every run.
Precision ParsePrecision(const std::string& compute_dtype, const BackendFactory& backends,
                         bool int8_backward) {
  if (compute_dtype == "float32") return {DType::kF32, DType::kF32};
  if (compute_dtype == "bfloat16") return {DType::kBF16, DType::kF32};
  if (compute_dtype == "auto") return {backends.PreferredActivation(), DType::kF32};
  if (compute_dtype == "int8") {
    return {DType::kBF16, DType::kF32,
            int8_backward ? FrozenProducts::kInt8 : FrozenProducts::kInt8Forward};
  }
  ThrowInvalidInput("compute_dtype expects auto, float32, bfloat16 or int8, found '{}'",
                    compute_dtype);
}

const char* ComputeTypeOf(const Precision& precision) {
  if (precision.frozen != FrozenProducts::kFloat) return "int8";
  return precision.activation == DType::kBF16 ? "bfloat16" : "float32";
}

}  // namespace qlora
