#include "export/gguf/gguf_stored.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace qlora {

TensorType WritableType(const TensorType& stored) {
  if (!stored.is_blocks() || InfoOf(stored.format).encodable) return stored;
  const BlockFormatInfo& info = InfoOf(stored.format);
  const BlockFormatInfo* best = nullptr;
  for (const BlockFormatInfo& other : BlockFormats()) {
    // The scales of MXFP4 are powers of two, which fits nothing but weights that were in it.
    if (!other.encodable || other.format == BlockFormat::kMXFP4) continue;
    if (info.values % other.values != 0) continue;
    const std::int64_t bytes = other.bytes * (info.values / other.values);
    if (bytes < info.bytes) continue;
    if (best == nullptr || bytes < best->bytes * (info.values / best->values)) best = &other;
  }
  QLORA_DCHECK(best != nullptr);
  return best->format;
}

GgufMetadata KeysAsStored(const GgufMetadata& file, const GgufMetadata& changes,
                          const std::vector<std::string>& gone) {
  GgufMetadata keys;
  for (const GgufEntry& entry : file.entries()) {
    if (entry.key.starts_with("split.") || entry.key == "general.alignment") continue;
    if (std::ranges::find(gone, entry.key) != gone.end()) continue;
    const GgufValue* changed = changes.Find(entry.key);
    keys.Add(entry.key, changed == nullptr ? entry.value : *changed);
  }
  for (const GgufEntry& entry : changes.entries()) {
    if (file.Find(entry.key) == nullptr) keys.Add(entry.key, entry.value);
  }
  return keys;
}

const GgufSpelling& ChangedTensors::SpellingOf(const LayerTensor& row) const {
  const auto has = [&](const GgufSpelling& one) { return file_.Find(one[0].tensor) != nullptr; };
  const auto found = std::ranges::find_if(row.gguf, has);
  return found == row.gguf.end() ? row.gguf[0] : *found;
}

void ChangedTensors::Add(std::vector<ChangedLinear> linears) {
  std::set<std::string> changed;
  for (const ChangedLinear& linear : linears) {
    if (!linear.changes) continue;
    for (const GgufPiece& piece : linear.stored) changed.insert(piece.tensor);
  }
  for (ChangedLinear& linear : linears) {
    const bool shares = std::ranges::any_of(
        linear.stored, [&](const GgufPiece& piece) { return changed.contains(piece.tensor); });
    if (!shares) continue;
    const auto own = [&](const std::string& tensor) {
      std::vector<std::size_t>& of = by_tensor_[tensor];
      if (of.empty() || of.back() != linears_.size()) of.push_back(linears_.size());
    };
    // Of experts beside an MLP, and of their router, these scales are tensors of their own.
    const bool has_scale = !linear.row.is_stacked && linear.row.group != LinearGroup::kSideRouter;
    for (const GgufPiece& piece : linear.stored) {
      const std::string stem = StemOf(piece.tensor);
      own(piece.tensor);
      if (has_scale) own(stem + ".scale");
      if (!linear.is_recut()) continue;
      own(stem + ".bias");
      own(stem + ".input_scale");
    }
    linears_.push_back(std::move(linear));
  }
}

std::vector<std::size_t> ChangedTensors::InPlaceOf(const std::string& tensor) const {
  const auto found = by_tensor_.find(tensor);
  return found == by_tensor_.end() ? std::vector<std::size_t>{} : found->second;
}

}  // namespace qlora
