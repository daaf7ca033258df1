// Changes of the embeddings and the output head by adapters of PEFT that adapt or replace rows of
// them. Both tables are dense here, so a change is added to a copy of the rows when the base is
// loaded, and passes see a table like any other:
//
//   LoRA on the head         row v += scale B[v] A               A (r, D), B (V, r)
//   LoRA on the embeddings   row v += scale (B A)[:, v]          A (r, V), B (D, r)
//   rows of tokens           row ids[i] = rows[i]
#ifndef QLORA_ADAPTER_TABLE_CHANGE_H_
#define QLORA_ADAPTER_TABLE_CHANGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/peft/peft.h"

namespace qlora {

struct TableChange {
  std::string name;  // of the table's weight: "lm_head.weight"
  double scale = 1;
  std::int64_t rank = 0;          // 0: no LoRA
  std::vector<float> left;        // (V, r)
  std::vector<float> right;       // (r, D)
  std::vector<std::int64_t> ids;  // n
  std::vector<float> rows;        // (n, D)
  bool from_base = true;          // otherwise from a table that the adapter holds
};

// The change that `peft` makes to a table ("lm_head.weight") of (rows, hidden) values; one without
// rank and ids where there is none. Errors: InvalidInput for shapes of another model, NaN or Inf,
// and token ids without a row.
TableChange TableChangeOf(const Adapter& peft, const std::string& name, std::int64_t rows,
                          std::int64_t hidden);

// Applies the change to `values` (n, D), rows from `first` on.
void ApplyChange(const TableChange& change, std::int64_t first, std::int64_t hidden,
                 std::span<float> values);

// The values of a tensor (F32, F16, BF16) in float32. Errors: InvalidInput for a NaN or Inf.
std::vector<float> FiniteValues(const Adapter& peft, const TensorInfo& tensor);

}  // namespace qlora

#endif  // QLORA_ADAPTER_TABLE_CHANGE_H_
