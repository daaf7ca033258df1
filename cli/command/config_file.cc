#include "command/config_file.h"

#include "base/check.h"
#include "base/file.h"
#include "foreign/foreign_option.h"
#include "foreign/option_sources.h"
#include "foreign/yaml_options.h"
#include "migrate/migrate.h"
#include "records/file_format.h"
#include "records/yaml_text.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Reads a configuration. A word without a key is taken as a configuration, also where a model or
// data were meant.
std::string ReadText(const fs::path& path) {
  try {
    return ReadTextFile(path);
  } catch (const Error& error) {
    ThrowInvalidInput(
        "{} (expected a configuration file; a model is given as --model, data as --dataset)",
        error.what());
  }
}

// Returns "run.yaml:3", lines counted from 1.
std::string Place(const fs::path& path, const YAML::Mark& mark) {
  return fmt::format("{}:{}", path.string(), mark.line + 1);
}

class Reader {
 public:
  Reader(const fs::path& path, OptionTable& table, std::vector<std::string>& notes)
      : path_(path), table_(table), notes_(notes), sources_(table, notes) {}

  void Read(const YAML::Node& root) {
    // A file of comments alone.
    if (root.IsNull()) return;
    if (!root.IsMap()) {
      ThrowInvalidInput("{}: expected lines of the form 'key: value'", Place(path_, root.Mark()));
    }
    for (const auto& entry : root) {
      const std::string place = Place(path_, entry.first.Mark());
      if (!entry.first.IsScalar()) ThrowInvalidInput("{}: a key must be a word", place);
      const std::string& key = entry.first.Scalar();
      // Our own meaning of a key always comes first.
      const bool foreign = table_.Find(key) == nullptr && IsForeignOption(key);
      if (foreign ||
          (entry.second.IsScalar() && IsForeignValue(table_, key, entry.second.Scalar()))) {
        Translate(key, entry.second, foreign ? fmt::format("{}: {}", place, key) : place, place);
        continue;
      }
      if (table_.Find(key) == nullptr && entry.second.IsMap()) {
        ThrowInvalidInput(
            "{}: unknown option '{}', whose value is a map; a map that is only there to be merged "
            "is written where it is merged, <<: {{...}}",
            place, key);
      }
      CheckKnown(key, place);
      // "key:" leaves the default, as in the schema.
      if (entry.second.IsNull()) continue;
      sources_.Set(key, {place, place}, [&] { SetOurs(key, entry.second, place); });
    }
  }

 private:
  void SetOurs(const std::string& key, const YAML::Node& value, const std::string& place) {
    if (value.IsScalar()) {
      // The text of the file: YAML's own types would turn 1e-4 into a string and 010 into 8.
      const std::string text = Plain(*table_.Find(key), value.Scalar(), place);
      SetFromNode(table_, key, YAML::Node(text), place);
    } else if (value.IsSequence()) {
      table_.Set(key, Items(key, value), place);
    } else {
      SetFromNode(table_, key, value, place);
    }
  }

  // The value of an option that may be a path. OmegaConf and shells fill in variables; a folder
  // that is called ${HOME} is not meant. \${ stands for the characters themselves.
  static std::string Plain(const Option& option, const std::string& text,
                           const std::string& place) {
    if (!option.is_path) return text;
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::string_view rest = std::string_view(text).substr(i);
      if (rest.starts_with("\\${")) {
        plain += "${";
        i += 2;
      } else if (rest.starts_with("${")) {
        ThrowInvalidInput(
            "{}: {}: variables are not filled in: write the path itself (~ is the home folder), or "
            "\\${{ for a name that holds these characters",
            place, option.name);
      } else {
        plain += text[i];
      }
    }
    return plain;
  }

  // Translates a key or a value of another program.
  void Translate(const std::string& key, const YAML::Node& value, const std::string& origin,
                 const std::string& place) {
    const ForeignOption option = TranslateOption(table_, key, value, origin);
    for (const auto& [ours, node] : option.settings) {
      sources_.Set(ours, {origin, place, option.yields},
                   [&, &ours = ours, &node = node] { SetFromNode(table_, ours, node, origin); });
    }
    notes_.insert(notes_.end(), option.notes.begin(), option.notes.end());
  }

  void CheckKnown(const std::string& key, const std::string& place) {
    if (table_.Find(key) != nullptr) return;
    // The configuration of a run was given to another verb.
    RefuseTrainSetting(key, fmt::format("{}: {}", place, key));
    table_.Set(key, "", place);  // throws: unknown
  }

  std::vector<std::string> Items(const std::string& key, const YAML::Node& list) {
    std::vector<std::string> items;
    for (const YAML::Node& item : list) {
      if (item.IsScalar()) {
        items.push_back(Plain(*table_.Find(key), item.Scalar(), Place(path_, item.Mark())));
      } else if (item.IsMap() && TakesDatasetMaps(*table_.Find(key))) {
        items.push_back(DatasetPath(item));
      } else {
        ThrowInvalidInput("{}: the list '{}' may hold plain values only", Place(path_, item.Mark()),
                          key);
      }
    }
    return items;
  }

  // Returns the path of {path: data.jsonl, type: alpaca}. The format is one for all files of a run.
  std::string DatasetPath(const YAML::Node& item) {
    std::string path;
    for (const auto& entry : item) {
      const std::string place = Place(path_, entry.first.Mark());
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (!entry.second.IsScalar() || (key != "path" && key != "type")) {
        ThrowInvalidInput("{}: expected 'path: FILE' and 'type: FORMAT' for a dataset, found '{}'",
                          place, key);
      }
      const std::string& value = entry.second.Scalar();
      if (key == "path") path = value;
      // Several entries of one format are the usual case.
      if (key != "type" || value == format_) continue;
      if (!format_.empty()) {
        ThrowInvalidInput("{}: datasets of two formats ({} and {}); convert one of them", place,
                          format_, value);
      }
      format_ = value;
      sources_.Set("dataset_format", {place, place},
                   [&] { table_.Set("dataset_format", value, place); });
    }
    if (path.empty())
      ThrowInvalidInput("{}: a dataset needs 'path: FILE'", Place(path_, item.Mark()));
    return path;
  }

  const fs::path& path_;
  OptionTable& table_;
  std::vector<std::string>& notes_;
  OptionSources sources_;
  std::string format_;  // of the datasets that name one
};

// True for a file of another trainer.
bool IsOfOtherTrainer(const YAML::Node& root, OptionTable& table) {
  return table.Find("learning_rate") != nullptr && IsForeignConfiguration(root);
}

// True for a file of data. JSON may also be a configuration.
bool HoldsData(const fs::path& path, const YAML::Node& root, OptionTable& table) {
  return table.Find("dataset") != nullptr && HasDataExtension(path) &&
         !(path.extension() == ".json" && root.IsMap());
}

}  // namespace

bool TakesDatasetMaps(const Option& option) { return option.name == "dataset"; }

void ReadConfigFile(const fs::path& path, OptionTable& table, std::vector<std::string>& notes) {
  const std::string text = ReadText(path);
  YAML::Node root;
  try {
    root.reset(ParseYaml(text, path.string()));
    Reader(path, table, notes).Read(root);
  } catch (const Error& error) {
    if (IsOfOtherTrainer(root, table)) {
      ThrowInvalidInput("{} (a configuration of another trainer: qlora migrate {})", error.what(),
                        path.string());
    }
    // What is wrong with it as YAML would not help.
    if (HoldsData(path, root, table)) {
      ThrowInvalidInput(
          "{0}: expected a configuration, found data; data are given as --dataset {0}",
          path.string());
    }
    throw;
  }
}

}  // namespace qlora
