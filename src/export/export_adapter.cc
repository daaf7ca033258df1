#include "export/export_adapter.h"

#include "adapter/expert_stack.h"
#include "adapter/mlx_adapter.h"
#include "convert/model_folder.h"
#include "io/peft/peft.h"
#include "model/base_record.h"
#include "model/linear_shapes.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// With them the adapter acts on the same form of the base, and prompts are laid out as in training.
void CopyCompanions(const fs::path& source, const NewModelFolder& folder) {
  if (const auto base = LoadBaseRecord(source)) SaveBaseRecord(folder.path(), *base);
  CopyTokenizerFiles(source, source, folder.path());
}

}  // namespace

std::vector<std::string> ExportPeftAdapter(const AdapterValues& adapter,
                                           const DecoderConfig& decoder, const fs::path& source,
                                           const ExportTarget& target) {
  std::vector<AdapterWeights> weights;
  AdapterConfig config = ConfigOf(adapter, decoder);
  const bool has_halves = WritesParameters(config, decoder);
  if (has_halves) config = ConfigOfParameters(config, decoder);
  const std::vector<StackedLora> stacks = StackExperts(adapter.modules, decoder, has_halves);
  for (const StackedLora& stack : stacks) {
    weights.push_back({stack.path,
                       MakeView(stack.a.data(), stack.experts * stack.rank, stack.in),
                       MakeView(stack.b.data(), stack.out, stack.experts * stack.rank),
                       {},
                       stack.wrapper,
                       stack.experts});
  }
  for (const LoraValues& module : adapter.modules) {
    if (IsJoinedExpert(decoder, module.path)) continue;
    if (has_halves && module.path.find(".experts.") != std::string::npos) continue;
    AdapterWeights& views = weights.emplace_back();
    views.path = module.path;
    views.a = MakeView(module.a.data(), module.rank, module.in);
    views.b = MakeView(module.b.data(), module.out, module.rank);
    if (!module.magnitude.empty()) {
      views.magnitude = MakeView(module.magnitude.data(), 1, module.out);
    }
  }
  NewModelFolder folder(target.path, target.mode);
  WriteAdapter(folder.path(), config, weights, target.outtype.dtype);
  CopyCompanions(source, folder);
  return folder.Commit();
}

std::vector<std::string> ExportMlxAdapter(const AdapterValues& adapter,
                                          const DecoderConfig& decoder, const fs::path& source,
                                          const ExportTarget& target) {
  NewModelFolder folder(target.path, target.mode);
  WriteMlxAdapter(folder.path(), adapter, decoder, target.outtype.dtype);
  CopyCompanions(source, folder);
  return folder.Commit();
}

}  // namespace qlora
