// tokenizer.json -> Tokenizer::Impl.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/tokenizer_json.h"

namespace qlora {
namespace {

constexpr std::int32_t kMaxId = 1 << 22;  // far above any vocabulary

// Whether U+2581 stands behind another character.
bool HasInnerMetaspace(std::string_view text) {
  for (std::size_t at = 1; (at = text.find(kMetaspace, at)) != std::string_view::npos; ++at) {
    if (at < kMetaspace.size() ||
        text.substr(at - kMetaspace.size(), kMetaspace.size()) != kMetaspace) {
      return true;
    }
  }
  return false;
}

void RejectAffix(const JsonValue& value) {
  if (!value.IsNull() && !value.String().empty())
    value.Fail("null (word affixes are not supported)");
}

}  // namespace

Tokenizer::Impl::Impl(const std::filesystem::path& model_dir,
                      const std::filesystem::path& adapter_dir) {
  const std::filesystem::path path = model_dir / "tokenizer.json";
  const TokenizerJson json = ParseTokenizerJson(ReadTextFile(path), path.string());
  const JsonValue root = json.Root();
  if (const JsonValue version = root["version"]; !version.IsNull() && version.String() != "1.0") {
    version.Fail("\"1.0\"");
  }
  normalizer_ = Normalizer::Parse(root["normalizer"]);
  pre_tokenizer_ = PreTokenizer::Parse(root["pre_tokenizer"]);
  post = PostProcessor::Parse(root["post_processor"]);
  decoder = TokenDecoder::Parse(root["decoder"]);
  spec.normalizer = root["normalizer"].Dump();
  spec.pre_tokenizer = root["pre_tokenizer"].Dump();
  spec.split_regex = pre_tokenizer_.split_regex();
  spec.add_prefix_space = pre_tokenizer_.adds_prefix_space() || normalizer_.prepends();

  LoadModel(json);
  for (const auto* side : {&post.before, &post.after}) {
    for (const std::int32_t id : *side) {
      if (static_cast<std::size_t>(id) >= spec.pieces.size() || spec.pieces[id].empty()) {
        ThrowInvalidInput(
            "{}: post_processor: adds id {}, but no token has it; expected an id of "
            "model.vocab or added_tokens",
            json.file, id);
      }
    }
  }
  roles = ReadTokenRoles(model_dir, [this](std::string_view text) -> std::optional<std::int32_t> {
    const std::int32_t id = ids.Find(text);
    return id < 0 ? std::nullopt : std::optional(id);
  });
  if (!roles.bos && !post.before.empty()) roles.bos = post.before.front();
  spec.chat_templates = ReadChatTemplates(model_dir, adapter_dir);
}

void Tokenizer::Impl::SetPiece(std::int32_t id, const std::string& text, const std::string& where) {
  if (text.empty()) ThrowInvalidInput("{}: id {} has an empty text", where, id);
  if (id >= kMaxId)
    ThrowInvalidInput("{}: '{}' has id {}; expected less than {}", where, text, id, kMaxId);
  const auto index = static_cast<std::size_t>(id);
  if (index >= spec.pieces.size()) spec.pieces.resize(index + 1);
  if (!spec.pieces[index].empty()) {
    ThrowInvalidInput("{}: '{}' and '{}' both have id {}; expected one piece an id", where,
                      spec.pieces[index], text, id);
  }
  if (!ids.Insert(text, id)) {
    ThrowInvalidInput("{}: '{}' has two ids, {} and {}; expected one", where, text, ids.Find(text),
                      id);
  }
  spec.pieces[index] = text;
}

void Tokenizer::Impl::LoadModel(const TokenizerJson& json) {
  const JsonValue model = json.Root()["model"];
  if (!model.IsObject()) model.Fail("an object");
  if (!json.has_vocab) model["vocab"].Fail("the vocabulary");
  const std::string where = model.where() + ".vocab";
  std::string type = model["type"].IsNull() ? "" : model["type"].String();
  if (type.empty()) type = json.has_merges ? "BPE" : "Unigram";  // old files name no type
  const std::size_t size = json.vocab.size() + json.scored_vocab.size();
  if (size == 0) ThrowInvalidInput("{}: expected at least one piece", where);
  spec.pieces.reserve(size);
  ids = PieceTable(size);
  if (type == "BPE") {
    if (!json.scored_vocab.empty()) ThrowInvalidInput("{}: expected an object", where);
    for (const auto& [text, id] : json.vocab) SetPiece(id, text, where);
    model_.emplace<Bpe>(LoadBpe(json, model));
  } else if (type == "Unigram") {
    if (!json.vocab.empty()) ThrowInvalidInput("{}: expected an array", where);
    for (std::size_t i = 0; i < size; ++i) {
      SetPiece(static_cast<std::int32_t>(i), json.scored_vocab[i].first, where);
      spec.scores.push_back(static_cast<float>(json.scored_vocab[i].second));
    }
    model_.emplace<Unigram>(LoadUnigram(json, model));
  } else {
    model["type"].Fail("a supported model (BPE, Unigram)");
  }
  LoadAddedTokens(json.Root()["added_tokens"], size);
}

Bpe Tokenizer::Impl::LoadBpe(const TokenizerJson& json, const JsonValue& model) {
  if (!json.has_merges) model["merges"].Fail("the list of merges");
  if (const JsonValue dropout = model["dropout"]; !dropout.IsNull() && dropout.Number() != 0) {
    dropout.Fail("null (random merges are not supported)");
  }
  RejectAffix(model["continuing_subword_prefix"]);
  RejectAffix(model["end_of_word_suffix"]);
  BpeConfig config;
  config.pieces = &json.vocab;
  if (const JsonValue unk = model["unk_token"]; !unk.IsNull()) config.unk_token = unk.String();
  config.fuse_unk = model["fuse_unk"].Bool(false);
  config.byte_fallback = spec.byte_fallback = model["byte_fallback"].Bool(false);
  config.ignore_merges = spec.ignore_merges = model["ignore_merges"].Bool(false);
  config.byte_level = pre_tokenizer_.byte_level();
  spec.kind = config.byte_level || normalizer_.maps_bytes() ? TokenizerKind::kByteLevelBpe
                                                            : TokenizerKind::kSentencePieceBpe;
  bool inner_metaspace = false;
  config.merges.reserve(json.merges.size());
  for (const auto& [left, right] : json.merges) {
    const std::string result = left + right;
    const std::array<std::int32_t, 3> merge = {ids.Find(left), ids.Find(right), ids.Find(result)};
    for (const auto& [id, text] :
         {std::pair(merge[0], &left), std::pair(merge[1], &right), std::pair(merge[2], &result)}) {
      if (id >= 0) continue;
      ThrowInvalidInput("{}.merges[{}]: '{}' is not in model.vocab; expected a piece",
                        model.where(), config.merges.size(), *text);
    }
    inner_metaspace = inner_metaspace || HasInnerMetaspace(result);
    config.merges.push_back(merge);
  }
  spec.merges = json.merges;
  cuts_at_metaspace_ =
      !inner_metaspace && !config.byte_level && !config.ignore_merges && ids.Find(kMetaspace) >= 0;
  return Bpe(config);
}

Unigram Tokenizer::Impl::LoadUnigram(const TokenizerJson& json, const JsonValue& model) {
  spec.kind = TokenizerKind::kUnigram;
  spec.byte_fallback = model["byte_fallback"].Bool(false);
  std::optional<std::int32_t> unk_id;
  if (const JsonValue unk = model["unk_id"]; !unk.IsNull()) {
    unk_id = unk.Id();
    if (static_cast<std::size_t>(*unk_id) >= json.scored_vocab.size())
      unk.Fail("the id of a piece");
  }
  if (pre_tokenizer_.byte_level()) {
    ThrowInvalidInput("{}: ByteLevel before a Unigram model is not supported; expected Metaspace",
                      model.where());
  }
  return Unigram(json.scored_vocab, unk_id, spec.byte_fallback);
}

// Ids are those that Hugging Face gives: the model's for a text that the model has, else the next
// free one in the order of the list. A file that says otherwise is inconsistent.
void Tokenizer::Impl::LoadAddedTokens(const JsonValue& list, std::size_t model_size) {
  auto next_id = static_cast<std::int32_t>(model_size);
  if (list.IsNull()) {
    special.resize(spec.pieces.size());
    return;
  }
  const std::vector<JsonValue> items = list.Array();
  spec.added_tokens.reserve(items.size());  // matchers keep pointers to the elements
  for (const JsonValue& item : items) {
    AddedToken token;
    token.id = item["id"].Id();
    token.content = item["content"].String();
    token.special = item["special"].Bool();
    token.normalized = item["normalized"].Bool();
    token.lstrip = item["lstrip"].Bool();
    token.rstrip = item["rstrip"].Bool();
    token.single_word = item["single_word"].Bool();
    if (const std::int32_t known = ids.Find(token.content); known < 0) {
      if (token.id != next_id) {
        item["id"].Fail(fmt::format("{}, the next id that is free", next_id));
      }
      SetPiece(next_id++, token.content, item.where());
    } else if (known != token.id) {
      item["id"].Fail(fmt::format("{}, the id of '{}' in model.vocab", known, token.content));
    }
    spec.added_tokens.push_back(token);
    NormalizedText text = {token.content};
    if (token.normalized) normalizer_.Apply(&text);
    if (text.text != token.content) decoder_texts_.emplace_back(token.id, text.text);
    AddedTokenMatcher& matcher = token.normalized ? added_normalized_ : added_;
    if (!matcher.Add(text.text, &spec.added_tokens.back())) {
      item["content"].Fail("a text that no other added token has, not empty when normalized");
    }
  }
  special.resize(spec.pieces.size());
  for (const AddedToken& token : spec.added_tokens) {
    special[token.id] = token.special;
  }
  std::sort(decoder_texts_.begin(), decoder_texts_.end());
}

}  // namespace qlora
