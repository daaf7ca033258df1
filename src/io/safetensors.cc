// Reads safetensors. A file is: u64 little-endian header length N; N bytes of JSON, name -> {dtype,
// shape, data_offsets: [begin, end)}, offsets counted from the end of the header; the data, which
// the tensors must tile without holes.
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "io/foreign_content.h"
#include "io/json.h"
#include "io/mapped_tensors.h"
#include "io/safetensors_layout.h"

static_assert(std::endian::native == std::endian::little);

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr const char* kConvertHint =
    "pickled checkpoints can run code and are not read; convert it once in Python with "
    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, safe_serialization=True)";

// The types of the format that have a meaning here. Others (F8_E5M2, complex numbers) are refused
// by name rather than read as bytes.
constexpr TensorType kStorable[] = {DType::kF64, DType::kF32,  DType::kF16,   DType::kBF16,
                                    DType::kI64, DType::kI32,  DType::kI16,   DType::kI8,
                                    DType::kU8,  DType::kBool, Float8::kE4M3, Float8::kE8M0};

std::optional<TensorType> TypeNamed(std::string_view name) {
  for (const TensorType& type : kStorable) {
    if (name == NameOf(type)) return type;
  }
  return std::nullopt;
}

bool StartsWith(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// Returns the format of a file that is not safetensors, where its first bytes show it.
std::string DiagnosisOf(std::span<const std::byte> bytes) {
  const std::string foreign = ForeignContent(
      {reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 4096)});
  if (!foreign.empty()) return foreign;
  if (StartsWith(bytes, "<")) return "; it looks like a web page: download it again";
  // Files with a wrong name or from a failed download are the usual causes, and each of them has
  // other advice than "damaged".
  if (StartsWith(bytes, "GGUF")) return "; it is a GGUF file: name it *.gguf";
  if (StartsWith(bytes, "PK\x03\x04") || StartsWith(bytes, "\x80\x02")) {
    return fmt::format("; it is a PyTorch checkpoint: {}", kConvertHint);
  }
  return "";
}

// One tensor as the header states it.
struct Entry {
  TensorInfo info;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string unread = {};  // the reason why its values have no meaning here, or ""
};

std::uint64_t OffsetOf(const Json& value, const std::string& name, const std::string& where) {
  if (!value.is_number_unsigned()) {
    ThrowInvalidInput("{}: tensor '{}': data_offsets must be two unsigned integers", where, name);
  }
  return value.get<std::uint64_t>();
}

Entry ParseEntry(const std::string& name, const Json& json, const std::string& where) {
  const std::string place = fmt::format("{}: tensor '{}'", where, name);
  const std::string dtype_name = JsonGet<std::string>(json, "dtype", place);
  const std::optional<TensorType> dtype = TypeNamed(dtype_name);
  Entry entry;
  if (!dtype) {
    entry.unread = fmt::format(
        "{}: dtype {} is not supported; expected F64, F32, F16, BF16, F8_E4M3, F8_E8M0, I64, I32, "
        "I16, I8, U8 or BOOL",
        place, dtype_name);
  }
  entry.info = {name, dtype.value_or(TensorType(DType::kU8)),
                JsonGet<std::vector<std::int64_t>>(json, "shape", place)};
  const Json* offsets = FindJson(json, "data_offsets", place);
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2) {
    ThrowInvalidInput("{}: data_offsets must be [begin, end]", place);
  }
  entry.begin = OffsetOf((*offsets)[0], name, where);
  entry.end = OffsetOf((*offsets)[1], name, where);
  const std::int64_t elements = CheckedElements(entry.info.shape);
  // Checked before bytes(): otherwise its product could overflow to a small number that happens to
  // fit.
  if (elements < 0) {
    ThrowInvalidInput("{}: shape [{}] is negative or too large", place,
                      fmt::join(entry.info.shape, ", "));
  }
  // Type, shape and place say the size twice. A file in which they differ would let a tensor read
  // the bytes of its neighbour.
  const bool has_size = dtype ? entry.end - entry.begin == entry.info.bytes() : true;
  if (entry.end < entry.begin || !has_size) {
    ThrowInvalidInput("{}: {} [{}] takes {} bytes, but data_offsets are [{}, {}]", place,
                      dtype_name, fmt::join(entry.info.shape, ", "), entry.info.bytes(),
                      entry.begin, entry.end);
  }
  return entry;
}

// The file of each tensor that an index names.
using WeightMap = std::map<std::string, std::string, std::less<>>;

class SafetensorsReader : public MappedTensors {
 public:
  // in_part: as OpenSafetensorsInPart.
  explicit SafetensorsReader(bool in_part) : in_part_(in_part) {}

  // Maps a file and reads its header; AddAll adds the tensors.
  void Read(const fs::path& path, bool with_metadata) {
    const std::size_t number = AddFile(MappedFile(path));
    const std::span<const std::byte> bytes = file(number).bytes();
    const std::string where = path.string();
    const std::uint64_t header_bytes = HeaderBytesOf(bytes, where);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                header_bytes);
    // Writers may pad the header, so that the data begin at a page.
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos || text[first] != '{') {
      ThrowInvalidInput("{}: the header does not start with '{{'{}", where, DiagnosisOf(bytes));
    }
    // The format forbids a name twice: otherwise two readers could take different tensors from one
    // file.
    const Json header = ParseJson(text, where + ": header", DuplicateKeys::kRefuse);
    File read{path.filename().string(), number, kLengthBytes + header_bytes, {}};
    read.entries.reserve(header.size());
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        ParseMetadata(value, where, with_metadata);
        continue;
      }
      read.entries.push_back(ParseEntry(name, value, where));
      const std::string& unread = read.entries.back().unread;
      if (!unread.empty() && !in_part_) ThrowInvalidInput("{}", unread);
    }
    // After the loop: JSON objects have no order, only the offsets tell which tensor is next to
    // which.
    CheckTiling(read.entries, read.data_begin, bytes.size(), where);
    files_.push_back(std::move(read));
  }

  // Adds the tensors of all files. map: of the index, if there is one.
  void AddAll(const WeightMap& map) {
    std::map<std::string, std::int64_t, std::less<>> copies;
    for (const File& read : files_) {
      for (const Entry& entry : read.entries) ++copies[entry.info.name];
    }
    for (File& read : files_) {
      for (Entry& entry : read.entries) {
        const std::string& name = entry.info.name;
        if (in_part_ && copies[name] > 1 && entry.unread.empty()) {
          // The index chooses among several tensors of one name.
          const auto chosen = map.find(name);
          if (chosen == map.end()) {
            entry.unread = fmt::format(
                "{}: tensor '{}' is in several shards, and the index names none of them",
                file(read.number).path().string(), name);
          } else if (chosen->second != read.name) {
            continue;
          }
        }
        if (!entry.unread.empty()) {
          AddUnread(name, entry.unread);
        } else {
          Add(std::move(entry.info), read.number, read.data_begin + entry.begin);
        }
      }
    }
    files_.clear();
  }

  // Names that the last file read has.
  std::set<std::string> LastNames() const {
    std::set<std::string> names;
    for (const Entry& entry : files_.back().entries) names.insert(entry.info.name);
    return names;
  }

  void AddMissing(const std::string& name, const std::string& reason) {
    if (!in_part_) ThrowInvalidInput("{}", reason);
    AddUnread(name, reason);
  }

 private:
  struct File {
    std::string name;
    std::size_t number;
    std::uint64_t data_begin;
    std::vector<Entry> entries;
  };

  static std::uint64_t HeaderBytesOf(std::span<const std::byte> bytes, const std::string& where) {
    if (bytes.size() < kLengthBytes) {
      ThrowInvalidInput("{}: has {} bytes, too few for a safetensors file (incomplete download?)",
                        where, bytes.size());
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    // Checked before the end of the file: eight bytes of another format are a huge number, and "is
    // not a safetensors file" is clearer than "incomplete".
    if (length > kMaxHeaderBytes) {
      ThrowInvalidInput("{}: is not a safetensors file: it claims a header of {} bytes{}", where,
                        length, DiagnosisOf(bytes));
    }
    if (length > bytes.size() - kLengthBytes) {
      ThrowInvalidInput("{}: the header needs {} bytes, but the file has {} (incomplete download?)",
                        where, kLengthBytes + length, bytes.size());
    }
    return length;
  }

  void ParseMetadata(const Json& json, const std::string& where, bool keep) {
    if (!json.is_object()) ThrowInvalidInput("{}: __metadata__ must be an object", where);
    for (const auto& [key, value] : json.items()) {
      std::string text = JsonAs<std::string>(value, key, where + ": __metadata__");
      if (keep) AddMetadata(key, std::move(text));
    }
  }

  // Sorts the tensors by place and checks that they fill the data exactly.
  static void CheckTiling(std::vector<Entry>& entries, std::uint64_t data_begin,
                          std::uint64_t file_bytes, const std::string& where) {
    std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
      // The end breaks ties, so that empty tensors come before the tensor that begins at the same
      // place.
      return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
    });
    std::uint64_t end = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != end) {
        ThrowInvalidInput("{}: tensor '{}' begins at {}, but the tensor before it ends at {} ({})",
                          where, entry.info.name, entry.begin, end,
                          entry.begin < end ? "overlap" : "hole");
      }
      end = entry.end;
    }
    if (end > file_bytes - data_begin) {
      const auto cut = std::ranges::find_if(
          entries, [&](const Entry& entry) { return entry.end > file_bytes - data_begin; });
      ThrowInvalidInput(
          "{}: expected {} bytes, found {}; tensor '{}' and all behind it are cut "
          "off (incomplete download?)",
          where, data_begin + end, file_bytes, cut->info.name);
    }
    // Bytes behind the last tensor could hide another file; the reference reader refuses them too.
    if (end < file_bytes - data_begin) {
      ThrowInvalidInput("{}: expected {} bytes, found {}: {} trailing bytes belong to no tensor",
                        where, data_begin + end, file_bytes, file_bytes - data_begin - end);
    }
  }

  bool in_part_;
  std::vector<File> files_;  // read, and not added yet
};

std::unique_ptr<TensorReader> OpenSingle(const fs::path& path, bool in_part) {
  auto reader = std::make_unique<SafetensorsReader>(in_part);
  reader->Read(path, true);
  reader->AddAll({});
  return reader;
}

std::unique_ptr<TensorReader> OpenIndex(const fs::path& index, bool in_part) {
  const std::string where = index.string();
  const Json json = ParseJson(ReadTextFile(index), where, DuplicateKeys::kRefuse);
  const Json* map = FindJson(json, "weight_map", where);
  if (map == nullptr || !map->is_object()) {
    ThrowInvalidInput("{}: key 'weight_map' must be an object of tensor: file", where);
  }
  std::map<std::string, std::vector<std::string>> shards;  // file -> tensors
  WeightMap files;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = JsonAs<std::string>(file, tensor, where);
    // Without this check an index could name ../../ files that are not part of the checkpoint.
    if (name.empty() || fs::path(name).filename() != name) {
      ThrowInvalidInput(
          "{}: tensor '{}': '{}' is not the name of a file in the folder of the index", where,
          tensor, name);
    }
    shards[name].push_back(tensor);
    files[tensor] = name;
  }
  auto reader = std::make_unique<SafetensorsReader>(in_part);
  bool first = true;
  for (const auto& [name, tensors] : shards) {
    const fs::path path = index.parent_path() / name;
    if (!Exists(path)) {
      ThrowInvalidInput("{}: shard {} is missing (incomplete download?); it holds {} of {} tensors",
                        where, path.string(), tensors.size(), map->size());
    }
    // Metadata of the first shard alone: all shards repeat it.
    reader->Read(path, std::exchange(first, false));
    const std::set<std::string> found = reader->LastNames();
    for (const std::string& tensor : tensors) {
      if (found.count(tensor) != 0) continue;
      reader->AddMissing(tensor, fmt::format("{}: tensor '{}' should be in {}, but is not", where,
                                             tensor, path.string()));
    }
  }
  reader->AddAll(files);
  return reader;
}

bool IsPickle(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt" ||
         path.string().ends_with(".bin.index.json");
}

std::unique_ptr<TensorReader> OpenDirectory(const fs::path& directory, bool in_part) {
  // The order of transformers: a single file wins over an index.
  if (Exists(directory / kSingleName)) return OpenSingle(directory / kSingleName, in_part);
  if (Exists(directory / kIndexName)) return OpenIndex(directory / kIndexName, in_part);
  std::error_code error;
  std::string other;  // the first file of tensors by name
  for (const auto& item : fs::directory_iterator(directory, error)) {
    const std::string name = item.path().filename().string();
    if (item.path().extension() == ".safetensors" && (other.empty() || name < other)) other = name;
    if (name.starts_with("pytorch_model") && IsPickle(item.path())) {
      ThrowInvalidInput("{}: holds {} but no {}: {}", directory.string(), name, kSingleName,
                        kConvertHint);
    }
    // The folder of an adapter instead of its model is a common mistake, which "holds neither"
    // would not explain.
    if (name == "adapter_model.safetensors") {
      ThrowInvalidInput("{}: holds a LoRA adapter, expected a model ({} or {})", directory.string(),
                        kSingleName, kIndexName);
    }
  }
  if (error) ThrowInvalidInput("{}: cannot be read: {}", directory.string(), error.message());
  if (!other.empty()) {
    ThrowInvalidInput(
        "{0}: holds {1}, but neither {2} nor {3}, which lists the files of a model in parts: "
        "download {3}, or call a file that holds the whole model {2}",
        directory.string(), other, kSingleName, kIndexName);
  }
  ThrowInvalidInput("{}: holds neither {} nor {}", directory.string(), kSingleName, kIndexName);
}

std::unique_ptr<TensorReader> Open(const fs::path& path, bool in_part) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return OpenDirectory(path, in_part);
  if (IsPickle(path)) ThrowInvalidInput("{}: {}", path.string(), kConvertHint);
  return path.extension() == ".json" ? OpenIndex(path, in_part) : OpenSingle(path, in_part);
}

}  // namespace

bool HoldsModel(const fs::path& directory) {
  return Exists(directory / "config.json") &&
         (Exists(directory / kSingleName) || Exists(directory / kIndexName));
}

std::unique_ptr<TensorReader> OpenSafetensors(const fs::path& path) { return Open(path, false); }

std::unique_ptr<TensorReader> OpenSafetensorsInPart(const fs::path& path) {
  return Open(path, true);
}

}  // namespace qlora
