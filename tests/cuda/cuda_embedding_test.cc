// A token embedding in host memory, on the way to the device.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/small_backends.h"
#include "pass/eval_memory.h"
#include "pass/random_decoder.h"

namespace qlora {
namespace {

class CudaEmbedding : public testing::TestWithParam<std::uint64_t> {};

// More rows than wait for their upload at once: a piece is gathered into the place of another when
// that has been uploaded.
TEST_P(CudaEmbedding, HasAllRowsOfALongPass) {
  DecoderConfig config = TinyConfig();
  config.vocab_size = 1000;
  RandomWeights weights(config, DType::kF32, 3);
  weights.GatherEmbedding();
  Context context(1);
  const std::unique_ptr<Backend> backend = OnDevice(GetParam())->Make(context, DType::kF32);
  const Decoder decoder(*backend, config, weights.get(), {DType::kF32, DType::kF32}, 64);
  const Batch batch = RandomBatch(config, std::vector<int>(2 * kStagedRows / 64, 64), 9);
  const ActivationShape shape = {
      .rows = batch.rows(), .head_rows = 1, .recompute = {}, .host_embedding = true};
  PassMemory memory(backend->memory(), BytesOfPass(config, {}, decoder.precision(), shape));
  Activations activations = LayoutActivations(memory, config, {}, decoder.precision(), shape);
  const PassInputs inputs = PrepareInputs(decoder, batch, {}, activations);
  Embed(decoder, inputs, activations);
  const auto found = Download<float>(backend->memory(), activations.layers[0].x_in);
  const ConstMatrixView& table = weights.get().embed.dense;
  ASSERT_EQ(std::ssize(found), batch.rows() * table.cols);
  for (std::int64_t n = 0; n < batch.rows(); ++n) {
    for (std::int64_t c = 0; c < table.cols; ++c) {
      ASSERT_EQ(found[n * table.cols + c], table.Row<float>(batch.ids[n])[c]) << "row " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaEmbedding, testing::Values(0, 1, 7));

}  // namespace
}  // namespace qlora
