// The public facade: a model that generates and is evaluated.
#include "qlora/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "model/base_form.h"
#include "model/decoder.h"
#include "model/evaluate.h"
#include "model/hub.h"
#include "model/sampler.h"
#include "model/setup.h"
#include "text/dataset.h"
#include "text/tokenizer.h"

namespace qlora {
namespace {

// Rows of one pass over a prompt: enough for full speed, few enough for little memory.
constexpr std::int64_t kPrefillRows = 512;

BaseForm FormOf(const ModelOptions& options) {
  if (options.load_in_4bit == "auto" && !options.adapter.empty()) {
    if (const std::optional<BaseForm> form = LoadBaseForm(options.adapter)) return *form;
  }
  return {options.model_name_or_path, options.load_in_4bit != "false", options.quantization};
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

class Model::Impl {
 public:
  Impl(Context& context, const ModelOptions& options,
       const std::function<void(std::int64_t, std::int64_t)>& progress)
      : dir_(ResolveModelDir(options.model_name_or_path)),
        context_(context),
        config_(LoadDecoderConfig(dir_)),
        tokenizer_(Tokenizer::Load(dir_)),
        precision_(ParsePrecision(options.compute_dtype)) {
    if (!options.adapter.empty()) adapter_ = LoraAdapter::Load(options.adapter, config_);
    const BaseForm form = FormOf(options);
    LoadOptions load;
    load.load_in_4bit = form.load_in_4bit;
    load.quantize = ParseQuantizeOptions(form.quantization);
    load.progress = progress;
    weights_ = LoadWeights(context, dir_, config_, load);
    backend_ = MakeCpuBackend(context, precision_.activation);
  }

  GenerateReport Generate(std::string_view prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view)>& on_text,
                          bool add_special_tokens) {
    std::vector<std::int32_t> ids = tokenizer_.Encode(prompt, add_special_tokens);
    if (ids.empty() && tokenizer_.bos_id()) ids = {*tokenizer_.bos_id()};
    CheckPrompt(ids, options);
    const auto prompt_rows = static_cast<std::int64_t>(ids.size());
    const std::int64_t capacity = std::min(prompt_rows + options.max_new_tokens,
                                           std::max(config_.max_position_embeddings, prompt_rows));

    const Decoder decoder(*backend_, config_, weights_, adapter(), precision_, capacity);
    const Arena arena = Reserve(std::min(prompt_rows, kPrefillRows));
    EvalMemory memory(decoder, arena);
    CacheMemory cache(decoder, capacity);
    Sampler sampler(options);
    Tokenizer::StreamDecoder stream(tokenizer_, true, ids);
    GenerateReport report;
    report.prompt_tokens = prompt_rows;

    auto start = std::chrono::steady_clock::now();
    MatrixView logits;
    for (std::int64_t begin = 0; begin < prompt_rows; begin += kPrefillRows) {
      const std::int64_t rows = std::min(kPrefillRows, prompt_rows - begin);
      logits = NextLogits(
          decoder, memory, cache.cache(),
          std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)));
    }
    report.prefill_seconds = SecondsSince(start);

    start = std::chrono::steady_clock::now();
    bool wanted = true;
    const auto emit = [&](const std::string& piece) {
      report.text += piece;
      if (!piece.empty() && on_text) wanted = on_text(piece);
    };
    while (wanted && report.new_tokens < capacity - prompt_rows) {
      const std::span<const float> row(logits.Row<float>(0), static_cast<std::size_t>(logits.cols));
      const std::int32_t token = sampler.Next(row, report.new_tokens);
      ++report.new_tokens;
      if (IsEnd(token)) {
        report.stopped_at_eos = true;
        break;
      }
      emit(stream.Add(token));
      if (wanted && report.new_tokens < capacity - prompt_rows) {
        logits = NextLogits(decoder, memory, cache.cache(), {&token, 1});
      }
    }
    emit(stream.Finish());
    report.decode_seconds = SecondsSince(start);
    return report;
  }

  EvalResult Evaluate(const EvalOptions& options) {
    DataOptions data;
    for (const std::string& path : options.dataset) {
      data.sources.push_back(ParseDataSource(path, ParseRowFormat(options.dataset_format)));
    }
    data.max_length = options.max_length;
    data.over_long = OverLong::kTruncate;
    data.train_on_inputs = options.train_on_inputs;
    data.vocab_size = config_.vocab_size;
    const Dataset dataset = Dataset::Open(data, tokenizer_, nullptr, &context_);
    const Decoder decoder(*backend_, config_, weights_, adapter(), precision_, options.max_length);
    const Arena arena = Reserve(EvalRows(dataset));
    return EvaluateDataset(decoder, dataset, options.per_token, arena);
  }

  std::size_t weight_bytes() const { return weights_.sizes.owned + weights_.sizes.mapped; }

 private:
  LoraAdapter* adapter() { return adapter_ ? &*adapter_ : nullptr; }

  // Memory and workspace for passes of at most `rows` rows.
  Arena Reserve(std::int64_t rows) {
    backend_->Reserve(LimitsOf(config_, adapter(), rows, HeadChunkRows(config_, rows)));
    return Arena(EvalMemory::Bytes(config_, adapter(), precision_, rows));
  }

  bool IsEnd(std::int32_t token) const {
    const std::vector<std::int32_t>& ends = tokenizer_.eos_ids();
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  void CheckPrompt(const std::vector<std::int32_t>& ids, const GenerateOptions& options) const {
    if (ids.empty()) ThrowInvalidInput("the prompt is empty and this model has no BOS token");
    if (options.max_new_tokens < 1) {
      ThrowInvalidInput("max_new_tokens must be positive, found {}", options.max_new_tokens);
    }
    const auto rows = static_cast<std::int64_t>(ids.size());
    if (rows >= config_.max_position_embeddings) {
      ThrowInvalidInput("the prompt has {} tokens; this model reads at most {}", rows,
                        config_.max_position_embeddings);
    }
    for (const std::int32_t id : ids) {
      if (id >= config_.vocab_size) {
        ThrowInvalidInput("token id {} ('{}') lies beyond the model's vocabulary of {}", id,
                          tokenizer_.TokenText(id), config_.vocab_size);
      }
    }
  }

  // Appends ids to the cache; the logits (1, V) of the last of them, softcapped.
  MatrixView NextLogits(const Decoder& decoder, EvalMemory& memory, KvCache& cache,
                        std::span<const std::int32_t> ids) const {
    const auto rows = static_cast<std::int64_t>(ids.size());
    Activations& activations = memory.ForRows(rows);
    decoder.ForwardCached(ids, cache, activations);
    const auto last = static_cast<std::int32_t>(rows - 1);
    const MatrixView logits = decoder.Logits({&last, 1}, activations);
    if (const float cap = config_.final_softcap; cap > 0) {
      float* row = logits.Row<float>(0);
      for (std::int64_t i = 0; i < logits.cols; ++i) row[i] = cap * std::tanh(row[i] / cap);
    }
    return logits;
  }

  std::filesystem::path dir_;
  Context& context_;
  DecoderConfig config_;
  Tokenizer tokenizer_;
  Precision precision_;
  std::optional<LoraAdapter> adapter_;
  DecoderWeights weights_;
  std::unique_ptr<Backend> backend_;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&& other) noexcept = default;
Model& Model::operator=(Model&& other) noexcept = default;

Model Model::Load(Context& context, const ModelOptions& options,
                  const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  return Model(std::make_unique<Impl>(context, options, progress));
}

GenerateReport Model::Generate(std::string_view prompt, const GenerateOptions& options,
                               const std::function<bool(std::string_view piece)>& on_text,
                               bool add_special_tokens) {
  return impl_->Generate(prompt, options, on_text, add_special_tokens);
}

EvalResult Model::Evaluate(const EvalOptions& options) { return impl_->Evaluate(options); }

std::size_t Model::weight_bytes() const { return impl_->weight_bytes(); }

}  // namespace qlora
