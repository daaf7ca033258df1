#include "pull/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"

namespace qlora {
namespace {

// Files that make a model usable, apart from its weights: configuration, tokenizer, templates,
// terms.
constexpr std::string_view kModelTexts =
    "config.json generation_config.json quantization_config.json tokenizer.json "
    "tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt "
    "merges.txt tokenizer.model spiece.model preprocessor_config.json processor_config.json "
    "chat_template.json chat_template.jinja adapter_config.json qlora_base.json qlora_prompt.json "
    "README.md LICENSE* additional_chat_templates/*.jinja USE_POLICY*";
constexpr std::string_view kDataFiles =
    "*.parquet *.jsonl *.ndjson *.json *.csv *.tsv *.txt *.md LICENSE*";
constexpr std::string_view kWeights = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
// Of PEFT, and of mlx-lm.
constexpr std::string_view kAdapterWeights[] = {"adapter_model.safetensors",
                                                "adapters.safetensors"};

bool FitsAny(const std::string& path, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return FitsPattern(path, pattern); });
}

// patterns: separated by spaces.
bool FitsAny(const std::string& path, std::string_view patterns) {
  return std::ranges::any_of(Words(patterns), [&](std::string_view pattern) {
    return FitsPattern(path, std::string(pattern));
  });
}

const HubFile* FindFile(const std::vector<HubFile>& files, std::string_view path) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const HubFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

// The end of the error about a repository without safetensors: the weights that it has instead,
// which explain why nothing was found.
std::string OtherWeights(const std::vector<HubFile>& files) {
  constexpr std::string_view kOther =
      "*.gguf pytorch_model*.bin *.pth consolidated*.safetensors *.h5 *.onnx *.msgpack";
  for (const HubFile& file : files) {
    if (FitsAny(file.path, kOther)) {
      return fmt::format("; it has {}, which cannot be trained (--include '{}' downloads it)",
                         Abridged(file.path), Abridged(file.path));
    }
  }
  return "";
}

// The shards that an index names, once each: {"weight_map": {"model.embed_tokens.weight":
// "model-00001-of-00002.safetensors", ...}}
std::set<std::string> ShardsOf(const std::string& index) {
  const Json json = ParseJson(index, kIndex);
  const Json* map = FindJson(json, "weight_map", kIndex);
  if (map == nullptr || !map->is_object()) ThrowRuntime("{}: no weight_map", kIndex);
  std::set<std::string> shards;
  for (const Json& shard : *map) shards.insert(JsonAs<std::string>(shard, "weight_map", kIndex));
  return shards;
}

// The paths of the weights that the loader will open, in the order in which it looks: one file, an
// index with its shards, an adapter. Repositories often have the same weights in several formats,
// of which one is needed.
std::set<std::string> WeightsOf(const std::vector<HubFile>& files,
                                const std::function<std::string(const HubFile&)>& read_file) {
  if (FindFile(files, kWeights) != nullptr) return {std::string(kWeights)};
  if (const HubFile* index = FindFile(files, kIndex)) {
    std::set<std::string> paths = ShardsOf(read_file(*index));
    for (const std::string& path : paths) {
      if (FindFile(files, path) == nullptr) {
        ThrowRuntime("{} names '{}', which the repository does not have", kIndex, Abridged(path));
      }
    }
    paths.emplace(kIndex);
    return paths;
  }
  for (const std::string_view adapter : kAdapterWeights) {
    if (FindFile(files, adapter) != nullptr) return {std::string(adapter)};
  }
  ThrowInvalidInput("the repository has no weights in safetensors{}; --all downloads everything",
                    OtherWeights(files));
}

}  // namespace

// A path that holds a bracket fits itself, too.
bool FitsPattern(const std::string& path, const std::string& pattern) {
  return path == pattern || fnmatch(pattern.c_str(), path.c_str(), FNM_NOESCAPE) == 0;
}

// --exclude wins over everything, then --all, then --include, then the files that training needs.
std::vector<HubFile> SelectFiles(const std::vector<HubFile>& files, HubType type,
                                 const SelectionOptions& options,
                                 const std::function<std::string(const HubFile&)>& read_file) {
  std::set<std::string> weights;
  const bool by_need = !options.all && options.include.empty();
  if (by_need && type == HubType::kModel) weights = WeightsOf(files, read_file);
  const auto is_wanted = [&](const std::string& path) {
    if (FitsAny(path, options.exclude)) return false;
    if (options.all) return true;
    if (!options.include.empty()) return FitsAny(path, options.include);
    if (type == HubType::kDataset) return FitsAny(path, kDataFiles);
    return weights.contains(path) || FitsAny(path, kModelTexts);
  };
  std::vector<HubFile> selected;
  std::copy_if(files.begin(), files.end(), std::back_inserter(selected),
               [&](const HubFile& file) { return is_wanted(file.path); });
  if (selected.empty() && !by_need) {
    ThrowInvalidInput("none of the {} files of the repository fits --include and --exclude",
                      files.size());
  }
  if (selected.empty()) {
    ThrowInvalidInput(
        "the repository has no files in a format of data (Parquet, JSON Lines, CSV, text); "
        "@refs/convert/parquet names the copy that the hub makes of some data sets");
  }
  return selected;
}

}  // namespace qlora
