// Texts that say what to do: config.json of a model, YAML of a run, configurations of other
// trainers, qlora_base.json of an adapter. The first byte chooses.
#include "command/config_file.h"
#include "config/config.h"
#include "fuzz_util.h"
#include "io/json.h"
#include "migrate/migrate.h"
#include "model/base_record.h"
#include "prompt/prompt_layout.h"
#include "qlora/context.h"
#include "qlora/options.h"
#include "qlora/shape_plan.h"
#include "qlora/train_options.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

const FuzzFolder& Folder() {
  static const FuzzFolder folder;
  return folder;
}

// A configuration that is accepted has sizes that a plan of memory can be computed from.
void CheckModelConfig(std::string_view text) {
  static Context context(1);
  const DecoderConfig config = ParseDecoderConfig(ParseJson(text, "config.json"), "config.json");
  if (std::ssize(config.layers) != config.num_hidden_layers) std::abort();
  TrainOptions options;
  options.model_name_or_path = Folder().Put("config.json", text);
  const ShapePlan plan = PlanShape(context, options);
  if (plan.parameters < 1 || plan.memory.peak() == 0) std::abort();
}

// Options of `train`, as a file says them.
void ReadRun(std::string_view text) {
  TrainSettings settings;
  OptionTable table;
  settings.Declare(table);
  std::vector<std::string> notes;
  ReadConfigFile(Folder().Put("run.yaml", text), table, notes);
  settings.options.Idle();
}

// A migrated file can be read, whatever the file of the other trainer holds. The first character of
// the text chooses the trainer.
void CheckMigration(std::string_view text) {
  static const std::vector<std::string> sources = MigrationSources();
  const auto source = static_cast<unsigned char>(text.empty() ? 0 : text[0]) % sources.size();
  const Migration migration = Migrate(text.substr(text.empty() ? 0 : 1), "x.yaml", sources[source]);
  try {
    ReadRun(migration.yaml);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n%s\n", migration.yaml.c_str(), error.what());
    std::abort();
  }
}

// A form that is accepted is the same after it is written again.
void CheckBaseForm(std::string_view text) {
  Folder().Put("qlora_base.json", text);
  const BaseRecord form = *LoadBaseRecord(Folder().path());
  Attack([&] { LoadOptionsOf(form); });
  SaveBaseRecord(Folder().path(), form);
  const BaseRecord again = *LoadBaseRecord(Folder().path());
  if (again.prompts.layout != form.prompts.layout ||
      again.model_name_or_path != form.model_name_or_path) {
    std::abort();
  }
  if (!form.prompts.layout) return;
  const RecordLayout layout(*form.prompts.layout);
  DescribeLayout(*form.prompts.layout);
  for (const char* record : {R"({"prompt":"a","completion":"b"})", R"({"messages":[]})",
                             R"({"instruction":"a","input":"","output":"b","system":"s"})"}) {
    const OrderedJson fields = ParseOrderedJson(record, "record");
    Attack([&] { layout.WholeConversation(fields); });
    Attack([&] { layout.PromptConversation(fields); });
  }
  Attack([&] { layout.RecordOf("user", "system"); });
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*kReaders[])(std::string_view) = {CheckModelConfig, ReadRun, CheckMigration,
                                                    CheckBaseForm};
  Attack([&] { kReaders[data[0] % 4](text); });
  return 0;
}
