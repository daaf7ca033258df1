#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "tokenizer/adapter_files.h"
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

// The text of a token that is given as a text or as an object; "" for none.
AddedToken NamedToken(const JsonValue& value) {
  AddedToken token;
  token.special = true;
  if (!value.IsObject()) {
    token.content = value.String();
    return token;
  }
  token.content = value["content"].String();
  token.normalized = value["normalized"].Bool(false);
  token.lstrip = value["lstrip"].Bool(false);
  token.rstrip = value["rstrip"].Bool(false);
  token.single_word = value["single_word"].Bool(false);
  return token;
}

// "128009", as the keys of added_tokens_decoder.
std::int32_t IdOfKey(const std::string& key, const JsonValue& where) {
  const std::int32_t id = ParseNumber<std::int32_t>(key).value_or(-1);
  if (id < 0) where.Fail("ids as keys, found '" + key + "'");
  return id;
}

constexpr auto kRoles = std::to_array<const char*>(
    {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"});

}  // namespace

std::vector<DeclaredToken> ReadDeclaredTokens(const std::filesystem::path& model_dir,
                                              const std::filesystem::path& adapter_dir) {
  const OptionalFile config(TokenizerFile(model_dir, adapter_dir, "tokenizer_config.json"));
  const OptionalFile map(TokenizerFile(model_dir, adapter_dir, "special_tokens_map.json"));
  const OptionalFile added(TokenizerFile(model_dir, adapter_dir, "added_tokens.json"));

  std::vector<DeclaredToken> named;
  const auto name = [&](const JsonValue& value) {
    if (value.IsNull()) return;
    DeclaredToken declared{NamedToken(value), value.where()};
    if (!declared.token.content.empty()) named.push_back(std::move(declared));
  };
  const auto first_of = [&](const char* key) {
    const JsonValue value = config.Root()[key];
    return value.IsNull() ? map.Root()[key] : value;
  };
  for (const char* role : kRoles) name(first_of(role));
  const JsonValue others = first_of("additional_special_tokens");
  if (others.IsArray()) {
    for (const JsonValue& value : others.Array()) name(value);
  }

  std::vector<DeclaredToken> declared;
  const JsonValue decoder = config.Root()["added_tokens_decoder"];
  if (decoder.IsObject()) {
    for (const std::string& key : decoder.Keys()) {
      DeclaredToken token{NamedToken(decoder[key]), decoder[key].where()};
      token.token.id = IdOfKey(key, decoder);
      token.token.special = decoder[key]["special"].Bool(false);
      declared.push_back(std::move(token));
    }
  } else {
    std::set<std::string_view> special;
    for (const DeclaredToken& n : named) special.insert(n.token.content);
    for (const std::string& text : added.Root().Keys()) {
      DeclaredToken token;
      token.where = added.Root()[text].where();
      token.token.id = added.Root()[text].Id();
      token.token.content = text;
      token.token.special = special.contains(text);
      token.token.normalized = !token.token.special;
      declared.push_back(std::move(token));
    }
  }
  std::sort(declared.begin(), declared.end(),
            [](const DeclaredToken& a, const DeclaredToken& b) { return a.token.id < b.token.id; });
  declared.insert(declared.end(), named.begin(), named.end());
  return declared;
}

std::optional<AddedEnds> ReadAddedEnds(const std::filesystem::path& model_dir,
                                       const std::filesystem::path& adapter_dir) {
  const OptionalFile config(TokenizerFile(model_dir, adapter_dir, "tokenizer_config.json"));
  const JsonValue root = config.Root();
  if (!root.Has("add_bos_token") && !root.Has("add_eos_token")) return std::nullopt;
  return AddedEnds{root["add_bos_token"].Bool(false), root["add_eos_token"].Bool(false)};
}

TokenRoles ReadTokenRoles(
    const std::filesystem::path& model_dir, const std::filesystem::path& adapter_dir,
    const std::function<std::optional<std::int32_t>(std::string_view)>& id_of) {
  const OptionalFile tokenizer_config(
      TokenizerFile(model_dir, adapter_dir, "tokenizer_config.json"));
  const OptionalFile special_tokens(
      TokenizerFile(model_dir, adapter_dir, "special_tokens_map.json"));
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
  for (const char* key : {"sep_token", "cls_token", "mask_token"}) {
    if (const auto id = named(key, false)) roles.others.emplace_back(key, *id);
  }
  roles.all_eos = numbered("eos_token_id");
  if (roles.eos) roles.all_eos.push_back(*roles.eos);
  std::sort(roles.all_eos.begin(), roles.all_eos.end());
  roles.all_eos.erase(std::unique(roles.all_eos.begin(), roles.all_eos.end()), roles.all_eos.end());
  return roles;
}

}  // namespace qlora
