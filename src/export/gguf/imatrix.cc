#include "export/gguf/imatrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "convert/calibration.h"
#include "export/gguf/gguf_metadata.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "io/float_encoding.h"
#include "io/gguf_path.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

constexpr std::string_view kSums = ".in_sum2";
constexpr std::string_view kCounts = ".counts";
constexpr const char* kType = "imatrix";

std::span<const std::byte> BytesOf(std::span<const float> values) { return std::as_bytes(values); }

// Errors: InvalidInput.
void CheckValues(const ImportanceMatrix::Entry& entry, const std::string& name,
                 const std::string& where) {
  for (const float value : entry.mean_squares) {
    // Negated, so that NaN is refused too.
    if (!(value >= 0 && std::isfinite(value))) {
      ThrowInvalidInput(
          "{}: '{}' has the value {}, where mean squares are expected; make the file once more",
          where, name, value);
    }
  }
}

void CheckCounts(const std::vector<float>& counts, const std::string& name,
                 const std::string& where) {
  for (const float count : counts) {
    if (count >= 0 && std::isfinite(count)) continue;
    ThrowInvalidInput(
        "{}: '{}' has the count {}, where numbers of tokens are expected; make the "
        "file once more",
        where, name, count);
  }
}

std::string FileName(const std::string& path) {
  // The folders of the machine that made the file are nobody's business; it may be of Windows.
  return path.substr(path.find_last_of("/\\") + 1);
}

// Reads the numbers and texts of the older layout.
class DatReader {
 public:
  explicit DatReader(const std::filesystem::path& path)
      : file_(path), rest_(file_.bytes()), where_(path.string()) {}

  bool empty() const { return rest_.empty(); }

  std::int32_t Int() {
    std::int32_t value;
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    return value;
  }

  // A count, which cannot be negative.
  std::size_t Count() {
    const std::int32_t count = Int();
    if (count < 0) ThrowDamaged();
    return static_cast<std::size_t>(count);
  }

  std::string Text() {
    const std::span<const std::byte> bytes = Take(Count());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::vector<float> Floats() {
    const std::size_t count = Count();
    const std::span<const std::byte> bytes = Take(count * sizeof(float));
    std::vector<float> values(count);
    // A pointer of an empty vector may be null, which memcpy does not take.
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  [[noreturn]] void ThrowDamaged() const {
    ThrowInvalidInput(
        "{}: ends before its entries do; an importance matrix of llama.cpp is expected", where_);
  }

  std::span<const std::byte> Take(std::size_t count) {
    if (count > rest_.size()) ThrowDamaged();
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  MappedFile file_;
  std::span<const std::byte> rest_;
  std::string where_;
};

ImportanceMatrix ReadDat(const std::filesystem::path& path) {
  DatReader reader(path);
  ImportanceMatrix matrix;
  for (std::size_t entries = reader.Count(); entries > 0; --entries) {
    const std::string name = reader.Text();
    const std::int32_t calls = reader.Int();
    ImportanceMatrix::Entry entry{.mean_squares = reader.Floats(), .counts = {1}};
    if (calls > 0) {
      for (float& value : entry.mean_squares) value /= static_cast<float>(calls);
    }
    CheckValues(entry, name, path.string());
    matrix.entries[name] = std::move(entry);
  }
  // Files of older tools end here.
  if (reader.empty()) return matrix;
  matrix.chunks = reader.Int();
  matrix.dataset = FileName(reader.Text());
  return matrix;
}

std::vector<float> Floats(const GgufReader& reader, const TensorInfo& tensor) {
  std::vector<float> values(tensor.elements());
  DecodeFloats(tensor.dtype, reader.Bytes(tensor), values);
  return values;
}

ImportanceMatrix ReadGguf(const std::filesystem::path& path) {
  const std::unique_ptr<GgufReader> reader = OpenGguf(path);
  const auto* type = reader->Get<std::string>(kGgufType);
  if (type == nullptr || *type != kType) {
    ThrowInvalidInput(
        "{}: general.type is '{}', where '{}' is expected; this is no importance "
        "matrix",
        path.string(), type == nullptr ? "" : *type, kType);
  }
  ImportanceMatrix matrix;
  const auto number = [&](const char* key, std::int64_t otherwise) -> std::int64_t {
    const auto* value = reader->Get<std::uint32_t>(key);
    return value == nullptr ? otherwise : *value;
  };
  matrix.chunks = number("imatrix.chunk_count", 0);
  matrix.chunk_size = number("imatrix.chunk_size", 512);
  const auto* datasets = reader->Get<std::vector<std::string>>("imatrix.datasets");
  if (datasets != nullptr && !datasets->empty()) matrix.dataset = FileName(datasets->front());
  for (const TensorInfo& tensor : reader->tensors()) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSums.size());
    const TensorInfo* counts = reader->Find(name + std::string(kCounts));
    if (counts == nullptr || counts->elements() == 0 ||
        tensor.elements() % counts->elements() != 0) {
      ThrowInvalidInput("{}: '{}' has no counts for its {} values", path.string(), name,
                        tensor.elements());
    }
    ImportanceMatrix::Entry entry{Floats(*reader, tensor), Floats(*reader, *counts)};
    CheckCounts(entry.counts, name, path.string());
    const std::size_t columns = entry.mean_squares.size() / entry.counts.size();
    // Of a matrix that no token met nothing is known: its columns count alike beside other experts,
    // and alone it has no data.
    const bool has_data = std::ranges::any_of(entry.counts, [](float count) { return count > 0; });
    for (std::size_t i = 0; i < entry.mean_squares.size(); ++i) {
      const float count = entry.counts[i / columns];
      entry.mean_squares[i] = count > 0 ? entry.mean_squares[i] / count : has_data ? 1.0F : 0.0F;
    }
    CheckValues(entry, name, path.string());
    matrix.entries[name] = std::move(entry);
  }
  return matrix;
}

std::string FirstBytes(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes =
      file.bytes().first(std::min<std::size_t>(8, file.bytes().size()));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

const std::vector<float>* ImportanceMatrix::Find(const std::string& name) const {
  const auto found = entries.find(name);
  if (found == entries.end()) return nullptr;
  const std::vector<float>& values = found->second.mean_squares;
  const bool has_data = std::ranges::any_of(values, [](float value) { return value > 0; });
  return has_data ? &values : nullptr;
}

bool IsImatrixFile(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const std::string begin = FirstBytes(path);
  if (begin.starts_with("GGUF") || path.extension() == ".dat") return true;
  // A number of entries and the length of a name have zero bytes; a text or a compressed file
  // does not begin with them.
  return begin.size() == 8 && begin.substr(2, 2) == std::string(2, '\0') &&
         begin.substr(6, 2) == std::string(2, '\0');
}

ImportanceMatrix ReadImatrix(const std::filesystem::path& path) {
  return HasGgufMagic(path) ? ReadGguf(path) : ReadDat(path);
}

void WriteImatrix(const ImportanceMatrix& matrix, const std::filesystem::path& path,
                  OpenMode mode) {
  GgufMetadata metadata;
  metadata.Add(kGgufType, std::string(kType));
  metadata.Add("imatrix.datasets", GgufArray(std::vector<std::string>{matrix.dataset}));
  metadata.Add("imatrix.chunk_count", static_cast<std::uint32_t>(matrix.chunks));
  metadata.Add("imatrix.chunk_size", static_cast<std::uint32_t>(matrix.chunk_size));
  std::vector<TensorInfo> infos;
  for (const auto& [name, entry] : matrix.entries) {
    const std::int64_t matrices = std::ssize(entry.counts);
    const std::int64_t columns = std::ssize(entry.mean_squares) / matrices;
    infos.push_back({name + std::string(kSums), DType::kF32, {matrices, columns}});
    infos.push_back({name + std::string(kCounts), DType::kF32, {matrices, 1}});
  }
  const std::unique_ptr<TensorWriter> writer = CreateGguf(path, metadata, std::move(infos), mode);
  for (const auto& [name, entry] : matrix.entries) {
    const std::size_t columns = entry.mean_squares.size() / entry.counts.size();
    std::vector<float> sums = entry.mean_squares;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] *= entry.counts[i / columns];
    writer->Write(BytesOf(sums));
    writer->Write(BytesOf(entry.counts));
  }
  writer->Finish();
}

ImportanceMatrix CollectImatrix(Context& context, Backend& backend,
                                const std::filesystem::path& model_dir, const DecoderConfig& config,
                                const DecoderWeights& weights, const std::string& data,
                                std::int64_t max_tokens, const ProgressFn& progress) {
  const Calibration calibration =
      Calibrate(context, backend, model_dir, config, data, max_tokens, progress);
  ImportanceMatrix matrix;
  matrix.dataset = FileName(data);
  matrix.chunks = (calibration.tokens + matrix.chunk_size - 1) / matrix.chunk_size;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ForEachGgufLinear(config, l, [&](const LayerTensor& row, const std::string& tensor) {
      ImportanceMatrix::Entry& entry = matrix.entries[tensor];
      const std::vector<std::int64_t> columns = GgufRowsOf(config, l, row, tensor).columns;
      for (const FrozenLinear* linear : StackOf(weights.layers[l].linears, row)) {
        const std::vector<float>& means = calibration.mean_squares.at(linear->path + ".weight");
        entry.mean_squares.insert(entry.mean_squares.end(), means.begin(), means.end());
        // Means are of inputs, which are the file's columns.
        for (std::size_t i = 0; i < columns.size(); ++i) entry.mean_squares[i] = means[columns[i]];
        entry.counts.push_back(static_cast<float>(calibration.tokens));
      }
    });
  }
  return matrix;
}

}  // namespace qlora
