#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <exception>
#include <tuple>

#include "base/text.h"
#include "tokenizer/tokenizer_impl.h"
#include "unicode/unicode.h"

namespace qlora {

// The workspace that was given back last is lent first: its cache is the warmest.
Tokenizer::Impl::Lease::Lease(const Impl& impl) : impl_(impl) {
  {
    const std::lock_guard lock(impl_.pool_mutex_);
    if (!impl_.pool_.empty()) {
      workspace_ = std::move(impl_.pool_.back());
      impl_.pool_.pop_back();
    }
  }
  if (workspace_ == nullptr) workspace_ = std::make_unique<Workspace>();
}

Tokenizer::Impl::Lease::~Lease() {
  workspace_->bpe.Trim();
  const std::lock_guard lock(impl_.pool_mutex_);
  impl_.pool_.push_back(std::move(workspace_));
}

// The model, through the cache where the word is short.
void Tokenizer::Impl::EncodePart(std::string_view part, Workspace& workspace,
                                 std::vector<std::int32_t>* out) const {
  // Long words are rare and seldom repeat: they would only drive short ones out of the cache.
  if (std::ssize(part) > WordCache::kMaxBytes) {
    model_->Encode(part, &workspace.bpe, out);
    return;
  }
  const std::uint64_t hash = HashBytes(part);
  if (workspace.cache.Append(part, hash, out)) return;
  const std::int64_t before = std::ssize(*out);
  model_->Encode(part, &workspace.bpe, out);
  workspace.cache.Insert(part, hash, std::span(*out).subspan(before));
}

// Without a pre-tokenizer, as in Llama 2, a word is a whole text. Where no merge reaches over the
// start of a run of U+2581, both sides are independent, so short parts can be encoded and cached:
//
//     "▁The▁cat▁▁sat"  is  "▁The" "▁cat" "▁▁sat"
void Tokenizer::Impl::EncodeWord(std::string_view word, Workspace& workspace,
                                 std::vector<std::int32_t>* out) const {
  if (!cuts_at_metaspace_) {
    EncodePart(word, workspace, out);
    return;
  }
  std::size_t begin = 0;
  std::size_t at = 0;
  while (true) {
    // A run of U+2581 is never cut: Llama 2 has pieces of several ("▁▁", "▁▁▁▁"), whose merges
    // reach over each of them.
    while (word.substr(at, kMetaspace.size()) == kMetaspace) at += kMetaspace.size();
    at = word.find(kMetaspace, at);
    if (at == std::string_view::npos) break;
    EncodePart(word.substr(begin, at - begin), workspace, out);
    begin = at;
  }
  EncodePart(word.substr(begin), workspace, out);
}

// From the second search for added tokens on.
void Tokenizer::Impl::EncodeNormalized(std::string_view text, bool at_start, Reading& reading,
                                       std::vector<std::int32_t>* out) const {
  const PreTokenizer::WordSink on_word = [&](std::string_view word) {
    EncodeWord(word, reading.workspace, out);
  };
  const auto on_text = [&](std::string_view piece, std::int64_t begin) {
    std::string unmarked;
    if (!reading.mark.empty()) {
      unmarked = ReplaceAll(std::string(piece), reading.mark, "");
      piece = unmarked;
    }
    reading.stages.pre_tokenizer.Split({piece, at_start && begin == 0}, on_word);
  };
  added_normalized_.Split(text, on_text, [out](std::int32_t id) { out->push_back(id); });
}

void Tokenizer::Impl::EncodeText(std::string_view text, bool at_start, Reading& reading,
                                 std::vector<std::int32_t>* out) const {
  if (reading.stages.normalizer.IsIdentity()) {
    EncodeNormalized(text, at_start, reading, out);
    return;
  }
  NormalizedText normalized = {std::string(text), at_start};
  reading.stages.normalizer.Apply(&normalized);
  EncodeNormalized(normalized.text, normalized.at_start, reading, out);
}

// The stages in the order of the drawing in tokenizer.h.
void Tokenizer::Impl::Encode(std::string_view text, const EncodeOptions& options,
                             Workspace& workspace, std::vector<std::int32_t>* out) const {
  const bool bare = !options.prefix_space && bare_stages_.has_value();
  Reading reading = {bare ? *bare_stages_ : stages_, options.mark, workspace};
  if (options.special_tokens) out->insert(out->end(), post.before.begin(), post.before.end());
  std::string storage;  // of the repaired text, when it is ill-formed
  const std::string_view valid = ValidUtf8(text, &storage);
  const auto on_token = [out](std::int32_t id) { out->push_back(id); };
  if (partition_) {
    partition_->Split(
        valid, [&](std::string_view piece) { EncodeText(piece, false, reading, out); }, on_token);
  } else {
    added_.Split(
        valid,
        [&](std::string_view piece, std::int64_t begin) {
          EncodeText(piece, begin == 0, reading, out);
        },
        on_token);
  }
  if (options.special_tokens) out->insert(out->end(), post.after.begin(), post.after.end());
}

std::optional<std::string_view> Tokenizer::Impl::DecoderText(std::int32_t id,
                                                             bool skip_special_tokens) const {
  // Models have more rows than the tokenizer has ids, so a sampled id may have no text.
  if (id < 0 || id >= std::ssize(spec.pieces) || spec.pieces[id].empty()) return std::nullopt;
  if (!byte_pieces_.empty()) {
    if (skip_special_tokens && special[id]) return std::nullopt;
    return byte_pieces_[id];
  }
  const auto changed = std::lower_bound(decoder_texts_.begin(), decoder_texts_.end(), id,
                                        [](const std::pair<std::int32_t, std::string>& entry,
                                           std::int32_t value) { return entry.first < value; });
  const bool is_changed = changed != decoder_texts_.end() && changed->first == id;
  // A special token whose text the normalizer changes is not recognised by Hugging Face here.
  if (skip_special_tokens && special[id] && !is_changed) return std::nullopt;
  return is_changed ? changed->second : spec.pieces[id];
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::Load(const std::filesystem::path& model_dir,
                          const std::filesystem::path& adapter_dir, TemplateUse use) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(model_dir, ignored)) {
    return Tokenizer(Impl::OfGguf(model_dir, adapter_dir, use));
  }
  return Tokenizer(std::make_unique<const Impl>(model_dir, adapter_dir, use));
}

std::vector<std::int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  return Encode(text, EncodeOptions{.special_tokens = add_special_tokens});
}

std::vector<std::int32_t> Tokenizer::Encode(std::string_view text,
                                            const EncodeOptions& options) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 8);  // English has some four bytes a token
  Impl::Lease workspace(*impl_);
  impl_->Encode(text, options, *workspace, &ids);
  return ids;
}

// Errors are kept per thread and the first is thrown behind the loop: none may leave a task.
std::vector<std::vector<std::int32_t>> Tokenizer::EncodeBatch(
    Context& context, std::span<const std::string_view> texts, bool add_special_tokens) const {
  std::vector<std::vector<std::int32_t>> results(texts.size());
  std::vector<std::exception_ptr> errors(context.threads());
  // Texts per task: enough that handing out tasks costs nothing.
  const std::int64_t count = std::ssize(texts);
  const std::int64_t group = std::clamp<std::int64_t>(count / (context.threads() * 16), 1, 256);
  context.ParallelFor((count + group - 1) / group, [&](std::int64_t index, int worker) {
    try {
      Impl::Lease workspace(*impl_);
      for (std::int64_t i = index * group; i < std::min((index + 1) * group, count); ++i) {
        results[i].reserve(texts[i].size() / 4 + 8);
        impl_->Encode(texts[i], {.special_tokens = add_special_tokens}, *workspace, &results[i]);
      }
    } catch (...) {
      errors[worker] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    // Any one of several errors: which worker met which text depends on the threads.
    if (error) std::rethrow_exception(error);
  }
  return results;
}

// A stream whose parts are put together.
std::string Tokenizer::Decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  TokenDecoder::State state(impl_->decoder);
  std::string text;
  for (const std::int32_t id : ids) {
    if (const auto token = impl_->DecoderText(id, skip_special_tokens)) state.Add(*token, &text);
  }
  state.Finish(&text);
  return text;
}

struct Tokenizer::StreamDecoder::State {
  const Impl* tokenizer;
  bool skip_special_tokens;
  TokenDecoder::State decoder;
};

Tokenizer::StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens,
                                        std::span<const std::int32_t> context)
    : state_(std::make_unique<State>(State{tokenizer.impl_.get(), skip_special_tokens,
                                           TokenDecoder::State(tokenizer.impl_->decoder)})) {
  for (const std::int32_t id : context) Add(id);
  Finish();  // the text that the context holds back is left out too
}

Tokenizer::StreamDecoder::~StreamDecoder() = default;
Tokenizer::StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
Tokenizer::StreamDecoder& Tokenizer::StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string Tokenizer::StreamDecoder::Add(std::int32_t id) {
  std::string text;
  if (const auto token = state_->tokenizer->DecoderText(id, state_->skip_special_tokens)) {
    state_->decoder.Add(*token, &text);
  }
  return text;
}

std::string Tokenizer::StreamDecoder::Finish() {
  std::string text;
  state_->decoder.Finish(&text);
  return text;
}

std::optional<std::int32_t> Tokenizer::bos_id() const { return impl_->roles.bos; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return impl_->roles.eos; }
std::optional<std::int32_t> Tokenizer::pad_id() const { return impl_->roles.pad; }
std::optional<std::int32_t> Tokenizer::unk_id() const { return impl_->roles.unk; }
const std::vector<std::pair<std::string, std::int32_t>>& Tokenizer::other_roles() const {
  return impl_->roles.others;
}
const std::vector<std::int32_t>& Tokenizer::eos_ids() const { return impl_->roles.all_eos; }

// The template may add other tokens than BOS and EOS, so its ids are compared.
bool Tokenizer::adds_bos() const {
  return !impl_->post.before.empty() && impl_->roles.bos == impl_->post.before.front();
}
bool Tokenizer::adds_eos() const {
  return !impl_->post.after.empty() && impl_->roles.eos == impl_->post.after.back();
}

std::int64_t Tokenizer::vocab_size() const { return std::ssize(impl_->spec.pieces); }

std::string Tokenizer::TokenText(std::int32_t id) const {
  const bool known = id >= 0 && id < vocab_size();
  return known ? impl_->spec.pieces[id] : "";
}

std::optional<std::int32_t> Tokenizer::IdOf(std::string_view token) const {
  const std::int32_t id = impl_->ids.Find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

bool Tokenizer::IsSpecial(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[id];
}

bool Tokenizer::IsSameAs(const Tokenizer& other) const {
  const auto parts = [](const Impl& impl) {
    const TokenizerSpec& spec = impl.spec;
    return std::tie(impl.rules, spec.pieces, spec.merges, spec.added_tokens, impl.post.before,
                    impl.post.after, impl.roles, impl.special, spec.chat_templates, spec.normalizer,
                    spec.pre_tokenizer, spec.scores, spec.token_types);
  };
  return parts(*impl_) == parts(*other.impl_);
}

const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }

}  // namespace qlora
