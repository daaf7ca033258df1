// Weights on the CUDA backend have the bits of those on the CPU: quantized, and decoded.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantizer.h"
#include "backend/test_util.h"
#include "backend/test_weight.h"
#include "base/arena.h"
#include "cuda/test_device.h"
#include "qlora/error.h"
#include "quant/encode.h"
#include "quant/layout.h"

namespace qlora::testing_util {
namespace {

class CudaQuantize : public testing::Test {
 protected:
  CudaQuantize()
      : device_(MakeTestDevice(1)),
        backend_(cuda::MakeBackendOn(context_, device_, DType::kBF16)) {}

  Memory& memory() { return device_->memory(); }

  // The stored bytes and the offset of w.
  void ExpectSameBits(const ConstMatrixView& w, const QuantizeOptions& options,
                      std::int64_t staged_bytes = cuda::kStagedBytes) {
    const std::size_t bytes = StorageBytes(w.rows, w.cols, options);
    Arena on_host(bytes);
    const QuantizedView expected =
        QuantizeInto(context_, w, options, {on_host.data(), on_host.bytes()});
    Arena on_device(bytes, memory());
    Carver carver(on_device);
    const MatrixView storage = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
    const QuantizedView found =
        cuda::QuantizeOn(context_, *device_, tables_, w, options, storage, staged_bytes);
    EXPECT_EQ(found.nested.offset, expected.nested.offset);
    EXPECT_EQ(found.block_size, expected.block_size);
    const auto same = [&](const char* what, const void* device, const void* host,
                          std::size_t count) {
      std::vector<std::byte> copy(count);
      memory().Download(device, copy.data(), count);
      EXPECT_EQ(std::memcmp(copy.data(), host, count), 0) << what;
    };
    same("packed", found.packed, expected.packed, PackedBytes(expected.size()));
    same("scales", found.scales, expected.scales,
         expected.blocks() * ScaleBytes(expected.scale_type));
    same("code", found.code, expected.code, 16 * sizeof(float));
    if (expected.scale_type != ScaleType::kDoubleBnb) return;
    same("map", found.nested.map, expected.nested.map, 256 * sizeof(float));
    same("absmax", found.nested.absmax, expected.nested.absmax,
         BlockCount(expected.blocks(), expected.nested.block_size) * sizeof(float));
  }

  Context context_{1};
  std::shared_ptr<cuda::Device> device_;
  cuda::Tables tables_{device_->memory()};
  std::unique_ptr<Backend> backend_;
  std::vector<Arena> arenas_;
};

TEST_F(CudaQuantize, BitsOfTheCpu) {
  std::uint64_t seed = 5000;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const ScaleType scale_type : {ScaleType::kF32, ScaleType::kDoubleBnb}) {
      for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
        for (const std::int64_t block_size : {2, 32, 50, 64, 256}) {
          Random random(++seed);
          Matrix w = random.Normal(dtype, 37, 131, 0.3);
          for (std::int64_t c = 0; c < 131; ++c) w.Set(3, c, 0);  // blocks of zeros
          w.Set(5, 7, 1e-39);
          std::vector<std::byte> packed(BytesOf(dtype, 37 * 131));
          for (std::int64_t r = 0; r < 37; ++r) {
            std::memcpy(packed.data() + BytesOf(dtype, r * 131),
                        static_cast<const std::byte*>(std::as_const(w).view().data) +
                            BytesOf(dtype, r * w.view().stride),
                        BytesOf(dtype, 131));
          }
          SCOPED_TRACE(seed);
          ExpectSameBits({packed.data(), dtype, 37, 131, 131}, {.type = type,
                                                                .block_size = block_size,
                                                                .scale_type = scale_type,
                                                                .scaler_block_size = 60});
        }
      }
    }
  }
}

// A weight that is uploaded in parts, of which the last is short.
TEST_F(CudaQuantize, InPartsTheBitsAreTheSame) {
  Random random(5050);
  std::vector<float> w(37 * 131);
  for (float& value : w) value = static_cast<float>(random.Below(2001) - 1000) / 1000;
  const ConstMatrixView view = MakeView(std::as_const(w).data(), 37, 131);
  ExpectSameBits(view, {.block_size = 32}, 4096);
  ExpectSameBits(view, {.block_size = 50, .scale_type = ScaleType::kF32}, 1000);
}

// More scales of a nested block than a block of threads takes at once.
TEST_F(CudaQuantize, LongNestedBlocksHaveTheSameBits) {
  Random random(5060);
  std::vector<float> w(40 * 64);
  for (float& value : w) value = static_cast<float>(random.Below(2001) - 1000) / 1000;
  ExpectSameBits(MakeView(std::as_const(w).data(), 40, 64),
                 {.block_size = 2, .scaler_block_size = 600});
}

// A short last block divides, the others multiply by a reciprocal: on values for which the two give
// different codes.
TEST_F(CudaQuantize, AShortLastBlockDivides) {
  const EncodeTable& table = EncodeTableOf(QuantType::kNf4);
  std::vector<float> w = {1};
  for (float absmax = 0.1f; w.size() < 40; absmax += 0.001f) {
    w.assign(1, absmax);
    for (const float threshold : table.thresholds) {
      float x = threshold * absmax;
      for (int step = 0; step < 3; ++step) x = std::nextafter(x, -1.0f);
      for (int step = 0; step < 6; ++step, x = std::nextafter(x, 1.0f)) {
        if ((x / absmax > threshold) != (x * (1 / absmax) > threshold)) w.push_back(x);
      }
    }
    if (w.size() > 4) break;
  }
  ASSERT_GT(w.size(), 4u);
  ExpectSameBits(MakeView(std::as_const(w).data(), 1, std::ssize(w)), {.block_size = 64});
}

// Padded rows, odd blocks and the search for scales, which the host does.
TEST_F(CudaQuantize, OtherFormsHaveTheSameBits) {
  Random random(5100);
  const Matrix padded = random.Normal(DType::kF32, 9, 70, 0.3);
  const std::vector<float> zeros(64);
  ExpectSameBits(padded.view(), {});
  ExpectSameBits(MakeView(zeros.data(), 1, 64), {});
  ExpectSameBits(MakeView(zeros.data(), 1, 63), {.block_size = 5});
  ExpectSameBits(padded.view(), {.scale_search = true});
}

TEST_F(CudaQuantize, ValuesThatAreNotFiniteAreErrors) {
  std::vector<float> w(3 * 64, 1.0f);
  w[70] = std::numeric_limits<float>::quiet_NaN();
  const QuantizeOptions options = {.name = "a.weight"};
  Arena storage(StorageBytes(3, 64, options), memory());
  Carver carver(storage);
  const MatrixView room = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(storage.bytes()));
  try {
    backend_->Quantize(MakeView(std::as_const(w).data(), 3, 64), options, room);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a.weight"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("index 70"), std::string::npos) << error.what();
  }
}

// Any part of a weight, in float32 and rounded to bfloat16; and parts of whole words of 8 values,
// also of weights that begin between words.
TEST_F(CudaQuantize, DecodedBitsOfTheCpu) {
  std::uint64_t seed = 5200;
  for (const WeightKind kind : {WeightKind::kNf4, WeightKind::kNf4DoubleBnb,
                                WeightKind::kNf4DoubleBnb100, WeightKind::kNf4Block128}) {
    for (const std::int64_t cols : {33, 90, 192, 320}) {
      for (const auto& [dtype, words] :
           {std::pair{DType::kF32, false}, std::pair{DType::kBF16, false},
            std::pair{DType::kBF16, true}}) {
        Random random(++seed);
        const TestWeight weight(kind, DType::kF32, 41, cols, DType::kF64, random);
        const std::int64_t row = random.Below(41);
        const std::int64_t col = words ? random.Below(cols / 8) * 8 : random.Below(cols);
        Matrix part(dtype, 41 - row, cols - col, words ? random.Below(3) * 8 : random.Below(9));
        Matrix all(dtype, 41, cols);
        DequantizeRows(weight.view().quantized, 0, all.view());

        const auto upload = [&](const void* host, std::size_t bytes) {
          arenas_.push_back(Arena(bytes, memory()));
          memory().Upload(host, arenas_.back().data(), bytes);
          return arenas_.back().data();
        };
        QuantizedView q = weight.view().quantized;
        const std::size_t shift = 2 * (seed % 2);
        std::vector<std::uint8_t> packed(shift + PackedBytes(q.size()));
        std::memcpy(packed.data() + shift, q.packed, PackedBytes(q.size()));
        q.packed =
            reinterpret_cast<const std::uint8_t*>(upload(packed.data(), packed.size())) + shift;
        q.scales = upload(q.scales, q.blocks() * ScaleBytes(q.scale_type));
        q.code = reinterpret_cast<const float*>(upload(q.code, 16 * sizeof(float)));
        if (q.scale_type == ScaleType::kDoubleBnb) {
          const std::int64_t nested = BlockCount(q.blocks(), q.nested.block_size);
          q.nested.map = reinterpret_cast<const float*>(upload(q.nested.map, 256 * sizeof(float)));
          q.nested.absmax =
              reinterpret_cast<const float*>(upload(q.nested.absmax, nested * sizeof(float)));
        }
        MatrixView out = part.view();
        const std::size_t bytes = BytesOf(dtype, (out.rows - 1) * out.stride + out.cols);
        void* on_device = upload(out.data, bytes);
        void* on_host = out.data;
        out.data = on_device;
        cuda::DecodeWeight(device_->runtime().stream(), {q, row, col, out});
        memory().Download(on_device, on_host, bytes);
        EXPECT_TRUE(part.GuardsIntact());
        for (std::int64_t r = 0; r < part.rows(); ++r) {
          for (std::int64_t c = 0; c < part.cols(); ++c) {
            ASSERT_EQ(part(r, c), all(row + r, col + c)) << seed << ": " << r << ", " << c;
          }
        }
        arenas_.clear();
      }
    }
  }
}

// Elements of whole words are counted in 32 bits.
TEST_F(CudaQuantize, OnlyWeightsOfAtMost32BitsAreDecodedByWords) {
  const auto by_words = [&](std::int64_t rows, std::uintptr_t packed) {
    QuantizedView q;
    q.packed = reinterpret_cast<const std::uint8_t*>(packed);
    q.rows = rows;
    q.cols = 64;
    const MatrixView out = {reinterpret_cast<std::byte*>(std::uintptr_t{256}), DType::kBF16, 1, 64,
                            64};
    return cuda::DecodesWords({q, rows - 1, 0, out});
  };
  constexpr std::int64_t kRows = std::int64_t{1} << 26;
  EXPECT_TRUE(by_words(kRows, 4));
  EXPECT_FALSE(by_words(kRows + 1, 4));
  EXPECT_FALSE(by_words(kRows, 2));
}

}  // namespace
}  // namespace qlora::testing_util
