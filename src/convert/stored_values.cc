#include "convert/stored_values.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "config/families.h"
#include "model/checkpoint.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

float RateOf(float a_log) { return static_cast<float>(-std::exp(double{a_log})); }

// The A_log whose rate this is: log(-rate), or a neighbour, since both are rounded.
float LogOf(float rate) {
  const auto nearest = static_cast<float>(std::log(-double{rate}));
  constexpr float kMost = std::numeric_limits<float>::infinity();
  float above = nearest;
  float below = nearest;
  for (int i = 0; i < 4; ++i) {
    if (RateOf(above) == rate) return above;
    if (RateOf(below) == rate) return below;
    above = std::nextafter(above, kMost);
    below = std::nextafter(below, -kMost);
  }
  return nearest;
}

}  // namespace

StoredValues::StoredValues(const DecoderConfig& config, const TensorReader& reader) {
  const std::string prefix = DecoderPrefix(reader);
  const bool is_less_one = !config.one_plus_norm && FamilyOf(config.model_type, "").one_plus_norm;
  const auto add = [&](const ListedTensor& row, const std::string& name) {
    if (row.kind == TensorKind::kNorm && is_less_one) rows_[name] = {false, name};
    if (row.kind != TensorKind::kRate || reader.Find(RateName(name)) == nullptr) return;
    rows_[RateName(name)] = {true, name};
  };
  for (const DecoderTensor& row : DecoderTensors(config)) add(row, prefix + row.name);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    for (const LayerTensor& row : LayerTensors(config, l)) add(row, row.TensorIn(prefix, l));
  }
}

const std::string& StoredValues::NameOf(const std::string& name) const {
  const auto found = rows_.find(name);
  return found == rows_.end() ? name : found->second.name;
}

void StoredValues::Apply(const std::string& name, std::span<float> values) {
  const auto found = rows_.find(name);
  if (found == rows_.end()) return;
  for (float& value : values) {
    if (!found->second.is_rate) {
      value -= 1;
      continue;
    }
    const float rate = value;
    value = LogOf(rate);
    if (RateOf(value) != rate) ++rounded_;
  }
}

std::string StoredValues::Note() const {
  if (rounded_ == 0) return "";
  return fmt::format(
      "{} values of A_log are rounded: no float32 gives the rate that the file has in its place",
      rounded_);
}

}  // namespace qlora
