// The writing half of peft.h.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/matrix.h"
#include "io/float_encoding.h"
#include "io/peft/peft.h"
#include "io/safetensors_writer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// PeftModel holds LoraModel as base_model, which holds the base as model.
constexpr std::string_view kPrefix = "base_model.model.";

// `stored` is `config` as a reader will see it: there, overlapping patterns are in sorted order.
void CheckWeights(const AdapterWeights& module, const AdapterConfig& config,
                  const AdapterConfig& stored, const std::string& where) {
  const std::string place = fmt::format("{}: module '{}'", where, module.path);
  const std::int64_t r = module.experts * RankOf(stored, module.path);
  if (!IsTargetModule(stored, module.path)) {
    ThrowInvalidInput("{}: target_modules do not name it", place);
  }
  // The first pattern that matches decides, and JSON objects are written in sorted order.
  if (ScaleOf(stored, module.path) != ScaleOf(config, module.path)) {
    ThrowInvalidInput(
        "{}: several entries of rank_pattern or alpha_pattern match it, and sorted "
        "they would mean another scale",
        place);
  }
  if (module.a.empty() || module.b.empty() || module.a.rows != r || module.b.cols != r) {
    ThrowInvalidInput("{}: expected A ({}, in) and B (out, {}), found ({}, {}) and ({}, {})", place,
                      r, r, module.a.rows, module.a.cols, module.b.rows, module.b.cols);
  }
  if (config.use_dora == module.magnitude.empty() ||
      (config.use_dora && module.magnitude.cols != module.b.rows)) {
    ThrowInvalidInput("{}: with use_dora = {} expected a magnitude of {} values, found {}", place,
                      config.use_dora, config.use_dora ? module.b.rows : 0, module.magnitude.cols);
  }
}

// Writes a matrix row by row as `dtype`.
void WriteMatrix(TensorWriter& writer, Memory& memory, const ConstMatrixView& m, DType dtype,
                 const std::string& name) {
  std::vector<float> values(m.cols);
  std::vector<std::byte> bytes(BytesOf(dtype, values.size()));
  const std::size_t row_bytes = BytesOf(m.dtype, values.size());
  // Adapters may be in the memory of a device: some MiB per transfer, not a row.
  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceValues / m.stride);
  for (std::int64_t begin = 0; begin < m.rows; begin += piece_rows) {
    const std::int64_t rows = std::min(piece_rows, m.rows - begin);
    const HostBytes piece(memory, Rows(m, begin, rows).data,
                          BytesOf(m.dtype, (rows - 1) * m.stride + m.cols));
    for (std::int64_t row = 0; row < rows; ++row) {
      DecodeFloats(m.dtype, {piece.data() + BytesOf(m.dtype, row * m.stride), row_bytes}, values);
      // A NaN of a run that diverged is refused here, or it would be found by whoever loads the
      // adapter.
      const std::int64_t bad = EncodeFloats(dtype, values, bytes);
      if (bad >= 0) {
        ThrowRuntime("tensor '{}': value {} of row {} is {}, which cannot be stored as {}", name,
                     bad, begin + row, values[bad], NameOf(dtype));
      }
      writer.Write(bytes);
    }
  }
}

}  // namespace

void CommitAdapter(TensorWriter& writer, const fs::path& directory, const std::string& text) {
  const fs::path config_path = directory / kAdapterConfig;
  AtomicFile config_file(config_path);
  config_file.Write(text);
  // Between the two renames there must be no old configuration next to new weights.
  if (Exists(config_path) && ReadTextFile(config_path) != text) RemoveFile(config_path);
  writer.Finish();
  config_file.Commit();
}

void WriteAdapter(const fs::path& directory, const AdapterConfig& config,
                  std::span<const AdapterWeights> weights, DType dtype,
                  std::span<const ReplacedMatrix> replaced, Memory& memory) {
  const std::string where = directory.string();
  if (weights.empty()) ThrowInvalidInput("{}: an adapter needs at least one module", where);
  // A name without a weight would make PEFT keep the base's own, silently.
  if (config.modules_to_save.size() != replaced.size()) {
    ThrowInvalidInput("{}: modules_to_save names {} modules, but {} weights are given", where,
                      config.modules_to_save.size(), replaced.size());
  }
  AdapterConfig written = config;
  StringMap metadata;
  if (!config.target_parameters.empty() && config.lora_dropout > 0) {
    written.lora_dropout = 0;
    metadata[kPeftDropout] = fmt::format("{}", config.lora_dropout);
  }
  const std::string text = FormatAdapterConfig(written);
  std::vector<std::string> unknown_keys;
  // Reads the text back: an adapter that this program could not load is refused now.
  AdapterConfig stored = ParseAdapterConfig(text, where, unknown_keys);
  stored.module_prefix = config.module_prefix;
  stored.embedding = config.embedding;
  struct Item {
    std::string name;
    ConstMatrixView matrix;
  };
  std::vector<Item> items;
  std::vector<TensorInfo> infos;
  for (const AdapterWeights& module : weights) {
    CheckWeights(module, config, stored, where);
    const std::string& path = module.wrapper.empty() ? module.path : module.wrapper;
    const std::string prefix = std::string(kPrefix) + SpelledPath(config, path);
    const bool embeds = module.path == kEmbeddingPath;
    items.push_back({prefix + (embeds ? ".lora_embedding_A" : ".lora_A.weight"), module.a});
    items.push_back({prefix + (embeds ? ".lora_embedding_B" : ".lora_B.weight"), module.b});
    if (config.use_dora) items.push_back({prefix + ".lora_magnitude_vector", module.magnitude});
  }
  for (const ReplacedMatrix& matrix : replaced) {
    // "lm_head.weight": a path and ".weight".
    const std::string path = matrix.name.substr(0, matrix.name.rfind('.'));
    items.push_back({std::string(kPrefix) + SpelledPath(config, path) + ".weight", matrix.weight});
  }
  for (const Item& item : items) {
    // All are declared before the first byte, since the header of the file states their places.
    infos.push_back({item.name, dtype, {item.matrix.rows, item.matrix.cols}});
    if (item.name.ends_with("_vector")) infos.back().shape = {item.matrix.cols};
  }

  MakeDirectories(directory);
  const auto writer = CreateSafetensors(directory / kPeftWeights, std::move(infos), metadata);
  for (const Item& item : items) WriteMatrix(*writer, memory, item.matrix, dtype, item.name);
  CommitAdapter(*writer, directory, text);
}

}  // namespace qlora
