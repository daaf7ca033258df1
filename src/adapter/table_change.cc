#include "adapter/table_change.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/matrix.h"
#include "io/float_encoding.h"

namespace qlora {
namespace {

void CheckShape(const Adapter& peft, const TensorInfo& tensor,
                const std::vector<std::int64_t>& shape) {
  if (tensor.shape == shape) return;
  ThrowInvalidInput(
      "{}: tensor '{}' has shape [{}], this model expects [{}]; it is an adapter of another model",
      peft.tensors->FileOf(tensor), tensor.name, fmt::join(tensor.shape, ", "),
      fmt::join(shape, ", "));
}

}  // namespace

std::vector<float> FiniteValues(const Adapter& peft, const TensorInfo& tensor) {
  std::vector<float> values(tensor.elements());
  DecodeFloats(tensor.dtype, peft.tensors->Bytes(tensor), values);
  const auto bad = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
  if (bad != values.end()) {
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}",
                      peft.tensors->FileOf(tensor), tensor.name, bad - values.begin());
  }
  return values;
}

TableChange TableChangeOf(const Adapter& peft, const std::string& name, std::int64_t rows,
                          std::int64_t hidden) {
  TableChange change;
  change.name = name;
  const std::string path = name.substr(0, name.rfind('.'));
  change.from_base =
      std::ranges::none_of(peft.replaced, [&](const ReplacedWeight& w) { return w.name == name; });
  for (const AdapterModule& module : peft.modules) {
    if (module.path != path) continue;
    const std::int64_t r = module.a->shape[0];
    const bool head = path == "lm_head";
    CheckShape(peft, *module.a, {r, head ? hidden : rows});
    CheckShape(peft, *module.b, {head ? rows : hidden, r});
    std::vector<float> a = FiniteValues(peft, *module.a);
    std::vector<float> b = FiniteValues(peft, *module.b);
    change.rank = r;
    change.scale = ScaleOf(peft.config, path);
    change.left = head ? std::move(b) : Transposed(a, r, rows);
    change.right = head ? std::move(a) : Transposed(b, hidden, r);
  }
  for (const TokenRows& tokens : peft.token_rows) {
    if (tokens.path != path) continue;
    CheckShape(peft, *tokens.rows, {std::ssize(tokens.ids), hidden});
    change.ids = tokens.ids;
    change.rows = FiniteValues(peft, *tokens.rows);
    for (const std::int64_t id : change.ids) {
      if (id >= 0 && id < rows) continue;
      ThrowInvalidInput(
          "{}: trainable_token_indices has the token id {}, but '{}' has {} rows; is this an "
          "adapter of another model, or of one with a resized vocabulary?",
          peft.tensors->FileOf(*tokens.rows), id, name, rows);
    }
  }
  return change;
}

// The sum over ranks is kept in double: one rounding for the whole change.
void ApplyChange(const TableChange& change, std::int64_t first, std::int64_t hidden,
                 std::span<float> values) {
  const std::int64_t count = std::ssize(values) / hidden;
  std::vector<double> sum(change.rank > 0 ? hidden : 0);
  for (std::int64_t v = 0; change.rank > 0 && v < count; ++v) {
    float* row = values.data() + v * hidden;
    std::copy_n(row, hidden, sum.begin());
    for (std::int64_t r = 0; r < change.rank; ++r) {
      const double factor = change.scale * double{change.left[(first + v) * change.rank + r]};
      const float* right = change.right.data() + r * hidden;
      for (std::int64_t i = 0; i < hidden; ++i) sum[i] += factor * right[i];
    }
    for (std::int64_t i = 0; i < hidden; ++i) row[i] = static_cast<float>(sum[i]);
  }
  for (std::int64_t n = 0; n < std::ssize(change.ids); ++n) {
    const std::int64_t v = change.ids[n] - first;
    if (v < 0 || v >= count) continue;
    std::copy_n(change.rows.data() + n * hidden, hidden, values.data() + v * hidden);
  }
}

}  // namespace qlora
