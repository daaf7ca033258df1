#include "qlora/other_base.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "checkpoint/model_fingerprint.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "io/adapter_source.h"
#include "io/json.h"
#include "io/peft_config.h"
#include "model/base_record.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Returns "name" of "/models/name/", "org/name" and "org/name@revision".
std::string LastName(const fs::path& path) {
  const std::string name = (path / "").lexically_normal().parent_path().filename().string();
  return name.substr(0, name.find('@'));
}

// The fingerprint of the weights that the adapter was trained on; "" where none is recorded.
std::string FingerprintOf(const fs::path& adapter) {
  std::error_code ignored;
  const fs::path file = adapter / kBaseRecord;
  if (!fs::exists(file, ignored)) return "";
  return JsonGetOr<std::string>(ReadJsonFile(file), "model_fingerprint", "", file.string());
}

}  // namespace

std::string TrainedBase(const std::string& folder) {
  std::error_code ignored;
  const fs::path record = fs::path(folder) / kBaseRecord;
  const std::string given =
      fs::exists(record, ignored)
          ? JsonGetOr<std::string>(ReadJsonFile(record), "model_name_or_path", "", record.string())
          : "";
  return given.empty() ? BaseOfAdapter(folder) : given;
}

std::string DescribeOtherBase(const std::string& model, const std::string& adapter) {
  std::error_code error;
  const std::string folder = ResolveAdapterDir(adapter);
  // A file that is missing or cannot be read is reported by the code that needs it.
  if (folder.empty() || !fs::exists(fs::path(folder) / kAdapterConfig, error)) return "";
  const std::string base = BaseOfAdapter(folder);
  // The weights themselves tell, where this program recorded them.
  if (const std::string trained = FingerprintOf(folder); !trained.empty()) {
    if (trained == fmt::format("{:016x}", ModelFingerprint(ResolveModelDir(model)))) return "";
    return fmt::format(
        "the weights of {} are not those that {} was trained on ({}); its answers may be of no "
        "use, unless the one was quantized from the other",
        model, adapter, TrainedBase(folder));
  }
  const std::string last = LastName(base);
  const bool tells = !last.empty() && last != "." && last != "..";
  // Last names alone: org/name, a folder of the cache and a copy are one model.
  if (!tells || last == LastName(fs::absolute(model, error))) return "";
  return fmt::format(
      "{} was trained on {}, as its configuration says, not on {}; copies of one model may have "
      "different names",
      adapter, base, model);
}

std::vector<std::string> DescribeOtherBases(const std::string& model,
                                            const std::vector<std::string>& adapters) {
  std::vector<std::string> remarks;
  for (const std::string& adapter : adapters) {
    remarks.push_back(DescribeOtherBase(model, ParseAdapterSource(adapter).path));
  }
  std::erase(remarks, "");
  return remarks;
}

}  // namespace qlora
