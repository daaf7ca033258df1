#include "export/gguf/gguf_model_keys.h"

#include <cstdint>
#include <string_view>

#include "config/gguf_names.h"
#include "export/gguf/gguf_decision_keys.h"
#include "export/gguf/gguf_metadata.h"
#include "export/gguf/gguf_origin.h"
#include "export/gguf/gguf_stored.h"
#include "export/gguf/gguf_tokenizer_keys.h"
#include "model/base_record.h"

namespace qlora {
namespace {

// What differs from the keys of a file.
struct KeyChanges {
  GgufMetadata keys;              // new, or with other values
  std::vector<std::string> gone;  // none of `keys`

  // The keys of the file that begin so and are none of `keys`.
  void DropOthers(const GgufMetadata& file, std::string_view prefix) {
    for (const GgufEntry& entry : file.entries()) {
      if (!entry.key.starts_with(prefix) || keys.Find(entry.key) != nullptr) continue;
      gone.push_back(entry.key);
    }
  }
};

void ChangeTokenizer(const GgufModelSource& model, const std::string& architecture,
                     KeyChanges& changes, std::vector<std::string>& notes) {
  const std::int64_t rows = model.stored->Find(kGgufEmbedding)->shape[0];
  const std::int64_t new_rows = model.config.vocab_size;
  if (new_rows != rows) {
    changes.keys.Add(architecture + ".vocab_size", static_cast<std::uint32_t>(new_rows));
  }
  GgufMetadata before;
  GgufMetadata after;
  std::vector<std::string> ignored;
  const Tokenizer own = Tokenizer::Load(model.folder, {}, TemplateUse::kShow);
  AddTokenizerMetadata(own, architecture, rows, WritesPrefixSpace(own, nullptr), before, ignored);
  AddTokenizerMetadata(model.tokenizer, architecture, new_rows,
                       WritesPrefixSpace(model.tokenizer, model.decision), after, notes);
  for (const GgufEntry& entry : after.entries()) {
    const GgufValue* value = before.Find(entry.key);
    if (value == nullptr || !(*value == entry.value)) changes.keys.Set(entry.key, entry.value);
  }
  for (const GgufEntry& entry : before.entries()) {
    if (after.Find(entry.key) == nullptr) changes.gone.push_back(entry.key);
  }
}

}  // namespace

GgufMetadata GgufKeysOf(const GgufModelSource& model, const ImportanceMatrix* importance,
                        std::vector<std::string>& notes) {
  GgufMetadata metadata;
  const std::string own_name = NameForTokenizer(model.name, model.tokenizer, notes);
  AddModelMetadata(model.config, own_name, model.file.number, metadata);
  AddOrigin(model.folder, model.adapter == nullptr, metadata);
  if (model.adapter != nullptr) AddBaseModel(model.name, model.repository, metadata);
  if (model.adapter != nullptr || model.merged_before) metadata.Add(kMergedWeightsKey, true);
  AddQuantizer(model.file, importance, model.importance_file, metadata);
  const std::string architecture = GgufArchitectureOf(model.config);
  const bool prefix_space = WritesPrefixSpace(model.tokenizer, model.decision);
  AddTokenizerMetadata(model.tokenizer, architecture, model.config.vocab_size, prefix_space,
                       metadata, notes);
  if (model.decision != nullptr) AddDecisionMetadata(*model.decision, architecture, metadata);
  return metadata;
}

GgufMetadata GgufKeysAsStored(const GgufModelSource& model, const TensorType& coarsest,
                              const ImportanceMatrix* importance, std::vector<std::string>& notes) {
  const GgufMetadata& stored = model.stored->values();
  KeyChanges changes;
  if (model.adapter == nullptr && model.decision == nullptr) {
    return KeysAsStored(stored, changes.keys, changes.gone);
  }
  const std::string architecture = GgufArchitectureOf(model.config);
  ChangeTokenizer(model, architecture, changes, notes);
  if (model.decision != nullptr) {
    ChangeDecisionMetadata(stored, *model.decision, architecture, changes.keys, changes.gone);
  }
  if (coarsest.is_blocks()) {
    if (importance != nullptr) AddImportance(*importance, model.importance_file, changes.keys);
    changes.DropOthers(stored, kImportanceKeys);
  }
  if (model.adapter != nullptr) {
    AddBaseModel(model.name, model.repository, changes.keys);
    changes.keys.Add(kMergedWeightsKey, true);
    changes.DropOthers(stored, "general.base_model.");
  }
  return KeysAsStored(stored, changes.keys, changes.gone);
}

}  // namespace qlora
