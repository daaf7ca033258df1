// Differential fuzzer: every SIMD target must give the bytes of the scalar code, for encoding,
// decoding and the scale search, whatever the values and scales.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "machine/simd_target.h"
#include "qlora/error.h"
#include "qlora/nf4_compat.h"

namespace qlora {
namespace {

// What one target makes of the input.
struct Outcome {
  bool rejected = false;
  std::vector<std::uint8_t> packed;
  std::vector<float> scales;
  std::vector<std::uint8_t> decoded[3];

  bool operator==(const Outcome& other) const {
    return rejected == other.rejected && packed == other.packed && decoded[0] == other.decoded[0] &&
           decoded[1] == other.decoded[1] && decoded[2] == other.decoded[2] &&
           scales.size() == other.scales.size() &&
           (scales.empty() ||
            std::memcmp(scales.data(), other.scales.data(), scales.size() * sizeof(float)) == 0);
  }
};

struct Input {
  compat::Options options;
  DType dtype;
  const void* values;
  std::int64_t n;
};

Outcome Run(Context& context, const Input& input) {
  Outcome out;
  compat::Matrix q;
  try {
    q = compat::Quantize(context, {input.values, input.dtype, 1, input.n, input.n}, input.options);
  } catch (const Error&) {
    out.rejected = true;
    return out;
  }
  out.packed.assign(q.view().packed, q.view().packed + PackedBytes(input.n));
  out.scales.resize(q.view().blocks());
  LoadScales(q.view(), 0, q.view().blocks(), out.scales.data());

  // Decode with scales as wild as the values themselves.
  compat::View wild = q.view();
  std::vector<float> scales(out.scales.size());
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const std::size_t at =
        b % (static_cast<std::size_t>(input.n) * BytesOf(input.dtype, 1) / 4 + 1);
    std::memcpy(&scales[b], static_cast<const char*>(input.values) + at * 2, 2);
    std::memcpy(reinterpret_cast<char*>(&scales[b]) + 2,
                static_cast<const char*>(input.values) + at, 2);
  }
  wild.scale_form = compat::ScaleForm::kF32;
  wild.scales = scales.data();
  wild.shifts = nullptr;
  constexpr DType kOutputs[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (std::size_t i = 0; i < 3; ++i) {
    out.decoded[i].resize(BytesOf(kOutputs[i], input.n));
    DequantizeRows(wild, 0, {out.decoded[i].data(), kOutputs[i], 1, input.n, input.n});
  }
  return out;
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size < 16) return 0;
  constexpr DType kInputs[] = {DType::kF32, DType::kBF16, DType::kF16};
  constexpr std::int64_t kBlockSizes[] = {32, 64, 96, 128, 7, 4096};
  Input input;
  input.options.type = data[0] & 1 ? QuantType::kFp4 : QuantType::kNf4;
  input.options.rule = data[0] & 2 ? compat::EncodeRule::kBnbCuda : compat::EncodeRule::kBnbCpu;
  input.options.scale_form = data[0] & 4 ? compat::ScaleForm::kF32 : compat::ScaleForm::kDoubleBnb;
  input.options.scale_search = (data[0] & 8) != 0;
  input.options.zero_point = (data[0] & 16) != 0;
  input.options.block_size = kBlockSizes[data[1] % 6];
  input.dtype = kInputs[data[2] % 3];
  const std::size_t each = BytesOf(input.dtype, 1);
  const std::vector<std::uint8_t> values(data + 4, data + 4 + (size - 4) / each * each);
  input.values = values.data();
  input.n = static_cast<std::int64_t>(values.size() / each);

  static Context context(1);
  SetSimdTarget(SimdTarget::kScalar);
  const Outcome expected = Run(context, input);
  for (const SimdTarget target : {SimdTarget::kAvx2, SimdTarget::kAvx512}) {
    if (std::ranges::count(SimdTargets(), target) == 0) break;
    SetSimdTarget(target);
    if (!(Run(context, input) == expected)) std::abort();
  }
  return 0;
}
