#include "qlora/other_base.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "io/json.h"
#include "io/peft/adapter_source.h"
#include "io/peft/peft_config.h"
#include "model/base_record.h"
#include "model/gguf_source.h"
#include "model/model_fingerprint.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Returns "name" of "/models/name/", "org/name" and "org/name@revision".
std::string LastName(const fs::path& path) {
  const std::string name = (path / "").lexically_normal().parent_path().filename().string();
  return name.substr(0, name.find('@'));
}

// The base that an adapter names, and the names that the model has. Other programs write the names
// of bases in GGUF files for people, so that only a repository tells.
struct Names {
  std::string base;
  std::vector<std::string> model;
};

Names NamesOf(const std::string& model, const std::string& adapter) {
  std::error_code ignored;
  // Last names alone: org/name, a folder of the cache and a copy are one model.
  Names names{"", {LastName(fs::absolute(model, ignored))}};
  if (FormatOfAdapter(adapter) != AdapterFormat::kGguf) {
    names.base = BaseOfAdapter(adapter);
    return names;
  }
  names.base = AdapterBaseOf(fs::path(adapter)).repository;
  names.model.push_back(LastName(BaseNameOf(ResolveModelDir(model))));
  return names;
}

}  // namespace

std::string TrainedBase(const std::string& folder) {
  std::error_code ignored;
  if (FormatOfAdapter(folder) == AdapterFormat::kGguf) {
    const GgufSource base = AdapterBaseOf(fs::path(folder));
    return base.repository.empty() ? base.name : base.repository;
  }
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
  const bool is_gguf = FormatOfAdapter(folder) == AdapterFormat::kGguf;
  const bool is_there = is_gguf || fs::exists(fs::path(folder) / kAdapterConfig, error);
  if (folder.empty() || !is_there) return "";
  // The weights themselves tell, where this program recorded them.
  if (const std::string trained = TrainedFingerprint(folder); !trained.empty()) {
    if (trained == fmt::format("{:016x}", ModelFingerprint(ResolveModelDir(model)))) return "";
    return fmt::format(
        "the weights of {} are not those that {} was trained on ({}); its answers may be of no "
        "use, unless the one was quantized from the other",
        model, adapter, TrainedBase(folder));
  }
  const Names names = NamesOf(model, folder);
  const std::string last = LastName(names.base);
  const bool tells = !last.empty() && last != "." && last != "..";
  if (!tells || std::ranges::count(names.model, last) > 0) return "";
  return fmt::format(
      "{} was trained on {}, as its {} says, not on {}; copies of one model may have different "
      "names",
      adapter, names.base, is_gguf ? "file" : "configuration", model);
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
