#include "export/export_hf.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "base/file.h"
#include "base/matrix.h"
#include "convert/config_json.h"
#include "convert/joined_experts_hf.h"
#include "convert/merged_linear.h"
#include "convert/model_folder.h"
#include "convert/stored_values.h"
#include "io/bnb.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "io/fp8.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "model/tensor_list.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/chat_template_files.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

struct Linear {
  const FrozenLinear* frozen;
  const LoraLinear* lora;
};

// Linears by the name of their tensor, which holds one or those of all experts.
using LinearsByName = std::map<std::string, std::vector<Linear>>;

LinearsByName NameLinears(const DecoderConfig& config, const DecoderWeights& weights,
                          const LoraAdapter* adapter) {
  LinearsByName linears;
  const std::string prefix = DecoderPrefix(*weights.reader);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    for (const LayerTensor& row : LayerTensors(config, l)) {
      if (row.kind != TensorKind::kLinear) continue;
      const auto frozen = StackOf(weights.layers[l].linears, row);
      std::vector<const LoraLinear*> loras(frozen.size(), nullptr);
      if (adapter != nullptr) loras = StackOf(adapter->layers()[l], row);
      for (std::size_t e = 0; e < frozen.size(); ++e) {
        const std::string name =
            row.is_stacked ? row.TensorIn(prefix, l) : frozen[e]->path + ".weight";
        linears[name].push_back({frozen[e], loras[e]});
      }
    }
  }
  return linears;
}

// Returns the embeddings or the head under the name of their tensor; nullptr for other tensors.
const WeightView* TableOf(const std::string& name, const DecoderWeights& weights) {
  const TensorReader& reader = *weights.reader;
  if (name == EmbeddingName(reader)) return &weights.embed;
  if (name == HeadName(reader)) return &weights.head;
  return nullptr;
}

// True for a tensor beside the decoder, of an image encoder or such, which is copied as it is. One
// in 8 bits is not: no scales are written.
bool IsCopiedAsStored(const TensorInfo& tensor, const TensorReader& reader) {
  return !SplitDecoderName(tensor.name) && !tensor.name.ends_with("lm_head.weight") &&
         !IsDecodedFp8(reader, tensor);
}

void WriteConfig(Json config, const std::filesystem::path& out, const char* torch_dtype, bool tied,
                 std::int64_t vocab_size) {
  // Some families are tied without a key, and a multimodal model has the key twice.
  if (!tied) {
    config["tie_word_embeddings"] = false;
    if (config.contains("text_config")) config["text_config"]["tie_word_embeddings"] = false;
  }
  // An adapter may have resized the vocabulary. Without the key, families have a default.
  (config.contains("text_config") ? config["text_config"] : config)["vocab_size"] = vocab_size;
  // Otherwise transformers would look for 4-bit pieces that the new checkpoint does not have.
  config.erase("quantization_config");
  // The key was renamed in transformers 4.56; the spelling of the source is kept.
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_dtype;
  WriteTextFile(out / "config.json", FormatJson(config, 2) + "\n");
}

// A tensor of the output and what it is made of: one of the three last, or `source` alone.
struct Output {
  TensorInfo info;
  const TensorInfo* source = nullptr;  // null: a head that was tied, or joined experts
  const WeightView* table = nullptr;
  const std::vector<Linear>* linears = nullptr;
  const JoinedTensor* joined = nullptr;
};

class HfWriter {
 public:
  HfWriter(Context& context, Memory& memory, const HfModelSource& model, DType outtype)
      : context_(context),
        memory_(memory),
        weights_(model.weights),
        reader_(*model.weights.reader),
        outtype_(outtype),
        linears_(NameLinears(model.config, weights_, model.adapter)),
        experts_(
            JoinedExpertTensors(context, memory, model.config, weights_, model.adapter, outtype)),
        stored_(model.config, reader_) {
    bool has_head = false;
    for (const TensorInfo& tensor : reader_.tensors()) {
      if (IsQuantPiece(tensor.name)) continue;
      if (model.config.moe.is_joined && IsJoinedExpert(model.config, tensor.name)) continue;
      // Nothing to convert, and rows = elements / cols below would divide by 0.
      if (tensor.elements() == 0) continue;
      Add(tensor, has_head);
    }
    // Trained apart, embeddings and head are no longer one matrix.
    if (!has_head && !weights_.is_tied()) {
      const WeightView& head = weights_.head;
      outputs_.push_back(
          {.info = {"lm_head.weight", outtype, {head.rows(), head.cols()}}, .table = &head});
    }
    for (const JoinedTensor& tensor : experts_) {
      outputs_.push_back({.info = tensor.info, .joined = &tensor});
    }
  }

  std::vector<TensorInfo> Infos() const {
    std::vector<TensorInfo> infos;
    for (const Output& output : outputs_) infos.push_back(output.info);
    return infos;
  }

  // Returns remarks.
  std::string Write(const std::filesystem::path& folder, const ProgressFn& progress) {
    file_ = CreateShardedSafetensors(folder, Infos(), {}, kMaxShardBytes);
    std::int64_t done = 0;
    for (const Output& output : outputs_) {
      Write(output);
      if (output.source != nullptr) reader_.Release(*output.source);
      if (progress) progress(++done, std::ssize(outputs_));
    }
    file_->Finish();
    return outtype_ == DType::kF32 ? stored_.Note() : "";
  }

 private:
  void Add(const TensorInfo& tensor, bool& has_head) {
    const auto found = linears_.find(tensor.name);
    Output output{.info = {stored_.NameOf(tensor.name), outtype_, tensor.shape},
                  .source = &tensor,
                  .table = TableOf(tensor.name, weights_),
                  .linears = found == linears_.end() ? nullptr : &found->second};
    const bool is_head = output.table == &weights_.head;
    if (is_head && weights_.is_tied()) return;  // a tied head is not stored twice
    const bool is_of_decoder = output.linears != nullptr || output.table != nullptr;
    const bool has_values = IsFloat(tensor.dtype) || tensor.dtype.is_blocks();
    if (!is_of_decoder && (!has_values || IsCopiedAsStored(tensor, reader_))) {
      output.info = tensor;  // also an integer buffer
    } else if (output.table != nullptr) {
      has_head = has_head || is_head;
      output.info.shape = {output.table->rows(), output.table->cols()};
    } else if (output.linears != nullptr && output.linears->size() == 1) {
      const WeightView& weight = output.linears->front().frozen->weight;
      output.info.shape = {weight.rows(), weight.cols()};
    }
    outputs_.push_back(std::move(output));
  }

  // Pieces of a 4-bit weight other than the packed bytes: "....q_proj.weight.absmax".
  bool IsQuantPiece(const std::string& name) const {
    const std::string weight(BnbWeightOf(name));
    return !weight.empty() && (linears_.contains(weight) || TableOf(weight, weights_) != nullptr);
  }

  void Write(const Output& output) {
    const std::string& name = output.info.name;
    if (output.joined != nullptr) {
      output.joined->produce([&](std::span<const float> piece) { WriteValues(name, piece); });
    } else if (output.linears != nullptr) {
      for (const Linear& linear : *output.linears) WriteMerged(name, linear);
    } else if (output.table != nullptr) {
      WriteTable(name, *output.table);
    } else if (output.info.dtype == output.source->dtype && !stored_.Changes(output.source->name)) {
      // The same type: the bytes themselves, without a way through float32.
      file_->Write(reader_.Bytes(*output.source));
    } else {
      WriteDecoded(name, *output.source);
    }
  }

  // visit(first, count) for pieces of rows.
  template <typename Visit>
  static void ForPieces(std::int64_t rows, std::int64_t cols, Visit&& visit) {
    const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / cols);
    for (std::int64_t first = 0; first < rows; first += piece) {
      visit(first, std::min(piece, rows - first));
    }
  }

  // Rows in the order of the checkpoint, with the adapter.
  void WriteMerged(const std::string& name, const Linear& linear) {
    const MergedLinear merged(memory_, linear.frozen->weight, linear.lora);
    const std::int64_t cols = merged.cols();
    ForPieces(linear.frozen->weight.rows(), cols, [&](std::int64_t first, std::int64_t count) {
      std::vector<std::int64_t> order(count);
      std::iota(order.begin(), order.end(), first);
      values_.resize(count * cols);
      merged.Read(context_, order, values_.data());
      WriteValues(name, values_);
    });
  }

  void WriteTable(const std::string& name, const WeightView& table) {
    const std::int64_t cols = table.cols();
    ForPieces(table.rows(), cols, [&](std::int64_t first, std::int64_t count) {
      values_.resize(count * cols);
      const HostWeight host(memory_, table, first, count);
      for (std::int64_t r = 0; r < count; ++r) host.Read(r, values_.data() + r * cols);
      WriteValues(name, values_);
    });
  }

  void WriteDecoded(const std::string& name, const TensorInfo& source) {
    const std::int64_t cols = source.shape.empty() ? 1 : source.shape.back();
    ForPieces(source.elements() / cols, cols, [&](std::int64_t first, std::int64_t count) {
      values_.resize(count * cols);
      DecodeFloats(source.dtype,
                   reader_.Bytes(source).subspan(BytesOf(source.dtype, first * cols),
                                                 BytesOf(source.dtype, count * cols)),
                   values_);
      stored_.Apply(source.name, values_);
      WriteValues(name, values_);
    });
  }

  void WriteValues(const std::string& name, std::span<const float> values) {
    bytes_.resize(BytesOf(outtype_, values.size()));
    const std::int64_t bad = EncodeFloats(outtype_, values, bytes_);
    if (bad >= 0) {
      ThrowInvalidInput("tensor '{}': the value {} does not fit into {}; use f32 or bf16", name,
                        values[bad], NameOf(outtype_));
    }
    file_->Write(bytes_);
  }

  Context& context_;
  Memory& memory_;
  const DecoderWeights& weights_;
  const TensorReader& reader_;
  DType outtype_;
  LinearsByName linears_;
  std::vector<JoinedTensor> experts_;
  StoredValues stored_;
  std::vector<Output> outputs_;
  std::unique_ptr<TensorWriter> file_;
  std::vector<float> values_;     // of a piece
  std::vector<std::byte> bytes_;  // of the same piece
};

// The chat template of an adapter that takes the place of the model's; "" where there is none.
std::string TemplateOfAdapter(const std::filesystem::path& model,
                              const std::filesystem::path& adapter, bool is_gguf) {
  const std::filesystem::path kept = adapter / kChatTemplateFile;
  if (Exists(kept)) return ReadTextFile(kept);
  if (!is_gguf && !Exists(model / kChatTemplateFile)) return "";
  // The template of the adapter may be in its tokenizer_config.json, over which a file wins.
  const Tokenizer tokenizer = Tokenizer::Load(model, adapter);
  const auto& templates = tokenizer.spec().chat_templates;
  // Of a GGUF file, the file's own are written in any case, all of them.
  const bool is_own = is_gguf && templates == Tokenizer::Load(model).spec().chat_templates;
  return templates.empty() || is_own ? "" : templates.front().text;
}

}  // namespace

MergedPrompts FindPrompts(const std::filesystem::path& model, const std::filesystem::path& adapter,
                          const DecisionSource* decision) {
  const bool is_gguf = FindGguf(model).has_value();
  MergedPrompts prompts;
  if (!adapter.empty()) {
    prompts.chat_template = TemplateOfAdapter(model, adapter, is_gguf);
    const auto base = LoadBaseRecord(adapter);
    prompts.record = base ? base->prompts : PromptRecord{};
    // Beside a GGUF file, a tokenizer of an adapter counts as a whole.
    if (!is_gguf || Exists(adapter / "tokenizer.json")) prompts.tokenizer_dir = adapter;
  } else if (is_gguf && HoldsMergedWeights(model)) {
    // The file has no other record of an adapter that was merged into it.
    prompts.record.emplace();
  }
  if (decision == nullptr) return prompts;
  prompts.decision = decision->file;
  if (prompts.decision->labels.empty()) {
    const Tokenizer tokenizer = Tokenizer::Load(model, adapter, TemplateUse::kShow);
    prompts.decision->labels = DecisionTokenizer(tokenizer).LabelTexts();
  }
  return prompts;
}

std::vector<std::string> ExportHf(Context& context, Memory& memory, const HfModelSource& model,
                                  const ExportTarget& target, const ProgressFn& progress,
                                  std::vector<std::string>& notes) {
  const DecoderWeights& weights = model.weights;
  // Blocks are a format of GGUF; safetensors has no such type.
  if (target.outtype.is_blocks()) ThrowInvalidInput("--format hf writes f32, f16 or bf16");
  const DType outtype = target.outtype;
  HfWriter writer(context, memory, model, outtype);
  NewModelFolder dir(target.path, target.mode);
  notes.push_back(writer.Write(dir.path(), progress));
  Json config = model.config_json;
  notes.push_back(DropUnwrittenMtp(writer.Infos(), model.config, config));
  WriteConfig(std::move(config), dir.path(), TorchDtypeOf(outtype, model.config), weights.is_tied(),
              weights.embed.rows());
  notes.push_back(dir.CopyCompanions(model.folder));
  std::erase(notes, "");
  const MergedPrompts& prompts = model.prompts;
  if (!prompts.tokenizer_dir.empty()) {
    CopyTokenizerFiles(model.folder, prompts.tokenizer_dir, dir.path());
  }
  if (!prompts.chat_template.empty()) {
    WriteTextFile(dir.path() / kChatTemplateFile, prompts.chat_template);
  }
  // The record of an adapter that was merged earlier does not apply to the prompts of this adapter.
  if (model.adapter != nullptr) RemoveFile(dir.path() / kPromptRecord);
  if (prompts.record) SavePromptRecord(dir.path(), *prompts.record);
  RemoveFile(dir.path() / kDecisionFile);
  if (prompts.decision) WriteDecisionFile(dir.path(), *prompts.decision);
  return dir.Commit();
}

}  // namespace qlora
