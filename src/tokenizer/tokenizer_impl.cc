// tokenizer.json -> Tokenizer::Impl.
#include "tokenizer/tokenizer_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer_json.h"

namespace qlora {
namespace {

constexpr std::int32_t kMaxId = 1 << 22;  // far above any vocabulary

void RejectAffix(const JsonValue& value) {
  if (!value.IsNull() && !value.String().empty()) {
    value.Fail("null (word affixes are not supported)");
  }
}

// Everything but pieces and merges.
BpeConfig ParseBpeConfig(const JsonValue& model) {
  if (const JsonValue dropout = model["dropout"]; !dropout.IsNull() && dropout.Number() != 0) {
    dropout.Fail("null (random merges are not supported)");
  }
  RejectAffix(model["continuing_subword_prefix"]);
  RejectAffix(model["end_of_word_suffix"]);
  BpeConfig config;
  config.where = model.where();
  if (const JsonValue unk = model["unk_token"]; !unk.IsNull()) config.unk_token = unk.String();
  config.fuse_unk = model["fuse_unk"].Bool(false);
  config.byte_fallback = model["byte_fallback"].Bool(false);
  config.ignore_merges = model["ignore_merges"].Bool(false);
  return config;
}

AddedToken ParseAddedToken(const JsonValue& item) {
  AddedToken token;
  token.id = item["id"].Id();
  token.content = item["content"].String();
  token.special = item["special"].Bool();
  token.normalized = item["normalized"].Bool();
  token.lstrip = item["lstrip"].Bool();
  token.rstrip = item["rstrip"].Bool();
  token.single_word = item["single_word"].Bool();
  return token;
}

// Returns a normalizer or pre-tokenizer without what puts a space before a text.
nlohmann::json WithoutPrefix(nlohmann::json stage) {
  if (!stage.is_object()) return stage;
  for (const char* steps : {"normalizers", "pretokenizers"}) {
    if (!stage.contains(steps)) continue;
    nlohmann::json kept = nlohmann::json::array();
    for (const nlohmann::json& step : stage[steps]) {
      if (nlohmann::json bare = WithoutPrefix(step); !bare.is_null()) kept.push_back(bare);
    }
    stage[steps] = kept;
  }
  const std::string type = stage.value("type", "");
  if (type == "Prepend") return nullptr;
  if (type == "ByteLevel" || type == "Metaspace") stage["add_prefix_space"] = false;
  if (type == "Metaspace") stage["prepend_scheme"] = "never";
  return stage;
}

}  // namespace

void Tokenizer::Impl::LoadBareStages(const std::string& where) {
  if (!spec.add_prefix_space) return;
  const nlohmann::json normalizer = WithoutPrefix(nlohmann::json::parse(spec.normalizer));
  const nlohmann::json pre_tokenizer = WithoutPrefix(nlohmann::json::parse(spec.pre_tokenizer));
  bare_stages_.emplace(Stages{Normalizer::Parse(JsonValue(&normalizer, where)),
                              PreTokenizer::Parse(JsonValue(&pre_tokenizer, where))});
}

// The stages first, because they tell how the model's pieces are to be read; then model and added
// tokens; then the parts that refer to their ids.
Tokenizer::Impl::Impl(const std::filesystem::path& model_dir,
                      const std::filesystem::path& adapter_dir, TemplateUse use) {
  const TokenizerJson json =
      ReadTokenizerJson(TokenizerFile(model_dir, adapter_dir, "tokenizer.json"));
  const JsonValue root = json.Root();
  // Another version may give old keys a new meaning, and ids would be wrong without a sign.
  if (const JsonValue version = root["version"]; !version.IsNull() && version.String() != "1.0") {
    version.Fail("\"1.0\"");
  }
  stages_.normalizer = Normalizer::Parse(root["normalizer"]);
  stages_.pre_tokenizer = PreTokenizer::Parse(root["pre_tokenizer"]);
  post = PostProcessor::Parse(root["post_processor"]);
  decoder = TokenDecoder::Parse(root["decoder"]);
  nlohmann::json rules_of_file = json.rest;
  for (const char* key : {"added_tokens", "padding", "truncation"}) rules_of_file.erase(key);
  rules = rules_of_file.dump();
  spec.normalizer = root["normalizer"].Dump();
  spec.pre_tokenizer = root["pre_tokenizer"].Dump();
  spec.add_prefix_space =
      stages_.pre_tokenizer.adds_prefix_space() || stages_.normalizer.prepends();
  LoadBareStages(json.file);

  LoadModel(json);
  // Before roles and templates, which name tokens by their texts.
  LoadAddedTokens(root["added_tokens"], std::ssize(json.vocab),
                  ReadDeclaredTokens(model_dir, adapter_dir));
  CheckPostProcessor(json.file);
  const auto id_of = [this](std::string_view text) -> std::optional<std::int32_t> {
    const std::int32_t id = ids.Find(text);
    return id < 0 ? std::nullopt : std::optional(id);
  };
  roles = ReadTokenRoles(model_dir, adapter_dir, id_of);
  if (!roles.bos && !post.before.empty()) roles.bos = post.before.front();
  ApplyAddedEnds(model_dir, adapter_dir);
  spec.chat_templates = ReadChatTemplates(model_dir, adapter_dir, use);
}

void Tokenizer::Impl::ApplyAddedEnds(const std::filesystem::path& model_dir,
                                     const std::filesystem::path& adapter_dir) {
  const std::optional<AddedEnds> ends = ReadAddedEnds(model_dir, adapter_dir);
  if (!ends) return;
  // A token that the model does not have is not added.
  PostProcessor built;
  if (ends->bos && roles.bos) built.before = {*roles.bos};
  if (ends->eos && roles.eos) built.after = {*roles.eos};
  if (built.before == post.before && built.after == post.after) return;
  post = std::move(built);
  // Data that were encoded with other tokens around them are encoded again.
  spec.hash = HashBytes(fmt::format("{} {} {}", spec.hash, ends->bos, ends->eos));
}

// The template's ids are numbers of the file, so they may name nothing.
void Tokenizer::Impl::CheckPostProcessor(const std::string& file) const {
  for (const auto* side : {&post.before, &post.after}) {
    for (const std::int32_t id : *side) {
      if (id < std::ssize(spec.pieces) && !spec.pieces[id].empty()) continue;
      ThrowInvalidInput(
          "{}: post_processor: adds id {}, but no token has it; expected an id of model.vocab or "
          "added_tokens",
          file, id);
    }
  }
}

// Gives an id its text.
void Tokenizer::Impl::SetPiece(std::int32_t id, const std::string& text, const std::string& where) {
  if (text.empty()) ThrowInvalidInput("{}: id {} has an empty text; expected a piece", where, id);
  if (id >= kMaxId) {
    ThrowInvalidInput("{}: '{}' has id {}; expected less than {}", where, text, id, kMaxId);
  }
  // Ids may come in any order and leave gaps, whose pieces stay empty; kMaxId bounds the memory
  // that one wrong number can allocate.
  if (id >= std::ssize(spec.pieces)) spec.pieces.resize(id + 1);
  if (!spec.pieces[id].empty()) {
    ThrowInvalidInput("{}: '{}' and '{}' both have id {}; expected one piece an id", where,
                      spec.pieces[id], text, id);
  }
  if (!ids.Insert(text, id)) {
    ThrowInvalidInput("{}: '{}' has two ids, {} and {}; expected one", where, text, ids.Find(text),
                      id);
  }
  spec.pieces[id] = text;
}

void Tokenizer::Impl::LoadModel(const TokenizerJson& json) {
  const JsonValue model = json.Root()["model"];
  // Old files name no type: files of BPE models have merges.
  const JsonValue type = model["type"];
  if (type.IsNull() ? !model.Has("merges") : type.String() != "BPE") {
    type.Fail("\"BPE\", the model that is supported");
  }
  if (!model["vocab"].IsObject()) model["vocab"].Fail("an object of pieces and their ids");
  if (!model["merges"].IsArray()) model["merges"].Fail("a list of merges");
  const std::string where = model["vocab"].where();
  if (json.vocab.empty()) ThrowInvalidInput("{}: expected at least one piece", where);
  spec.pieces.reserve(json.vocab.size());
  ids = PieceTable(json.vocab.size());
  for (const auto& [text, id] : json.vocab) SetPiece(id, text, where);

  BpeConfig config = ParseBpeConfig(model);
  config.pieces = &json.vocab;
  config.byte_level = stages_.pre_tokenizer.byte_level();
  spec.kind = config.byte_level ? TokenizerKind::kByteLevelBpe : TokenizerKind::kSentencePieceBpe;
  spec.hash = json.hash;
  spec.byte_fallback = config.byte_fallback;
  spec.ignore_merges = config.ignore_merges;
  LoadMerges(json, model["merges"].where(), &config);
  model_.emplace(config);
}

// Every merge names three pieces. `inner_metaspace` tells whether a merge reaches from a character
// to a U+2581 behind it, as "e" and "\u2581t"; then texts may not be cut before U+2581.
void Tokenizer::Impl::LoadMerges(const TokenizerJson& json, const std::string& where,
                                 BpeConfig* config) {
  bool inner_metaspace = false;
  config->merges.reserve(json.merges.size());
  for (const auto& [left, right] : json.merges) {
    // A merge whose result is not a piece could not be given an id.
    const std::string result = left + right;
    const std::array<std::int32_t, 3> merge = {ids.Find(left), ids.Find(right), ids.Find(result)};
    const std::array<const std::string*, 3> texts = {&left, &right, &result};
    for (int i = 0; i < 3; ++i) {
      if (merge[i] >= 0) continue;
      ThrowInvalidInput("{}[{}]: '{}' is not in model.vocab; expected a piece", where,
                        config->merges.size(), *texts[i]);
    }
    inner_metaspace = inner_metaspace || HasInnerMetaspace(result);
    config->merges.push_back(merge);
  }
  spec.merges = json.merges;
  cuts_at_metaspace_ = !inner_metaspace && !config->byte_level && !config->ignore_merges &&
                       ids.Find(kMetaspace) >= 0;
}

// Ids are those that Hugging Face gives: the model's for a text that the model has, otherwise the
// next free id in the order of the list. A file that says otherwise is inconsistent.
void Tokenizer::Impl::LoadAddedTokens(const JsonValue& list, std::int64_t model_pieces,
                                      const std::vector<DeclaredToken>& declared) {
  auto next_id = static_cast<std::int32_t>(model_pieces);
  const std::vector<JsonValue> items = list.IsNull() ? std::vector<JsonValue>() : list.Array();
  // Matchers keep pointers to the elements.
  spec.added_tokens.reserve(items.size() + declared.size());
  for (const JsonValue& item : items) {
    const AddedToken& token = spec.added_tokens.emplace_back(ParseAddedToken(item));
    const std::int32_t known = ids.Find(token.content);
    if (known < 0) {
      if (token.id != next_id) {
        item["id"].Fail(fmt::format("{}, the next id that is free", next_id));
      }
      SetPiece(next_id++, token.content, item.where());
    } else if (known != token.id) {
      item["id"].Fail(fmt::format("{}, the id of '{}' in model.vocab", known, token.content));
    }
    AddToMatcher(token, item.where());
  }
  const std::size_t listed = spec.added_tokens.size();
  std::set<std::string> texts;
  for (const AddedToken& token : spec.added_tokens) texts.insert(token.content);
  for (const DeclaredToken& token : declared) AddDeclared(token, &texts, &next_id);
  for (std::size_t i = listed; i < spec.added_tokens.size(); ++i) {
    const AddedToken& token = spec.added_tokens[i];
    spec.hash =
        HashBytes(fmt::format("{} {} {} {}{}{}{}", spec.hash, token.id, token.content,
                              token.normalized, token.lstrip, token.rstrip, token.single_word));
  }
  special.resize(spec.pieces.size());
  for (const AddedToken& token : spec.added_tokens) special[token.id] = token.special;
  std::sort(decoder_texts_.begin(), decoder_texts_.end());
}

// A token that tokenizer.json lacks among its added tokens. Its id is that of the model's piece
// with this text, or the next free one, as transformers gives it.
void Tokenizer::Impl::AddDeclared(const DeclaredToken& declared, std::set<std::string>* texts,
                                  std::int32_t* next_id) {
  AddedToken token = declared.token;
  if (token.content.empty() || texts->contains(token.content)) return;
  const std::int32_t known = ids.Find(token.content);
  // A role may name a token that does not exist, such as a padding token of another model.
  if (known < 0 && token.id < 0) return;
  const std::int32_t id = known >= 0 ? known : *next_id;
  if (token.id >= 0 && token.id != id) {
    ThrowInvalidInput(
        "{}: '{}' has id {}, but tokenizer.json lacks it and would give it id {}; the files are of "
        "two versions of the tokenizer",
        declared.where, token.content, token.id, id);
  }
  token.id = id;
  texts->insert(token.content);
  if (known < 0) SetPiece((*next_id)++, token.content, declared.where);
  AddToMatcher(spec.added_tokens.emplace_back(std::move(token)), declared.where);
}

// A token with `normalized` is looked for in its normalized form: " x" as "\u2581x", say.
void Tokenizer::Impl::AddToMatcher(const AddedToken& token, const std::string& where) {
  NormalizedText text = {token.content};
  if (token.normalized) stages_.normalizer.Apply(&text);
  if (text.text != token.content) decoder_texts_.emplace_back(token.id, text.text);
  if (std::ssize(text.text) > AddedTokenMatcher::kMaxTokenBytes) {
    ThrowInvalidInput("{}.content: expected at most {} bytes", where,
                      AddedTokenMatcher::kMaxTokenBytes);
  }
  AddedTokenMatcher& matcher = token.normalized ? added_normalized_ : added_;
  if (!matcher.Add(text.text, &token)) {
    ThrowInvalidInput(
        "{}.content: expected a text that no other added token has, not empty when normalized, "
        "found '{}'",
        where, token.content);
  }
}

}  // namespace qlora
