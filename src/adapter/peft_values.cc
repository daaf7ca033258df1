// The values of a PEFT folder: linears as LoraAdapter reads them, experts in one tensor split.
#include "adapter/fitted_adapter.h"
#include "adapter/lora.h"
#include "adapter/lora_values.h"
#include "adapter/table_change.h"
#include "base/check.h"
#include "base/matrix.h"
#include "io/peft/peft.h"

namespace qlora {
namespace {

std::vector<float> FloatsOf(const ConstMatrixView& matrix) {
  std::vector<float> values;
  values.reserve(matrix.rows * matrix.cols);
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    const float* row = matrix.Row<float>(r);
    values.insert(values.end(), row, row + matrix.cols);
  }
  return values;
}

// Whole tables and rows are no low-rank change of the base.
void CheckLowRank(const Adapter& peft, const DecoderConfig& decoder, const std::string& name) {
  std::string what;
  for (const AdapterModule& module : peft.modules) {
    if (IsReplaceable(decoder, module.path + ".weight")) {
      what = fmt::format("a LoRA on the router '{}'", module.path);
    }
    if (IsTable(module.path) && peft.config.ensure_weight_tying && decoder.tie_word_embeddings) {
      what = "a LoRA on a table that is embedding and head (ensure_weight_tying)";
    }
  }
  if (!peft.replaced.empty()) {
    what = fmt::format(
        "the whole of '{}' (modules_to_save, norms, or a table with LoRA or of another "
        "size that PEFT saved)",
        peft.replaced.front().name);
  }
  if (!peft.token_rows.empty()) {
    what = fmt::format("new rows of '{}' (trainable_token_indices)", peft.token_rows.front().path);
  }
  if (what.empty()) return;
  ThrowInvalidInput(
      "{}: the adapter has {}, which can be neither combined, weighted, reduced in rank nor "
      "written in another format; merge it first (qlora export MODEL NEW --adapter {} --format hf) "
      "and use the other adapters on the result",
      name, what, name);
}

}  // namespace

AdapterValues ReadPeftValues(const std::filesystem::path& folder, const DecoderConfig& decoder,
                             const ProgressFn& progress) {
  const Adapter peft = OpenAdapterFor(folder, decoder);
  AdapterValues values;
  values.name = folder.string();
  CheckLowRank(peft, decoder, values.name);
  // Checks every shape and name against the decoder, tables included.
  DecoderConfig checkpoint = decoder;
  checkpoint.delta_rule.tiled = false;
  const LoraAdapter lora =
      LoraAdapter::Load(folder, checkpoint, HostMemory(), DType::kF32, progress);
  values.base_model_name_or_path = peft.config.base_model_name_or_path;
  values.revision = peft.config.revision;
  values.module_prefix = peft.config.module_prefix;
  values.dropout = peft.config.lora_dropout;
  values.use_dora = peft.config.use_dora;
  values.notes = lora.notes();
  for (const AdapterModule& module : peft.modules) {
    if (!IsTable(module.path)) continue;
    values.modules.push_back({.path = module.path,
                              .in = module.a->shape[1],
                              .out = module.b->shape[0],
                              .rank = module.a->shape[0],
                              .scale = ScaleOf(peft.config, module.path),
                              .a = FiniteValues(peft, *module.a),
                              .b = FiniteValues(peft, *module.b),
                              .magnitude = {}});
  }
  for (const PerLinear<LoraLinear>& layer : lora.layers()) {
    layer.ForEach([&](const LoraLinear& linear) {
      if (linear.rank == 0) return;
      values.modules.push_back({.path = linear.path,
                                .in = linear.in,
                                .out = linear.out,
                                .rank = linear.rank,
                                .scale = ScaleOf(peft.config, linear.path),
                                .a = FloatsOf(linear.a),
                                .b = FloatsOf(linear.b),
                                .magnitude = FloatsOf(linear.magnitude)});
    });
  }
  return values;
}

}  // namespace qlora
