// Weights in 4 bits that are read as dense ones.
#include "model/decoded_bnb.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/matrix.h"
#include "io/bnb.h"
#include "io/float_encoding.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_util.h"
#include "qlora/nf4.h"

namespace qlora {
namespace {

TEST(DecodedBnbTest, AWeightOfSeveralPiecesIsWhole) {
  // Some more values than two pieces of decoding have.
  constexpr std::int64_t kCols = 1024;
  constexpr std::int64_t kRows = 2 * kPieceValues / kCols + 3;
  std::vector<float> values(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  }
  Context context(1);
  const QuantizeOptions options{.scale_type = ScaleType::kF32};
  const QuantizedMatrix matrix = Quantize(context, MakeView(values.data(), kRows, kCols), options);
  const BnbLayout layout{.type = options.type,
                         .dtype = DType::kF32,
                         .shape = {kRows, kCols},
                         .block_size = options.block_size,
                         .double_quant = false};
  const TemporaryFolder folder;
  const auto writer =
      CreateSafetensors(folder / "a.safetensors", BnbTensors("lm_head.weight", layout), {});
  WriteBnb(*writer, layout, matrix.view());
  writer->Finish();

  const auto reader = WithDecodedBnb(OpenSafetensors(folder / "a.safetensors"), {"lm_head.weight"});
  ASSERT_EQ(reader->tensors().size(), 1u);
  const TensorInfo& tensor = reader->tensors().front();
  EXPECT_EQ(tensor.shape, layout.shape);
  Dequantize(context, matrix.view(), MakeView(values.data(), kRows, kCols));
  EXPECT_TRUE(AsString(reader->Bytes(tensor)) == AsString(BytesOfVector(values)));
}

}  // namespace
}  // namespace qlora
