// Forms that bitsandbytes' layout does not have: what they mean, and the way to that layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "quant/oracle.h"
#include "quant/quant_test_util.h"

namespace qlora::compat {
namespace {

using testing::HasSubstr;

constexpr ScaleForm kForms[] = {ScaleForm::kF32, ScaleForm::kF16, ScaleForm::kBF16,
                                ScaleForm::kDoubleBnb, ScaleForm::kDoubleTorchao};

std::vector<std::uint8_t> ScaleBytesOf(const View& q, std::int64_t bytes_each) {
  const auto* stored = static_cast<const std::uint8_t*>(q.scales);
  return {stored, stored + q.blocks() * bytes_each};
}

// Every form of a matrix (rows, cols): with and without row blocks and zero points.
template <typename Fn>
void ForEachForm(Context& context, std::int64_t rows, std::int64_t cols, const Fn& fn) {
  const std::vector<float> x = Normal(rows * cols, static_cast<std::uint64_t>(cols));
  for (const ScaleForm form : kForms) {
    for (int kind = 0; kind < 4; ++kind) {
      const Options options = {
          .scale_form = form, .row_blocks = kind % 2 == 1, .zero_point = kind / 2 == 1};
      fn(options, Quantize(context, MakeView(x.data(), rows, cols), options));
    }
  }
}

TEST(Forms, SizesThatNoMatrixHasAreRefused) {
  constexpr std::int64_t kHuge = (std::int64_t{1} << 61) + 1;
  EXPECT_THROW(Matrix(View{.rows = kHuge, .cols = 8}, nullptr), Error);
  EXPECT_THROW(Matrix(View{.rows = -1, .cols = 8}, nullptr), Error);
  EXPECT_THROW(Matrix(View{.rows = 1, .cols = 8, .block_size = kHuge}, nullptr), Error);
  EXPECT_THROW(StorageBytes(kHuge, 8, Options()), Error);
  EXPECT_THROW(StorageBytes(8, 8, Options{.block_size = kHuge}), Error);
  EXPECT_THROW(qlora::StorageBytes(kHuge, 8, QuantizeOptions()), Error);
}

TEST(RowBlocks, AreRowsQuantizedAlone) {
  constexpr std::int64_t kRows = 9;
  for (const std::int64_t cols : {1, 5, 64, 65, 100, 128, 333}) {
    const std::vector<float> x = Normal(kRows * cols, static_cast<std::uint64_t>(cols));
    for (const std::int64_t block : {32, 64, 4096}) {
      Context context(2);
      const Matrix q =
          Quantize(context, MakeView(x.data(), kRows, cols),
                   Options{.block_size = block, .scale_form = ScaleForm::kF32, .row_blocks = true});
      const std::vector<std::uint8_t> codes = CodesOf(q.view());
      const std::vector<float> scales = ScalesOf(q.view());
      const std::int64_t effective = std::min(block, cols);
      const auto per_row = static_cast<std::size_t>(BlockCount(cols, effective));
      ASSERT_EQ(scales.size(), kRows * per_row);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const std::span<const float> row(x.data() + r * cols, static_cast<std::size_t>(cols));
        const OracleBlocks expected = OracleQuantize(row, effective, QuantType::kNf4);
        const auto first_code = codes.begin() + r * cols;
        EXPECT_TRUE(std::equal(expected.codes.begin(), expected.codes.end(), first_code));
        const auto first_scale = scales.begin() + r * static_cast<std::int64_t>(per_row);
        EXPECT_TRUE(std::equal(expected.scales.begin(), expected.scales.end(), first_scale));
      }
    }
  }
}

TEST(ZeroPoint, FollowsTheMiddleOfTheRange) {
  const std::vector<float> x = Uniform(1 << 18, 4, 1, 5);
  const Matrix plain = QuantizeRowAs(x, {.scale_form = ScaleForm::kF32});
  const Matrix shifted = QuantizeRowAs(x, {.scale_form = ScaleForm::kF32, .zero_point = true});
  EXPECT_GT(Compare(x, DecodedOf(plain.view())).rmse, 0.25);
  EXPECT_LE(Compare(x, DecodedOf(shifted.view())).rmse, 0.11);
  EXPECT_FALSE(AsBnb(shifted.view()));
  EXPECT_EQ(shifted.bytes(), plain.bytes() + 4 * static_cast<std::size_t>(plain.view().blocks()));
  const std::vector<float> constant(1000, -7.5f);
  for (const float y : DecodedOf(QuantizeRowAs(constant, {.zero_point = true}).view())) {
    ASSERT_EQ(y, -7.5f);
  }
}

TEST(Forms, BnbFormsAreThoseOfTheCore) {
  const std::vector<float> x = Normal(64 * 100 + 7, 3);
  for (const bool nested : {false, true}) {
    const ScaleType type = nested ? ScaleType::kDoubleBnb : ScaleType::kF32;
    const QuantizedMatrix core = QuantizeRow(x, {.scale_type = type, .scale_search = true});
    const Matrix same = QuantizeRowAs(x, OptionsOf({.scale_type = type, .scale_search = true}));
    EXPECT_EQ(PackedOf(core.view()), PackedOf(same.view()));
    EXPECT_EQ(ScalesOf(core.view()), ScalesOf(same.view()));
    EXPECT_EQ(core.bytes(), same.bytes());
    EXPECT_EQ(core.bits_per_weight(), same.bits_per_weight());
    const Matrix shared = core;
    EXPECT_EQ(shared.view().packed, core.view().packed);
    const auto back = AsBnb(shared.view());
    ASSERT_TRUE(back);
    EXPECT_EQ(back->scales, core.view().scales);
    EXPECT_EQ(back->nested.map, core.view().nested.map);
    EXPECT_EQ(back->scale_type, type);
  }
}

TEST(Forms, ConversionKeepsEveryValue) {
  Context context(2);
  ForEachForm(context, 11, 77, [&](const Options& options, const Matrix& q) {
    const bool plain = !options.row_blocks && !options.zero_point;
    const auto bnb = ConvertToBnb(q);
    ASSERT_EQ(bnb.has_value(), plain);
    if (!plain) return;
    EXPECT_EQ(bnb->view().packed, q.view().packed);
    EXPECT_EQ(ScalesOf(bnb->view()), ScalesOf(q.view()));
    EXPECT_EQ(DecodedOf(bnb->view()), DecodedOf(q.view()));
  });
}

TEST(Forms, AnyRowsDecodeLikeTheWhole) {
  Context context(2);
  for (const std::int64_t cols : {1, 31, 64, 77, 200}) {
    constexpr std::int64_t kRows = 13;
    ForEachForm(context, kRows, cols, [&](const Options&, const Matrix& q) {
      std::vector<float> whole(kRows * cols);
      Dequantize(context, q.view(), MakeView(whole.data(), kRows, cols));
      EXPECT_EQ(DecodedOf(q.view()), whole);
      std::vector<float> out(3 * cols + 1, -1.0f);
      DequantizeRows(q.view(), 5, MakeView(out.data(), 3, cols));
      EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, whole.begin() + 5 * cols));
      EXPECT_EQ(out.back(), -1.0f);
      EXPECT_THROW(DequantizeRows(q.view(), kRows - 2, MakeView(out.data(), 3, cols)), Error);
      EXPECT_THROW(DequantizeRows(q.view(), -1, MakeView(out.data(), 3, cols)), Error);
      EXPECT_THROW(Dequantize(context, q.view(), MakeView(out.data(), 3, cols)), Error);
    });
  }
}

TEST(Forms, SixteenBitOutputIsTheRoundedFloat) {
  Context context(2);
  ForEachForm(context, 9, 101, [&](const Options&, const Matrix& q) {
    const std::vector<float> expected = DecodedOf(q.view());
    std::vector<BFloat16> brain(expected.size());
    std::vector<Float16> half(expected.size());
    Dequantize(context, q.view(), MakeView(brain.data(), 9, 101));
    Dequantize(context, q.view(), MakeView(half.data(), 9, 101));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(brain[i].bits, ToBFloat16(expected[i]).bits);
      ASSERT_EQ(half[i].bits, ToFloat16(expected[i]).bits);
    }
  });
}

TEST(Forms, StridedRowsAndThreadsChangeNothing) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kCols = 51;
  constexpr std::int64_t kStride = 60;
  const std::vector<float> wide = Normal(kRows * kStride, 5);
  std::vector<float> dense;
  for (std::int64_t r = 0; r < kRows; ++r) {
    dense.insert(dense.end(), wide.begin() + r * kStride, wide.begin() + r * kStride + kCols);
  }
  Context one(1);
  Context three(3);
  ForEachForm(one, 1, 1, [&](Options options, const Matrix&) {
    options.block_size = 32;
    const Matrix a = Quantize(three, {wide.data(), DType::kF32, kRows, kCols, kStride}, options);
    const Matrix b = Quantize(one, MakeView(dense.data(), kRows, kCols), options);
    EXPECT_EQ(PackedOf(a.view()), PackedOf(b.view()));
    EXPECT_EQ(ScalesOf(a.view()), ScalesOf(b.view()));
    EXPECT_EQ(DecodedOf(a.view()), DecodedOf(b.view()));
  });
}

TEST(Forms, ScaleSearchHoldsForAll) {
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kCols = 100;
  Context context(2);
  const std::vector<float> w = Normal(kRows * kCols, 5);
  const std::vector<float> ones(kCols, 1.0f);
  for (const bool row_blocks : {false, true}) {
    for (const bool zero_point : {false, true}) {
      Options options = {
          .scale_form = ScaleForm::kF32, .row_blocks = row_blocks, .zero_point = zero_point};
      const auto rmse = [&] {
        return Compare(w, DecodedOf(
                              Quantize(context, MakeView(w.data(), kRows, kCols), options).view()))
            .rmse;
      };
      const double absmax = rmse();
      options.scale_search = true;
      const double searched = rmse();
      EXPECT_LT(searched, 0.96 * absmax);
      options.importance = ones;
      EXPECT_EQ(rmse(), searched);
    }
  }
}

TEST(Forms, ScalesComeBackAsTheMatrixReadsThem) {
  const std::vector<float> x = Normal(64 * 600, 3);
  const std::vector<float> scales =
      ScalesOf(QuantizeRow(x, {.scale_type = ScaleType::kF32}).view());
  for (const ScaleForm form : {ScaleForm::kDoubleBnb, ScaleForm::kDoubleTorchao}) {
    for (const std::int64_t block : {1, 2, 100, 256, 5000}) {
      const DoubleQuantizedScales twice = DoubleQuantizeScales(scales, form, block);
      const Matrix nested = QuantizeRowAs(x, {.scale_form = form, .scaler_block_size = block});
      EXPECT_EQ(twice.offset, nested.view().nested.offset);
      EXPECT_EQ(twice.codes, ScaleBytesOf(nested.view(), 1));
      std::vector<float> found(600);
      DequantizeScales(twice.codes, twice.nested_scales, twice.offset, form, block, found);
      EXPECT_EQ(found, ScalesOf(nested.view()));
      EXPECT_THROW(DequantizeScales(twice.codes, twice.nested_scales, twice.offset, form, block,
                                    std::span(found).first(599)),
                   Error);
    }
  }
  EXPECT_THROW(DoubleQuantizeScales(scales, ScaleForm::kF16), Error);
}

TEST(Forms, QuantizingWhatWasDequantizedChangesNothing) {
  const std::vector<float> x = Normal(50'003, 6, 0.02);
  for (const ScaleForm form : kForms) {
    const Options options = {.scale_form = form};
    const Matrix q = QuantizeRowAs(x, options);
    const Matrix again = QuantizeRowAs(DecodedOf(q.view()), options);
    EXPECT_EQ(PackedOf(q.view()), PackedOf(again.view()));
    if (form == ScaleForm::kF16 || form == ScaleForm::kBF16) {
      EXPECT_EQ(ScaleBytesOf(q.view(), 2), ScaleBytesOf(again.view(), 2));
    }
  }
}

TEST(Forms, BlocksOfZerosAndConstantsSurvive) {
  std::vector<float> x = Normal(64 * 600, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i / 64 % 3 == 0) x[i] = 0;
  }
  for (const ScaleForm form : kForms) {
    const std::vector<float> y = DecodedOf(QuantizeRowAs(x, {.scale_form = form}).view());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) {
        ASSERT_EQ(y[i], 0.0f) << i;
      }
    }
  }
  const std::vector<float> constant(5000, -3.25f);
  for (const float y :
       DecodedOf(QuantizeRowAs(constant, {.scale_form = ScaleForm::kDoubleTorchao}).view())) {
    ASSERT_NEAR(y, -3.25f, 4e-6);
  }
}

TEST(Forms, StorageIsFilledAndNotExceeded) {
  const std::vector<float> x = Normal(1000, 9);
  const ConstMatrixView w = MakeView(x.data(), 10, 100);
  Context context(1);
  const Options options = {.row_blocks = true, .zero_point = true};
  const std::size_t bytes = StorageBytes(10, 100, options);
  std::vector<std::byte> memory(bytes + 128, std::byte{0xee});
  void* start = memory.data();
  std::size_t room = bytes + 64;
  ASSERT_NE(std::align(64, bytes, start, room), nullptr);
  const std::span<std::byte> storage(static_cast<std::byte*>(start), bytes);
  const View q = QuantizeInto(context, w, options, storage);
  EXPECT_EQ(DecodedOf(q), DecodedOf(Quantize(context, w, options).view()));
  EXPECT_EQ(storage.data()[bytes], std::byte{0xee}) << "wrote past the storage";
  EXPECT_THROW(QuantizeInto(context, w, options, storage.first(bytes - 1)), Error);
}

TEST(Forms, BitsOfOneWeight) {
  const double halves[] = {4.5, 4.25, 4.125, 4.0625};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(BitsPerWeight({.block_size = 32 << i, .scale_form = ScaleForm::kF16}), halves[i]);
  }
  EXPECT_EQ(BitsPerWeight({.scale_form = ScaleForm::kF32, .zero_point = true}), 5);
  EXPECT_EQ(BitsPerWeight({}), qlora::BitsPerWeight({}));
}

TEST(Forms, RejectWhatTheyCannotHold) {
  Context context(1);
  std::vector<float> x(64, 1e5f);
  const auto message = [&](const Options& options) {
    return MessageOf([&] { Quantize(context, MakeView(x.data(), 1, std::ssize(x)), options); });
  };
  EXPECT_THAT(message({.block_size = 0, .rule = EncodeRule::kBnbCuda}), HasSubstr("block_size"));
  EXPECT_THAT(message({.scale_form = ScaleForm::kF16}), HasSubstr("65504"));
  EXPECT_THAT(message({.type = QuantType::kFp4, .rule = EncodeRule::kTorchao}), HasSubstr("FP4"));
  x[40] = std::nanf("");
  EXPECT_THAT(message({.zero_point = true, .name = "w"}), HasSubstr("'w': value nan at index 40"));
  EXPECT_THAT(message({.rule = EncodeRule::kTorchao}), HasSubstr("index 40"));
  x = {3.4e38f, -1.0f};
  EXPECT_THAT(message({.scale_form = ScaleForm::kBF16}), HasSubstr("bfloat16"));
  x = {3e38f, -3e38f};
  EXPECT_EQ(DecodedOf(QuantizeRowAs(x, {.zero_point = true}).view()), x);
}

}  // namespace
}  // namespace qlora::compat
