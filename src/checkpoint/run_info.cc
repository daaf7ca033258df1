#include "checkpoint/run_info.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "checkpoint/resume_options.h"
#include "data/dataset_report.h"
#include "io/json.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Every option as text, as a configuration has it. A list with a comma in an item is written as a
// list, because its text would be read as more items.
Json ConfigOf(TrainOptions options) {
  Json config = OptionsToJson(options);
  OptionTable table;
  options.Declare(table);
  for (const Option& option : table.options()) {
    const auto* list = std::get_if<std::vector<std::string>*>(&option.value);
    if (list == nullptr) continue;
    const bool has_comma = std::any_of((*list)->begin(), (*list)->end(), [](const std::string& s) {
      return s.find(',') != std::string::npos;
    });
    if (has_comma) config[option.name] = **list;
  }
  return config;
}

constexpr const char* kExample = "example";

// The fields that are not empty, as `generate` calls them.
OrderedJson ExampleToJson(const PromptExample& example) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [key, text] :
       {std::pair("prompt", &example.prompt), std::pair("system", &example.system),
        std::pair("record", &example.record)}) {
    if (!text->empty()) json[key] = *text;
  }
  if (example.raw) json["raw"] = true;
  return json;
}

// The content of run_info.json; an empty object for a folder without the file.
Json ReadRunInfo(const fs::path& dir) {
  const fs::path file = dir / kRunInfo;
  std::error_code ignored;
  return fs::exists(file, ignored) ? ReadJsonFile(file) : Json::object();
}

}  // namespace

void WriteRunInfo(const TrainPlan& plan, std::optional<std::int64_t> finished_step) {
  const fs::path dir = plan.options.output_dir;
  WriteTextFile(dir / kTrainConfig, FormatJson(ConfigOf(plan.options), 2) + "\n");
  // OrderedJson keeps the parts in the order of the plan.
  OrderedJson parts = OrderedJson::object();
  for (const MemoryPart& part : plan.memory.parts) parts[part.name] = part.bytes;
  OrderedJson info = {{"total_steps", plan.total_steps},
                      {"memory", {{"parts", parts}, {"peak", plan.memory.peak()}}},
                      {"data", ReportToJson(plan.data.train)}};
  if (plan.data.held_out) info["eval_data"] = ReportToJson(*plan.data.held_out);
  if (plan.example.found()) info[kExample] = ExampleToJson(plan.example);
  std::error_code ignored;
  info[kStartFolder] = fs::current_path(ignored).string();
  if (finished_step) info[kFinishedStep] = *finished_step;
  WriteTextFile(dir / kRunInfo, FormatJson(info, 2) + "\n");
}

std::optional<std::int64_t> FinishedStepOf(const fs::path& dir) {
  const Json info = ReadRunInfo(dir);
  const std::string where = (dir / kRunInfo).string();
  const Json* step = FindJson(info, kFinishedStep, where);
  if (step == nullptr) return {};
  return JsonAs<std::int64_t>(*step, kFinishedStep, where);
}

fs::path StartFolderOf(const fs::path& dir) {
  return JsonGetOr<std::string>(ReadRunInfo(dir), kStartFolder, "", (dir / kRunInfo).string());
}

PromptExample RecordedExample(const fs::path& dir) {
  const std::string where = (dir / kRunInfo).string();
  const Json info = ReadRunInfo(dir);
  const Json* json = FindJson(info, kExample, where);
  if (json == nullptr) return {};
  return {.prompt = JsonGetOr<std::string>(*json, "prompt", "", where),
          .system = JsonGetOr<std::string>(*json, "system", "", where),
          .record = JsonGetOr<std::string>(*json, "record", "", where),
          .raw = JsonGetOr<bool>(*json, "raw", false, where)};
}

}  // namespace qlora
