// Attacks the reader of bitsandbytes weights: with pieces of arbitrary types, sizes and content,
// and with good weights of which one piece was changed. What it accepts is decoded in full and must
// be written again as the same weight.
#include <fuzzer/FuzzedDataProvider.h>

#include "fuzz_util.h"
#include "io/bnb.h"
#include "io/json.h"
#include "qlora/context.h"

namespace qlora {
namespace {

// Tensors in memory.
class FakeReader : public TensorReader {
 public:
  void Add(TensorInfo tensor, std::string bytes) {
    tensors_.push_back(std::move(tensor));
    bytes_.push_back(std::move(bytes));
  }
  void Change(std::size_t number, DType dtype, std::string bytes) {
    tensors_[number].dtype = dtype;
    tensors_[number].shape = {static_cast<std::int64_t>(bytes.size() / BytesOf(dtype, 1))};
    bytes.resize(tensors_[number].bytes());
    bytes_[number] = std::move(bytes);
  }
  const std::string& content(std::size_t number) const { return bytes_[number]; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override {
    for (const TensorInfo& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    return std::as_bytes(std::span(bytes_[&tensor - tensors_.data()]));
  }
  void Release(const TensorInfo&) const override {}
  std::string FileOf(const TensorInfo&) const override { return "fake"; }
  const StringMap& metadata() const override { return metadata_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> bytes_;
  StringMap metadata_;
};

// Takes what is written as tensors of a FakeReader.
class FakeWriter : public TensorWriter {
 public:
  explicit FakeWriter(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {}
  void Write(std::span<const std::byte> bytes) override {
    if (bytes.size() != tensors_[next_].bytes()) std::abort();
    reader_.Add(tensors_[next_++],
                std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void Shrink(std::int64_t elements) override { tensors_[next_].shape = {elements}; }
  void Finish() override {
    if (next_ != tensors_.size()) std::abort();
  }
  const FakeReader& reader() const { return reader_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::size_t next_ = 0;
  FakeReader reader_;
};

std::vector<float> Decoded(const BnbMatrix& matrix) {
  Context context(1);
  const QuantizedView& view = matrix.matrix.view();
  std::vector<float> values(view.size());
  Dequantize(context, view, MakeView(values.data(), view.rows, view.cols));
  return values;
}

constexpr DType kTypes[] = {DType::kU8, DType::kF32, DType::kBF16, DType::kI8};

// Any pieces around the JSON text.
FakeReader AnyPieces(FuzzedDataProvider& input, const std::string& json) {
  FakeReader reader;
  const bool fp4 = input.ConsumeBool();
  for (const char* piece : {"", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    if (input.ConsumeIntegralInRange(0, 15) == 0) continue;
    const DType dtype = kTypes[input.ConsumeIntegralInRange(0, 3)];
    const auto count = input.ConsumeIntegralInRange<std::int64_t>(0, 400);
    const std::size_t size = BytesOf(dtype, count);
    std::string bytes = input.ConsumeRandomLengthString(size);
    bytes.resize(size, '\1');
    reader.Add({std::string("weight") + piece, dtype, {count}}, std::move(bytes));
  }
  reader.Add({fp4 ? "weight.quant_state.bitsandbytes__fp4" : "weight.quant_state.bitsandbytes__nf4",
              DType::kU8,
              {static_cast<std::int64_t>(json.size())}},
             json);
  return reader;
}

// A weight as WriteBnb stores it, with one piece changed or none.
FakeReader ChangedWeight(FuzzedDataProvider& input) {
  const BnbLayout layout = {
      .type = input.ConsumeBool() ? QuantType::kNf4 : QuantType::kFp4,
      .dtype = input.ConsumeBool() ? DType::kBF16 : DType::kF32,
      .shape = {input.ConsumeIntegralInRange<std::int64_t>(1, 40),
                input.ConsumeIntegralInRange<std::int64_t>(1, 40)},
      .block_size = std::int64_t{32} << input.ConsumeIntegralInRange(0, 7),
      .double_quant = input.ConsumeBool(),
      .nested_block_size = std::int64_t{32} << input.ConsumeIntegralInRange(0, 7)};
  const std::vector<float> floats(256, input.ConsumeFloatingPointInRange(-2.0f, 2.0f));
  const std::vector<std::uint8_t> codes(1600, input.ConsumeIntegral<std::uint8_t>());
  QuantizedView view;
  view.packed = codes.data();
  view.rows = layout.shape[0];
  view.cols = layout.shape[1];
  view.block_size = layout.block_size;
  view.code = floats.data();
  view.scales = layout.double_quant ? static_cast<const void*>(codes.data()) : floats.data();
  if (layout.double_quant) {
    view.scale_type = ScaleType::kDoubleBnb;
    view.nested.map = view.nested.absmax = floats.data();
    view.nested.block_size = layout.nested_block_size;
    view.nested.offset = input.ConsumeFloatingPointInRange(-1e30f, 1e30f);
  }
  FakeWriter writer(BnbTensors("weight", layout));
  WriteBnb(writer, layout, view);
  writer.Finish();
  FakeReader reader = writer.reader();
  if (input.ConsumeBool()) {
    const auto number = input.ConsumeIntegralInRange<std::size_t>(0, reader.tensors().size() - 1);
    std::string bytes = reader.content(number);
    const auto at = input.ConsumeIntegralInRange<std::size_t>(0, bytes.size());
    const auto cut = input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - at);
    bytes.replace(at, cut, input.ConsumeRandomLengthString(64));
    reader.Change(number, kTypes[input.ConsumeIntegralInRange(0, 3)], std::move(bytes));
  }
  return reader;
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  FuzzedDataProvider input(data, size);
  const bool any = input.ConsumeBool();
  const std::string json = any ? input.ConsumeRandomLengthString(400) : "";
  if (any) Attack([&] { CheckBnbConfig(ParseJson(json, "config"), "config"); });
  const FakeReader reader = any ? AnyPieces(input, json) : ChangedWeight(input);
  Attack([&] {
    const BnbMatrix matrix = ReadBnb(reader, "weight");
    const std::vector<float> values = Decoded(matrix);
    FakeWriter writer(BnbTensors("weight", matrix.layout));
    WriteBnb(writer, matrix.layout, matrix.matrix.view());
    writer.Finish();
    const std::vector<float> again = Decoded(ReadBnb(writer.reader(), "weight"));
    if (std::memcmp(values.data(), again.data(), values.size() * sizeof(float)) != 0) std::abort();
  });
  return 0;
}
