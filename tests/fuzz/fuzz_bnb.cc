// Attacks the reader of bitsandbytes weights with pieces of arbitrary types, sizes and content;
// what it accepts is decoded in full and must be written again as the same weight.
#include <fuzzer/FuzzedDataProvider.h>

#include "fuzz_util.h"
#include "io/bnb.h"
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
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override {
    for (const TensorInfo& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    return std::as_bytes(std::span(bytes_[static_cast<std::size_t>(&tensor - tensors_.data())]));
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
  const TensorReader& reader() const { return reader_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::size_t next_ = 0;
  FakeReader reader_;
};

std::vector<float> Decoded(const BnbMatrix& matrix) {
  Context context(1);
  const QuantizedView& view = matrix.matrix.view();
  std::vector<float> values(static_cast<std::size_t>(view.size()));
  Dequantize(context, view, MakeView(values.data(), view.rows, view.cols));
  return values;
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  FuzzedDataProvider input(data, size);
  const std::string json = input.ConsumeRandomLengthString(400);
  Attack([&] { ParseBnbConfig(ParseJson(json, "config"), "config"); });

  FakeReader reader;
  constexpr DType kTypes[] = {DType::kU8, DType::kF32, DType::kBF16, DType::kI8};
  const bool fp4 = input.ConsumeBool();
  for (const char* piece : {"", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    if (input.ConsumeIntegralInRange(0, 15) == 0) continue;
    const DType dtype = kTypes[input.ConsumeIntegralInRange(0, 3)];
    const auto count = input.ConsumeIntegralInRange<std::int64_t>(0, 400);
    std::string bytes = input.ConsumeRandomLengthString(BytesOf(dtype, count));
    bytes.resize(BytesOf(dtype, static_cast<std::size_t>(count)), '\1');
    reader.Add({std::string("weight") + piece, dtype, {count}}, std::move(bytes));
  }
  reader.Add({fp4 ? "weight.quant_state.bitsandbytes__fp4" : "weight.quant_state.bitsandbytes__nf4",
              DType::kU8,
              {static_cast<std::int64_t>(json.size())}},
             json);
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
