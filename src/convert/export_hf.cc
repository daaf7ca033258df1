#include "convert/export_hf.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/file.h"
#include "base/matrix.h"
#include "convert/config_json.h"
#include "convert/joined_experts_hf.h"
#include "convert/merged_linear.h"
#include "convert/model_folder.h"
#include "io/bnb.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "io/fp8.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/checkpoint.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

struct Linear {
  const FrozenLinear* frozen;
  const LoraLinear* lora;
};

// Returns the linears by the name of their weight.
std::map<std::string, Linear> LinearsByName(const DecoderWeights& weights,
                                            const LoraAdapter* adapter) {
  std::map<std::string, Linear> linears;
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const PerLinear<FrozenLinear>& frozen = weights.layers[l].linears;
    if (adapter == nullptr) {
      frozen.ForEach([&](const FrozenLinear& f) { linears[f.path + ".weight"] = {&f, nullptr}; });
      continue;
    }
    Combine(frozen, adapter->layers()[l], [&](const FrozenLinear& f, const LoraLinear& lora) {
      // Combine relies on the same order of linears in both.
      linears[f.path + ".weight"] = {&f, &lora};
      return 0;
    });
  }
  return linears;
}

// Returns experts that share a tensor, by its name.
std::map<std::string, std::vector<Linear>> StacksByName(const DecoderWeights& weights,
                                                        const LoraAdapter* adapter) {
  std::map<std::string, std::vector<Linear>> stacks;
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    for (const LinearGroup group : {LinearGroup::kSideIn, LinearGroup::kSideOut}) {
      const auto frozen = GroupOf(weights.layers[l].linears, group);
      if (frozen.empty()) continue;
      // "....experts.0.down_proj"
      const std::string& first = frozen.front().path;
      const std::size_t dot = first.rfind('.');
      std::vector<Linear>& stack =
          stacks[first.substr(0, first.rfind('.', dot - 1)) + first.substr(dot)];
      for (std::size_t e = 0; e < frozen.size(); ++e) {
        const LoraLinear* lora =
            adapter == nullptr ? nullptr : &GroupOf(adapter->layers()[l], group)[e];
        stack.push_back({&frozen[e], lora});
      }
    }
  }
  return stacks;
}

// Returns the embeddings or the head under the name of their tensor; nullptr for other tensors.
const WeightView* TableOf(const std::string& name, const DecoderWeights& weights) {
  const TensorReader& reader = *weights.reader;
  if (name == DecoderPrefix(reader) + "embed_tokens.weight") return &weights.embed;
  if (name == HeadName(reader)) return &weights.head;
  return nullptr;
}

// Pieces of a 4-bit weight other than the packed bytes: "....q_proj.weight.absmax".
bool IsQuantPiece(const std::string& name, const std::map<std::string, Linear>& linears,
                  const DecoderWeights& weights) {
  const std::string weight(BnbWeightOf(name));
  return !weight.empty() && (linears.count(weight) > 0 || TableOf(weight, weights) != nullptr);
}

// True for a tensor beside the decoder, of an image encoder or such, which is copied as it is. One
// in 8 bits is not: no scales are written.
bool IsCopiedAsStored(const TensorInfo& tensor, const TensorReader& reader) {
  return !SplitDecoderName(tensor.name) && !tensor.name.ends_with("lm_head.weight") &&
         !IsDecodedFp8(reader, tensor);
}

class Writer {
 public:
  Writer(TensorWriter& writer, DType outtype) : writer_(writer), outtype_(outtype) {}

  void Write(const std::string& name, std::span<const float> values) {
    bytes_.resize(BytesOf(outtype_, values.size()));
    const std::int64_t bad = EncodeFloats(outtype_, values, bytes_);
    if (bad >= 0) {
      ThrowInvalidInput("tensor '{}': the value {} does not fit into {}; use f32 or bf16", name,
                        values[bad], NameOf(outtype_));
    }
    writer_.Write(bytes_);
  }

 private:
  TensorWriter& writer_;
  DType outtype_;
  std::vector<std::byte> bytes_;
};

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

}  // namespace

std::vector<std::string> ExportHf(Context& context, Memory& memory, const HfModelSource& model,
                                  const ExportTarget& target, const ProgressFn& progress,
                                  std::vector<std::string>& notes) {
  const DecoderWeights& weights = model.weights;
  const DType outtype = target.outtype;
  // Blocks are a format of GGUF; safetensors has no such type.
  if (target.outtype.is_blocks()) ThrowInvalidInput("--format hf writes f32, f16 or bf16");
  const std::map<std::string, Linear> linears = LinearsByName(weights, model.adapter);
  const auto stacks = StacksByName(weights, model.adapter);
  const TensorReader& reader = *weights.reader;
  std::vector<TensorInfo> infos;
  bool has_head = false;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (IsQuantPiece(tensor.name, linears, weights)) continue;
    if (model.config.moe.is_joined && IsJoinedExpert(model.config, tensor.name)) continue;
    // Nothing to convert, and rows = elements / cols below would divide by 0.
    if (tensor.elements() == 0) continue;
    const WeightView* table = TableOf(tensor.name, weights);
    const bool is_head = table == &weights.head;
    if (is_head && weights.is_tied()) continue;  // a tied head is not stored twice
    const bool is_of_decoder = linears.count(tensor.name) > 0 || table != nullptr;
    const bool has_values = IsFloat(tensor.dtype) || tensor.dtype.is_blocks();
    if (!is_of_decoder && (!has_values || IsCopiedAsStored(tensor, reader))) {
      infos.push_back(tensor);  // also an integer buffer
      continue;
    }
    has_head = has_head || is_head;
    TensorInfo info{tensor.name, outtype, tensor.shape};
    if (const auto it = linears.find(tensor.name); it != linears.end()) {
      info.shape = {it->second.frozen->weight.rows(), it->second.frozen->weight.cols()};
    }
    if (table != nullptr) info.shape = {table->rows(), table->cols()};
    infos.push_back(std::move(info));
  }
  // Trained apart, embeddings and head are no longer one matrix.
  if (!has_head && !weights.is_tied()) {
    infos.push_back({"lm_head.weight", outtype, {weights.head.rows(), weights.head.cols()}});
  }

  const std::vector<JoinedTensor> experts =
      JoinedExpertTensors(context, memory, model.config, weights, model.adapter, outtype);
  for (const JoinedTensor& tensor : experts) infos.push_back(tensor.info);

  NewModelFolder dir(target.path, target.mode);
  const std::unique_ptr<TensorWriter> file =
      CreateShardedSafetensors(dir.path(), infos, {}, kMaxShardBytes);
  Writer writer(*file, outtype);
  std::vector<float> values;
  std::int64_t done = 0;
  for (const TensorInfo& info : infos) {
    const TensorInfo* source = reader.Find(info.name);  // nullptr: a head that was tied
    const WeightView* table = TableOf(info.name, weights);
    const std::int64_t cols = info.shape.empty() ? 1 : info.shape.back();
    const std::int64_t rows = info.elements() / cols;
    const std::int64_t chunk = std::max<std::int64_t>(1, kPieceValues / cols);
    const auto linear = linears.find(info.name);
    const auto finish_tensor = [&] {
      if (source != nullptr) reader.Release(*source);
      if (progress) progress(++done, static_cast<std::int64_t>(infos.size()));
    };
    if (const auto joined = std::ranges::find(
            experts, info.name, [](const JoinedTensor& tensor) { return tensor.info.name; });
        joined != experts.end()) {
      joined->produce([&](std::span<const float> piece) { writer.Write(info.name, piece); });
      finish_tensor();
      continue;
    }
    const bool is_less_one = IsStoredLessOne(info.name, model.config);
    const auto write_rows = [&](const WeightView& view) {
      for (std::int64_t first = 0; first < view.rows(); first += chunk) {
        const std::int64_t count = std::min(chunk, view.rows() - first);
        values.resize(count * cols);
        const HostWeight host(memory, view, first, count);
        for (std::int64_t r = 0; r < count; ++r) host.Read(r, values.data() + r * cols);
        writer.Write(info.name, values);
      }
    };
    // Rows in the order of the checkpoint, with the adapter.
    const auto write_merged = [&](const Linear& one, std::int64_t height) {
      const MergedLinear merged(memory, one.frozen->weight, one.lora);
      for (std::int64_t first = 0; first < height; first += chunk) {
        std::vector<std::int64_t> order(std::min(chunk, height - first));
        std::iota(order.begin(), order.end(), first);
        values.resize(std::ssize(order) * cols);
        merged.Read(context, order, values.data());
        writer.Write(info.name, values);
      }
    };
    if (const auto stack = stacks.find(info.name); stack != stacks.end()) {
      for (const Linear& expert : stack->second) {
        write_merged(expert, expert.frozen->weight.rows());
      }
      finish_tensor();
      continue;
    }
    if (table != nullptr) {
      write_rows(*table);
      finish_tensor();
      continue;
    }
    // The same type: the bytes themselves, without a way through float32.
    if (linear == linears.end() && info.dtype == source->dtype && !is_less_one) {
      file->Write(reader.Bytes(*source));
      finish_tensor();
      continue;
    }
    if (linear != linears.end()) {
      write_merged(linear->second, rows);
      finish_tensor();
      continue;
    }
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first);
      values.resize(count * cols);
      DecodeFloats(source->dtype,
                   reader.Bytes(*source).subspan(BytesOf(source->dtype, first * cols),
                                                 BytesOf(source->dtype, count * cols)),
                   values);
      for (float& value : values) value -= is_less_one ? 1.0F : 0.0F;
      writer.Write(info.name, values);
    }
    finish_tensor();
  }
  file->Finish();
  WriteConfig(model.config_json, dir.path(), TorchDtypeOf(outtype, model.config), weights.is_tied(),
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
  return dir.Commit();
}

}  // namespace qlora
