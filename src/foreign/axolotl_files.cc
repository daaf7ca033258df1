#include "foreign/axolotl_files.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "base/text.h"
#include "data/data_slice.h"

namespace qlora {
namespace {

// A word of the library `datasets` for the form of the files that data_files names.
bool IsFileForm(const std::string& path) {
  return HasWord("json jsonl csv parquet text arrow", path);
}

// The files of an entry: its path, or what data_files names.
std::vector<std::string> FilesOf(const YAML::Node& item) {
  const std::string path = TextOf(item["path"]);
  const YAML::Node names = item["data_files"];
  std::vector<std::string> files;
  const auto add = [&](const YAML::Node& name) {
    if (IsOff(name) || !name.IsScalar()) return;
    std::error_code ignored;
    const bool in_folder = !IsFileForm(path) && std::filesystem::is_directory(path, ignored);
    files.push_back(in_folder ? (std::filesystem::path(path) / name.Scalar()).string()
                              : name.Scalar());
  };
  if (names && names.IsSequence()) {
    for (const YAML::Node& name : names) add(name);
  } else if (names) {
    add(names);
  }
  if (files.empty() && !IsFileForm(path)) files.push_back(path);
  return files;
}

// The weight of a data set; nothing where there is none or it is no number above 0.
std::optional<double> WeightOf(const YAML::Node& value) {
  double weight = 0;
  if (IsNone(value) || !YAML::convert<double>::decode(value, weight) || !(weight > 0)) return {};
  return weight;
}

// True where data_files names files of a data set of the hub.
bool IsOfHub(const YAML::Node& item) {
  const std::string path = TextOf(item["path"]);
  std::error_code ignored;
  return !IsOff(item["data_files"]) && !IsFileForm(path) &&
         !std::filesystem::is_directory(path, ignored);
}

}  // namespace

std::optional<std::string> SliceOf(const YAML::Node& split) {
  const std::string text = split && split.IsScalar() ? split.Scalar() : "";
  if (text.empty() || text == "train" || text == "null") return "";
  constexpr std::string_view kTrain = "train[";
  if (!text.starts_with(kTrain) || !text.ends_with(']')) return {};
  std::string slice = text.substr(kTrain.size() - 1);
  // What it would be cut from: a name that is a slice, too, is none that datasets knows.
  std::string rest = slice;
  return TakeSlice(rest) && rest.empty() ? std::optional(slice) : std::nullopt;
}

void AddFiles(const YAML::Node& item, MigrationTarget& target, const char* our_key) {
  if (IsOfHub(item)) {
    return target.Unsupported(
        "files of a data set of the hub: run `qlora pull --dataset`, and name these files");
  }
  const std::vector<std::string> files = FilesOf(item);
  if (files.empty()) return target.Unsupported("expected the names of files");
  std::string slice = SliceOf(item["split"]).value_or("");
  std::error_code ignored;
  if (!slice.empty() &&
      (files.size() > 1 || std::filesystem::is_directory(files.front(), ignored))) {
    target.Unsupported("a slice is one of each file here, there one of all: join the files");
    slice.clear();
  }
  const std::optional<double> weight = WeightOf(item["weight"]);
  const bool weighs = std::string_view(our_key) == "dataset" && weight && *weight != 1;
  for (const std::string& file : files) {
    target.AddDataset(our_key, file + slice + (weighs ? ":" + TextOf(item["weight"]) : ""));
  }
}

void CarryWeight(const YAML::Node& value, MigrationTarget& target, const char* our_key) {
  const std::optional<double> weight = WeightOf(value);
  if (IsNone(value)) {
    target.NotNeeded("empty: the whole data set");
  } else if (!weight) {
    target.Unsupported("a weight is a number above 0");
  } else if (std::string_view(our_key) != "dataset") {
    target.Unsupported("evaluation reads each sample once");
  } else {
    target.Done(*weight < 1 ? "written behind the file; each epoch takes another part of that size"
                            : "written behind the file");
  }
}

}  // namespace qlora
