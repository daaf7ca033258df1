// `qlora config-schema`: the keys of a run as a JSON Schema, for editors.
#include "command/config_schema.h"

#include "io/json.h"
#include "training/train_settings.h"
#include "verbs/verbs.h"

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
            "save it in the same folder as your files and put '# yaml-language-server: "
            "$schema=schema.json' into "
            "their first line.",
        .examples = {"qlora config-schema", "qlora config-schema --output schema.json"},
        .positionals = {},
        .required = {},
        .writes = true,
    };
  }

  // Standard output without it, so that the schema can be piped.
  void Declare(OptionTable& table) override { output_.Declare(table, "output", "out"); }

  int Run(const Console& console) override {
    // The very table that `train` reads files with: the schema cannot lag behind the options.
    TrainSettings settings;
    OptionTable table;
    settings.Declare(table);
    const std::string text =
        FormatJson(ConfigSchema(table, "Configuration of qlora train"), 2) + "\n";
    // Refuses to replace a file, unless --overwrite is given.
    output_.Write(console, text);
    return 0;
  }

 private:
  OutputFile output_;
};

}  // namespace

std::unique_ptr<Verb> MakeConfigSchemaVerb() { return std::make_unique<ConfigSchemaVerb>(); }

}  // namespace qlora
