// `qlora migrate`: another trainer's configuration as one for `qlora train`. No key is dropped in
// silence: each is carried over, explained away, or named as not supported.
#include "migrate/migrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/printable.h"
#include "command/common.h"
#include "qlora/error.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class MigrateVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "migrate",
        .summary = "translate a configuration of Axolotl, LLaMA-Factory, TRL, mlx-lm ...",
        .explanation =
            "Reads a YAML or JSON file of another trainer and writes a configuration for `qlora "
            "train`. Every key is listed: translated, not needed and why, or not "
            "supported and why. A default of the other trainer that differs from that of qlora is "
            "written out, so that the run stays the same. The result is written to standard output "
            "or --out, the list to standard error.",
        .examples = {"qlora migrate axolotl.yaml --out run.yaml",
                     "qlora migrate sft.yaml --from trl --strict"},
        .positionals = {"file"},
        .required = {"file"},
        .writes = true,
    };
  }

  void Declare(OptionTable& table) override {
    table.AddPath("file", &file_, "configuration of the other trainer, or - for standard input");
    out_.Declare(table, "out", "output");
    table.Choice("from", &from_, MigrationSources(),
                 "source trainer; auto: recognised by its keys");
    table.Add("strict", &strict_, "fail when a key is not supported");
    table.Section("Run");
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    std::error_code ignored;
    // equivalent, not ==: two names of one file.
    if (!out_.path.empty() && std::filesystem::equivalent(file_, out_.path, ignored)) {
      ThrowInvalidInput("{} would be replaced by its own translation; give --out another name",
                        file_);
    }
    // Before the list is printed, which would look like success.
    out_.Check();
    // Translates the whole file before anything is written: half a configuration is not a
    // configuration.
    const Migration migration = Migrate(ReadInput(file_), file_, from_);
    const std::int64_t unsupported =
        std::ranges::count(migration.keys, Fate::kUnsupported, &MigratedKey::fate);
    if (!run_.json) PrintList(console, migration, unsupported);
    // Writes nothing then: a script that continues would train something else.
    if (strict_ && unsupported > 0) {
      constexpr int kExit = static_cast<int>(ErrorCode::kInvalidInput);
      if (run_.json) {
        OrderedJson failure =
            FailureToJson(kExit, fmt::format("{} not supported", Counted(unsupported, "key")));
        failure.update(ToJson(migration, unsupported));
        PrintJson(console.out, failure);
      }
      return kExit;
    }
    // With --json the configuration is in the object, unless a file is named.
    if (!run_.json || !out_.path.empty()) out_.Write(console, migration.yaml);
    if (run_.json) {
      PrintSuccess(console, ToJson(migration, unsupported));
    } else if (!out_.path.empty()) {
      console.err << fmt::format(
          "written: {}{}\nto check it: qlora validate {}\n", ShellQuote(out_.path),
          unsupported > 0 ? ", without what is not supported" : "", ShellQuote(out_.path));
    }
    return 0;
  }

 private:
  void PrintList(const Console& console, const Migration& migration,
                 std::int64_t unsupported) const {
    for (const MigratedKey& key : migration.keys) {
      const char* mark = "-> ";
      if (key.fate == Fate::kNotNeeded) mark = "not needed: ";
      if (key.fate == Fate::kUnsupported) mark = "NOT SUPPORTED: ";
      Say(console, fmt::format("{}: {}  {}{}", key.key, key.value, mark, key.text));
    }
    Say(console,
        fmt::format("{}: a configuration of {} with {}, {} of them not supported", file_,
                    migration.tool, Counted(std::ssize(migration.keys), "key"), unsupported));
  }

  OrderedJson ToJson(const Migration& migration, std::int64_t unsupported) const {
    OrderedJson keys = OrderedJson::array();
    for (const MigratedKey& key : migration.keys) {
      const char* fate = key.fate == Fate::kCarried     ? "carried"
                         : key.fate == Fate::kNotNeeded ? "not_needed"
                                                        : "not_supported";
      keys.push_back({{"key", key.key}, {"value", key.value}, {"fate", fate}, {"text", key.text}});
    }
    OrderedJson json = {{"trainer", migration.tool},
                        {"keys", std::move(keys)},
                        {"not_supported", unsupported},
                        {"configuration", migration.yaml}};
    if (!out_.path.empty()) json["file"] = out_.path;
    return json;
  }

  std::string file_;
  OutputFile out_;
  std::string from_ = "auto";
  bool strict_ = false;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeMigrateVerb() { return std::make_unique<MigrateVerb>(); }

}  // namespace qlora
