// What a GGUF file keeps of the GGUF file that it is made from where its types are kept (outtype
// auto): all that an adapter does not change, byte by byte.
#ifndef QLORA_EXPORT_GGUF_GGUF_STORED_H_
#define QLORA_EXPORT_GGUF_GGUF_STORED_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "gguf/gguf.h"
#include "io/tensor_type.h"
#include "model/tensor_list.h"

namespace qlora {

// The type in which changed values of a tensor of this type are written: the same, or, where blocks
// of it are only read, the type of the fewest bits that has as many.
TensorType WritableType(const TensorType& stored);

// The keys of `file` with those of `changes` in the place of others, and without `gone`, what tells
// of its parts, and the alignment.
GgufMetadata KeysAsStored(const GgufMetadata& file, const GgufMetadata& changes,
                          const std::vector<std::string>& gone);

// A linear that is written anew, and how the file has it.
struct ChangedLinear {
  std::int64_t layer = 0;
  LayerTensor row;
  GgufSpelling stored;
  bool changes = false;  // false: it shares a tensor of the file with one that changes

  // The file has its values in other tensors than those that are written.
  bool is_recut() const { return stored[0].tensor != row.gguf[0][0].tensor; }
};

// Which tensors of a file are written anew.
class ChangedTensors {
 public:
  explicit ChangedTensors(const GgufReader& file) : file_(file) {}

  // rows: of LayerTensors; changes(row): whether values of a linear change.
  template <typename Changes>
  void AddLayer(std::int64_t layer, const std::vector<LayerTensor>& rows, const Changes& changes) {
    std::vector<ChangedLinear> linears;
    for (const LayerTensor& row : rows) {
      if (row.kind != TensorKind::kLinear) continue;
      linears.push_back({layer, row, SpellingOf(row), changes(row)});
    }
    Add(std::move(linears));
  }

  // The linears in whose place a tensor of the file stands: none where it is kept.
  std::vector<std::size_t> InPlaceOf(const std::string& tensor) const;
  const ChangedLinear& operator[](std::size_t i) const { return linears_[i]; }
  std::size_t size() const { return linears_.size(); }

 private:
  // The first spelling that the file has.
  const GgufSpelling& SpellingOf(const LayerTensor& row) const;
  void Add(std::vector<ChangedLinear> linears);

  const GgufReader& file_;
  std::vector<ChangedLinear> linears_;
  std::map<std::string, std::vector<std::size_t>> by_tensor_;
};

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_STORED_H_
