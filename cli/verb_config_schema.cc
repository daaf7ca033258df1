#include "config_schema.h"
#include "train_settings.h"
#include "verbs.h"

namespace qlora {
namespace {

class ConfigSchemaVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "config-schema",
        .summary = "print a JSON Schema of the YAML files that train reads",
        .explanation =
            "Prints a JSON Schema (draft 2020-12) with every key, its meaning, type, choices and "
            "default. Editors use it to complete and check a configuration while you write it: "
            "save it beside your files and put '# yaml-language-server: $schema=schema.json' into "
            "their first line.",
        .examples = {"qlora config-schema", "qlora config-schema --output schema.json"},
        .positionals = {},
        .required = {},
    };
  }

  void Declare(OptionTable& table) override {
    table.Add("output", &output_, "file to write instead of standard output", {"out"});
  }

  int Run(const Console& console) override {
    TrainSettings settings;
    OptionTable table;
    settings.Declare(table);
    const std::string text = ConfigSchema(table, "Configuration of qlora train").dump(2) + "\n";
    WriteOutput(console, output_, text);
    return 0;
  }

 private:
  std::string output_;
};

}  // namespace

std::unique_ptr<Verb> MakeConfigSchemaVerb() { return std::make_unique<ConfigSchemaVerb>(); }

}  // namespace qlora
