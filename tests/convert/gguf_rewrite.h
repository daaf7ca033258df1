// A GGUF file with other keys or tensors.
#ifndef QLORA_TESTS_CONVERT_GGUF_REWRITE_H_
#define QLORA_TESTS_CONVERT_GGUF_REWRITE_H_

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"

namespace qlora {

struct RewrittenTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

// Writes `path` again after the edits, of which each may be empty.
inline void RewriteGguf(
    const std::filesystem::path& path, const std::function<void(GgufMetadata&)>& edit_keys,
    const std::function<void(std::vector<RewrittenTensor>&)>& edit_tensors = {}) {
  GgufMetadata keys;
  std::vector<RewrittenTensor> tensors;
  {
    const std::unique_ptr<GgufReader> file = OpenGguf(path);
    keys = file->values();
    for (const TensorInfo& info : file->tensors()) {
      const std::span<const std::byte> bytes = file->Bytes(info);
      tensors.push_back({info, {bytes.begin(), bytes.end()}});
    }
  }
  if (edit_keys) edit_keys(keys);
  if (edit_tensors) edit_tensors(tensors);
  std::vector<TensorInfo> infos;
  for (const RewrittenTensor& tensor : tensors) infos.push_back(tensor.info);
  const std::unique_ptr<TensorWriter> writer = CreateGguf(path, keys, infos);
  for (const RewrittenTensor& tensor : tensors) writer->Write(tensor.bytes);
  writer->Finish();
}

// Puts q, k and v of the two layers into one tensor, as some files have them.
inline void JoinQkv(std::vector<RewrittenTensor>& tensors) {
  for (const std::string block : {"blk.0.", "blk.1."}) {
    const auto find = [&](const char* name) {
      return std::ranges::find_if(
          tensors, [&](const RewrittenTensor& tensor) { return tensor.info.name == block + name; });
    };
    RewrittenTensor joined = *find("attn_q.weight");
    joined.info.name = block + "attn_qkv.weight";
    for (const char* name : {"attn_k.weight", "attn_v.weight"}) {
      joined.info.shape[0] += find(name)->info.shape[0];
      joined.bytes.insert(joined.bytes.end(), find(name)->bytes.begin(), find(name)->bytes.end());
    }
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) {
      tensors.erase(find(name));
    }
    tensors.push_back(std::move(joined));
  }
}

// `keys` with another value of one key; without the key where `value` is null.
inline GgufMetadata WithKey(const GgufMetadata& keys, const std::string& key,
                            const GgufValue* value) {
  GgufMetadata changed;
  for (const GgufEntry& entry : keys.entries()) {
    if (entry.key != key) changed.Add(entry.key, entry.value);
    if (entry.key == key && value != nullptr) changed.Add(key, *value);
  }
  return changed;
}

}  // namespace qlora

#endif  // QLORA_TESTS_CONVERT_GGUF_REWRITE_H_
