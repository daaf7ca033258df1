#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <string>

#include "tokenizer/json_value.h"
#include "tokenizer/optional_file.h"

namespace qlora {
namespace {

// An id, a list of ids, or none: null, or negative as some files have it.
std::vector<std::int32_t> IdList(const JsonValue& value) {
  std::vector<std::int32_t> ids;
  if (value.IsArray()) {
    for (const JsonValue& id : value.Array()) ids.push_back(id.Id());
  } else if (!value.IsNull() && !value.IsNegative()) {
    ids.push_back(value.Id());
  }
  return ids;
}

}  // namespace

TokenRoles ReadTokenRoles(
    const std::filesystem::path& model_dir,
    const std::function<std::optional<std::int32_t>(std::string_view)>& id_of) {
  const OptionalFile tokenizer_config(model_dir / "tokenizer_config.json");
  const OptionalFile special_tokens(model_dir / "special_tokens_map.json");
  const OptionalFile generation(model_dir / "generation_config.json");
  const OptionalFile model(model_dir / "config.json");

  // The id of the token that the first file with this key names.
  const auto named = [&](const char* key, bool must_exist) -> std::optional<std::int32_t> {
    for (const OptionalFile* file : {&tokenizer_config, &special_tokens}) {
      const JsonValue token = file->Root()[key];
      if (token.IsNull()) continue;
      // Files have the token as a text, or as an object of an added token with its "content".
      const std::string text = token.IsObject() ? token["content"].String() : token.String();
      if (text.empty()) continue;
      const auto id = id_of(text);
      if (!id && must_exist) token.Fail("a token of tokenizer.json");
      return id;
    }
    return std::nullopt;
  };
  // The ids that the first file with this key lists. Models for images and text have them a level
  // deeper.
  const auto numbered = [&](const char* key) {
    std::vector<std::int32_t> ids = IdList(generation.Root()[key]);
    if (ids.empty()) ids = IdList(model.Root()[key]);
    if (ids.empty() && model.Root().Has("text_config")) {
      ids = IdList(model.Root()["text_config"][key]);
    }
    return ids;
  };
  // A token named by text comes before an id of the model's files.
  const auto role = [&](const char* name_key, const char* id_key, bool must_exist) {
    auto id = named(name_key, must_exist);
    if (const auto ids = numbered(id_key); !id && !ids.empty()) id = ids.front();
    return id;
  };

  // A text cannot be trained on without its BOS and EOS, so a name that is not a token is an error
  // there.
  TokenRoles roles;
  roles.bos = role("bos_token", "bos_token_id", true);
  roles.eos = role("eos_token", "eos_token_id", true);
  roles.pad = role("pad_token", "pad_token_id", false);
  roles.unk = named("unk_token", false);
  roles.all_eos = numbered("eos_token_id");
  if (roles.eos) roles.all_eos.push_back(*roles.eos);
  std::sort(roles.all_eos.begin(), roles.all_eos.end());
  roles.all_eos.erase(std::unique(roles.all_eos.begin(), roles.all_eos.end()), roles.all_eos.end());
  return roles;
}

}  // namespace qlora
