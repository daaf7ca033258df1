#include "convert/export_adapter.h"

#include <algorithm>

#include "io/peft.h"
#include "model/base_record.h"
#include "model/mlx_adapter.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// With them the adapter acts on the same form of the base, and prompts are laid out as in training.
std::vector<std::string> WithCompanions(const fs::path& source, const ExportTarget& target,
                                        const char* weights) {
  if (const auto base = LoadBaseRecord(source)) SaveBaseRecord(target.path, *base);
  CopyTokenizerFiles(source, source, target.path);
  std::vector<std::string> files = {(target.path / kAdapterConfig).string(),
                                    (target.path / weights).string()};
  std::vector<std::string> companions = TokenizerFileNames();
  companions.emplace_back(kBaseRecord);
  for (const std::string& name : companions) {
    std::error_code ignored;
    if (fs::exists(target.path / name, ignored)) files.push_back((target.path / name).string());
  }
  return files;
}

}  // namespace

std::vector<std::string> ExportPeftAdapter(const AdapterValues& adapter,
                                           const DecoderConfig& decoder, const fs::path& source,
                                           const ExportTarget& target) {
  std::vector<AdapterWeights> weights;
  for (const LoraValues& module : adapter.modules) {
    AdapterWeights& views = weights.emplace_back();
    views.path = module.path;
    views.a = MakeView(module.a.data(), module.rank, module.in);
    views.b = MakeView(module.b.data(), module.out, module.rank);
    if (!module.magnitude.empty()) {
      views.magnitude = MakeView(module.magnitude.data(), 1, module.out);
    }
  }
  WriteAdapter(target.path, ConfigOf(adapter, decoder), weights, target.outtype.dtype);
  return WithCompanions(source, target, kPeftWeights);
}

std::vector<std::string> ExportMlxAdapter(const AdapterValues& adapter,
                                          const DecoderConfig& decoder, const fs::path& source,
                                          const ExportTarget& target) {
  WriteMlxAdapter(target.path, adapter, decoder, target.outtype.dtype);
  return WithCompanions(source, target, kMlxWeights);
}

}  // namespace qlora
