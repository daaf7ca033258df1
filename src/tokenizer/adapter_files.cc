#include "tokenizer/adapter_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "gguf/gguf.h"
#include "io/gguf_path.h"
#include "tokenizer/chat_template_files.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr auto kFiles = std::to_array<const char*>(
    {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"});

bool HasOther(const fs::path& model_dir, const fs::path& adapter_dir, const std::string& name) {
  std::error_code ignored;
  const fs::path own = adapter_dir / name;
  if (!fs::exists(own, ignored)) return false;
  const fs::path base = model_dir / name;
  return !fs::exists(base, ignored) || ReadTextFile(own) != ReadTextFile(base);
}

// "<|tool|> (320), <|end|> (321)", of tokens that the model has not; some of many.
std::string NewTokens(const Tokenizer& model, const Tokenizer& adapter) {
  constexpr std::int64_t kMost = 4;
  std::string text;
  std::int64_t count = 0;
  for (std::int32_t id = 0; id < adapter.vocab_size(); ++id) {
    const std::string token = adapter.TokenText(id);
    if (token == model.TokenText(id)) continue;
    if (++count <= kMost) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", token, id);
  }
  if (count > kMost) text += fmt::format(" and {} more", count - kMost);
  return text.empty() ? "" : "; tokens that the model's does not have: " + text;
}

// The parts by which two tokenizers of tokenizer.json make the same ids, and end texts alike.
bool AreSame(const Tokenizer& model, const Tokenizer& adapter) {
  const TokenizerSpec& a = adapter.spec();
  const TokenizerSpec& m = model.spec();
  return a.pieces == m.pieces && a.merges == m.merges && a.normalizer == m.normalizer &&
         a.pre_tokenizer == m.pre_tokenizer && adapter.eos_ids() == model.eos_ids() &&
         adapter.bos_id() == model.bos_id();
}

// As far as a GGUF file says, which has no normalizer and no pre-tokenizer of tokenizer.json, names
// a BOS also where none is added, fills ids without a token, and has llama.cpp's list of ends.
bool AreSameInGguf(const Tokenizer& model, const Tokenizer& adapter) {
  for (std::int32_t id = 0; id < adapter.vocab_size(); ++id) {
    const std::string token = adapter.TokenText(id);
    if (!token.empty() && token != model.TokenText(id)) return false;
  }
  return adapter.eos_id() == model.eos_id() && adapter.adds_bos() == model.adds_bos() &&
         (!adapter.adds_bos() || adapter.bos_id() == model.bos_id());
}

}  // namespace

fs::path TokenizerFile(const fs::path& model_dir, const fs::path& adapter_dir,
                       const std::string& name) {
  std::error_code ignored;
  const bool own = !adapter_dir.empty() && fs::exists(adapter_dir / name, ignored);
  return (own ? adapter_dir : model_dir) / name;
}

std::vector<std::string> TokenizerFileNames() {
  std::vector<std::string> names(kFiles.begin(), kFiles.end());
  names.emplace_back(kChatTemplateFile);
  return names;
}

void CopyTokenizerFiles(const fs::path& model_dir, const fs::path& adapter_dir,
                        const fs::path& to) {
  for (const std::string& name : TokenizerFileNames()) {
    const fs::path from = TokenizerFile(model_dir, adapter_dir, name);
    std::error_code error;
    if (!fs::exists(from, error) || fs::equivalent(from, to / name, error)) continue;
    if (name == kChatTemplateFile && fs::exists(to / name, error)) continue;
    WriteTextFile(to / name, ReadTextFile(from));
  }
}

bool HasOwnTokenizerFiles(const fs::path& model_dir, const fs::path& adapter_dir) {
  return std::ranges::any_of(TokenizerFileNames(), [&](const std::string& name) {
    return HasOther(model_dir, adapter_dir, name);
  });
}

std::size_t TokenizerFileBytes(const fs::path& model_dir, const fs::path& adapter_dir) {
  std::size_t bytes = 0;
  for (const std::string& name : TokenizerFileNames()) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(TokenizerFile(model_dir, adapter_dir, name), error);
    if (!error) bytes += size;
  }
  return bytes;
}

std::string NoteOtherTokenizer(const fs::path& model_dir, const fs::path& adapter_dir) {
  const auto differs = [&](const char* name) { return HasOther(model_dir, adapter_dir, name); };
  if (adapter_dir.empty() || std::ranges::none_of(kFiles, differs)) return "";
  std::error_code ignored;
  const Tokenizer model = Tokenizer::Load(model_dir);
  const Tokenizer adapter = Tokenizer::Load(model_dir, adapter_dir);
  const bool is_gguf = fs::is_regular_file(model_dir, ignored);
  if (!(is_gguf ? AreSameInGguf(model, adapter) : AreSame(model, adapter))) {
    return fmt::format("the tokenizer of {} is used, which differs from the model's{}",
                       adapter_dir.string(), NewTokens(model, adapter));
  }
  const auto text_of = [](const TokenizerSpec& spec) {
    return spec.chat_templates.empty() ? std::string() : spec.chat_templates.front().text;
  };
  // chat_template.jinja of an adapter is used without a word: its layout is shown.
  const bool config_decides = !fs::exists(adapter_dir / kChatTemplateFile, ignored);
  if (!config_decides || text_of(adapter.spec()) == text_of(model.spec())) return "";
  return fmt::format("the chat template of {} is used, which differs from the model's",
                     (adapter_dir / "tokenizer_config.json").string());
}

fs::path OtherChatTemplate(const fs::path& model_dir, const fs::path& adapter_dir) {
  std::vector<ChatTemplateText> of_model;
  if (const auto gguf = FindGguf(model_dir)) {
    const std::unique_ptr<GgufReader> file = OpenGguf(*gguf);
    const auto* text = file->Get<std::string>("tokenizer.chat_template");
    if (text != nullptr) of_model.push_back({"default", *text});
  } else {
    of_model = ReadChatTemplates(model_dir, {}, TemplateUse::kShow);
  }
  const auto text_of = [](const std::vector<ChatTemplateText>& templates) {
    return templates.empty() ? std::string() : std::string(Trim(templates.front().text));
  };
  if (text_of(WithAdapterTemplates(of_model, adapter_dir, TemplateUse::kShow)) ==
      text_of(of_model)) {
    return {};
  }
  return adapter_dir / (fs::exists(adapter_dir / kChatTemplateFile) ? kChatTemplateFile
                                                                    : "tokenizer_config.json");
}

}  // namespace qlora
