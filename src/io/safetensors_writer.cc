// Writes safetensors, alone or as shards with an index. The format is described in safetensors.cc.
#include "io/safetensors_writer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "io/json.h"
#include "io/mapped_tensors.h"
#include "io/safetensors_layout.h"
#include "io/tensor_cursor.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kAlignment = 8;  // of the data, as the reference writer does

// Returns the place in the reference writer's order of types, widest first; -1: not in the format.
int RankOf(const TensorType& type) {
  constexpr TensorType kOrder[] = {DType::kI64,   DType::kF64, DType::kF32, DType::kI32,
                                   DType::kBF16,  DType::kF16, DType::kI16, Float8::kE8M0,
                                   Float8::kE4M3, DType::kI8,  DType::kU8,  DType::kBool};
  // Wider types first keeps each tensor aligned to its own type: sizes before it are multiples of
  // wider types.
  const auto* const found = std::find(std::begin(kOrder), std::end(kOrder), type);
  return found == std::end(kOrder) ? -1 : static_cast<int>(found - std::begin(kOrder));
}

bool InReferenceOrder(const TensorInfo& a, const TensorInfo& b) {
  const int rank_a = RankOf(a.dtype);
  const int rank_b = RankOf(b.dtype);
  return std::tie(rank_a, a.name) < std::tie(rank_b, b.name);
}

void CheckTensors(const std::vector<TensorInfo>& tensors, const std::string& where) {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    // The header has one object for both: a tensor of this name would replace the metadata.
    if (tensor.name.empty() || tensor.name == "__metadata__") {
      ThrowInvalidInput("{}: a tensor cannot be named '{}'", where, tensor.name);
    }
    if (!names.insert(tensor.name).second) {
      ThrowInvalidInput("{}: tensor '{}' is declared twice", where, tensor.name);
    }
    if (RankOf(tensor.dtype) < 0) {
      ThrowInvalidInput("{}: tensor '{}': safetensors has no type {}", where, tensor.name,
                        NameOf(tensor.dtype));
    }
    if (CheckedElements(tensor.shape) < 0 || (tensor.upper_bound && tensor.shape.size() != 1)) {
      ThrowInvalidInput("{}: tensor '{}': shape [{}] is not possible", where, tensor.name,
                        fmt::join(tensor.shape, ", "));
    }
  }
}

std::string Quoted(const std::string& text, const std::string& where) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    ThrowInvalidInput("{}: a name or metadata text is not valid UTF-8", where);
  }
}

// One file. Declared order is the order of the bytes that come; `layout_` is the order in the file.
class SafetensorsFile : public TensorWriter {
 public:
  SafetensorsFile(const fs::path& path, std::vector<TensorInfo> tensors, StringMap metadata)
      : where_(path.string()), metadata_(std::move(metadata)), cursor_(std::move(tensors), where_) {
    CheckTensors(cursor_.tensors(), where_);
    // transformers refuses a file that does not say which framework wrote it.
    metadata_.insert_or_assign("format", "pt");
    layout_.resize(cursor_.tensors().size());
    for (std::size_t i = 0; i < layout_.size(); ++i) layout_[i] = i;
    // file   | header, padded | fixed tensors in reference order | tensors that may shrink |
    // Tensors whose size is an upper bound come last, so that shrinking moves nothing that is
    // written.
    const auto last_fixed =
        std::stable_partition(layout_.begin(), layout_.end(),
                              [this](std::size_t i) { return !cursor_.tensors()[i].upper_bound; });
    std::sort(layout_.begin(), last_fixed, [this](std::size_t a, std::size_t b) {
      return InReferenceOrder(cursor_.tensors()[a], cursor_.tensors()[b]);
    });
    PlaceTensors();
    // With all sizes at their largest, the header is as long as it can become.
    header_bytes_ = (Header().size() + kAlignment - 1) / kAlignment * kAlignment;
    file_.emplace(path);
    // A full disk is noticed now and not after an hour of quantization.
    file_->Reserve(kLengthBytes + header_bytes_ + data_bytes_);
  }

  void Write(std::span<const std::byte> bytes) override {
    // Take() counts pieces of one byte or more.
    if (bytes.empty()) return;
    // Bytes come in the declared order, and go to the place that the reference order gives.
    const TensorCursor::Piece piece = cursor_.Take(bytes.size());
    file_->WriteAt(kLengthBytes + header_bytes_ + begins_[piece.tensor] + piece.offset, bytes);
  }

  void Shrink(std::int64_t elements) override {
    cursor_.Shrink(elements);
    PlaceTensors();  // moves only tensors behind this one, of which no byte is written yet
  }

  void Finish() override {
    cursor_.CheckComplete();
    std::string header = Header();
    QLORA_DCHECK(header.size() <= header_bytes_);
    header.resize(header_bytes_, ' ');
    // The header last: until here its sizes could change.
    file_->WriteAt(0, std::as_bytes(std::span(&header_bytes_, 1)));
    file_->WriteAt(kLengthBytes, std::as_bytes(std::span(header)));
    file_->Commit();
  }

  std::uint64_t data_bytes() const { return data_bytes_; }

 private:
  void PlaceTensors() {
    begins_.resize(layout_.size());
    data_bytes_ = 0;
    for (const std::size_t i : layout_) {
      begins_[i] = data_bytes_;
      data_bytes_ += cursor_.tensors()[i].bytes();
    }
  }

  std::string Header() const {
    std::string out = "{\"__metadata__\":{";
    const char* separator = "";
    for (const auto& [key, value] : metadata_) {
      out += fmt::format("{}{}:{}", std::exchange(separator, ","), Quoted(key, where_),
                         Quoted(value, where_));
    }
    out += '}';
    for (const std::size_t i : layout_) {
      const TensorInfo& tensor = cursor_.tensors()[i];
      out += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                         Quoted(tensor.name, where_), NameOf(tensor.dtype),
                         fmt::join(tensor.shape, ","), begins_[i], begins_[i] + tensor.bytes());
    }
    return out + '}';
  }

  std::string where_;
  StringMap metadata_;
  TensorCursor cursor_;
  std::vector<std::size_t> layout_;    // numbers of the tensors in the order of the file
  std::vector<std::uint64_t> begins_;  // of each tensor, counted from the end of the header
  std::uint64_t data_bytes_ = 0;
  std::uint64_t header_bytes_ = 0;  // fixed at birth; sizes that shrink leave spaces at its end
  std::optional<AtomicFile> file_;
};

// Returns "a.weight" of "a.weight", "a.weight.absmax", ...; the whole name where there is no
// ".weight".
std::string_view GroupOf(std::string_view name) {
  // The pieces of a weight in 4 bits stay in one shard: transformers reads shard by shard, and
  // needs them together.
  constexpr std::string_view kWeight = ".weight";
  const std::size_t begin = name.find(".weight.");
  return begin == std::string_view::npos ? name : name.substr(0, begin + kWeight.size());
}

class ShardedSafetensors : public TensorWriter {
 public:
  ShardedSafetensors(const fs::path& directory, std::vector<TensorInfo> tensors,
                     const StringMap& metadata, std::uint64_t max_shard_bytes)
      : directory_(directory), cursor_(std::move(tensors), directory.string()) {
    CheckTensors(cursor_.tensors(), directory.string());
    const std::size_t shards = AssignShards(max_shard_bytes);
    // Readers prefer the single file: an old one would be loaded instead of the new index.
    const fs::path other = directory / (shards == 1 ? kIndexName : kSingleName);
    if (std::error_code ignored; fs::exists(other, ignored)) {
      ThrowInvalidInput(
          "{}: is a checkpoint of {}; remove it first, or readers would mix it up "
          "with the new one",
          other.string(), shards == 1 ? "several shards" : "one file");
    }
    MakeDirectories(directory);
    std::vector<std::vector<TensorInfo>> parts(shards);
    for (std::size_t i = 0; i < shard_of_.size(); ++i) {
      parts[shard_of_[i]].push_back(cursor_.tensors()[i]);
    }
    for (std::size_t s = 0; s < shards; ++s) {
      names_.push_back(shards == 1
                           ? kSingleName
                           : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards));
      files_.push_back(
          std::make_unique<SafetensorsFile>(directory / names_[s], std::move(parts[s]), metadata));
    }
  }

  void Write(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return;
    files_[shard_of_[cursor_.Take(bytes.size()).tensor]]->Write(bytes);
  }

  void Shrink(std::int64_t elements) override {
    files_[shard_of_[cursor_.Shrink(elements)]]->Shrink(elements);
  }

  void Finish() override {
    cursor_.CheckComplete();
    // An index is only ever seen together with all of its shards. An index of an earlier run would
    // name shards that are being replaced one by one.
    if (files_.size() > 1) RemoveFile(directory_ / kIndexName);
    for (const auto& file : files_) file->Finish();
    if (files_.size() > 1) WriteIndex();
  }

 private:
  // Fills shards one after the other, a group at a time, in the order of first appearance.
  std::size_t AssignShards(std::uint64_t max_shard_bytes) {
    std::vector<std::pair<std::string_view, std::uint64_t>> groups;
    std::unordered_map<std::string_view, std::size_t> number_of;
    for (const TensorInfo& tensor : cursor_.tensors()) {
      const std::string_view name = GroupOf(tensor.name);
      const auto [entry, added] = number_of.emplace(name, groups.size());
      if (added) groups.emplace_back(name, 0);
      groups[entry->second].second += tensor.bytes();
    }
    std::vector<std::size_t> shard_of_group;
    std::size_t shard = 0;
    std::uint64_t filled = 0;
    for (const auto& [name, bytes] : groups) {
      // A group larger than a shard gets a separate shard. Written so that no sum can overflow.
      if (filled > 0 && bytes > max_shard_bytes - std::min(filled, max_shard_bytes)) {
        ++shard;
        filled = 0;
      }
      filled += bytes;
      shard_of_group.push_back(shard);
    }
    for (const TensorInfo& tensor : cursor_.tensors()) {
      shard_of_.push_back(shard_of_group[number_of.at(GroupOf(tensor.name))]);
    }
    return shard + 1;
  }

  void WriteIndex() const {
    Json weight_map = Json::object();
    for (std::size_t i = 0; i < shard_of_.size(); ++i) {
      weight_map[cursor_.tensors()[i].name] = names_[shard_of_[i]];
    }
    std::uint64_t total = 0;
    for (const auto& file : files_) total += file->data_bytes();
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    WriteTextFile(directory_ / kIndexName, index.dump(2) + "\n");
  }

  fs::path directory_;
  TensorCursor cursor_;
  std::vector<std::size_t> shard_of_;  // of each tensor
  std::vector<std::string> names_;     // of each shard
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace

std::unique_ptr<TensorWriter> CreateSafetensors(const fs::path& path,
                                                std::vector<TensorInfo> tensors,
                                                const StringMap& metadata) {
  return std::make_unique<SafetensorsFile>(path, std::move(tensors), metadata);
}

std::unique_ptr<TensorWriter> CreateShardedSafetensors(const fs::path& directory,
                                                       std::vector<TensorInfo> tensors,
                                                       const StringMap& metadata,
                                                       std::uint64_t max_shard_bytes) {
  return std::make_unique<ShardedSafetensors>(directory, std::move(tensors), metadata,
                                              max_shard_bytes);
}

}  // namespace qlora
