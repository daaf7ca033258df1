// NF4Tensor over arrays of Python, in every form, and the same arrays back.
#include "nf4_tensor.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "array.h"
#include "base/check.h"
#include "base/shape.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

// Keeps the arrays of a tensor, and copies of arrays that cannot be read in place. Dropped with the
// interpreter's lock.
struct KeptArrays {
  std::list<Array> arrays;
  std::list<Floats> floats;
};

class Assembly {
 public:
  explicit Assembly(const TensorParts& parts) : parts_(parts) {}

  NF4Tensor Build() {
    SetShape();
    SetScales();
    SetCode();
    q_.packed = static_cast<const std::uint8_t*>(
        Add("quantized_data", parts_.quantized_data, DType::kU8, PackedBytes(q_.size())));
    if (!parts_.zero_point.is_none()) {
      q_.shifts = AddFloats("zero_point", parts_.zero_point, q_.blocks()).data();
    }
    // The tensor may be dropped by a thread without the lock, and arrays of Python are freed with
    // it alone.
    const std::shared_ptr<const void> owner(kept_.get(), [kept = kept_](const void*) mutable {
      const HeldLock lock;
      kept.reset();
    });
    // The deleter has the one reference that is left.
    kept_.reset();
    return {compat::Matrix(q_, owner), parts_.shape};
  }

 private:
  static void CheckCount(const char* name, std::int64_t found, std::int64_t expected) {
    if (found != expected)
      ThrowInvalidInput("{}: expected {} values, found {}", name, expected, found);
  }

  const void* Add(const char* name, const py::object& object, DType dtype, std::int64_t count) {
    // A list: pointers into its elements stay valid when others are added.
    const Array& array = kept_->arrays.emplace_back(name, object, DTypes{dtype});
    CheckCount(name, array.size(), count);
    return array.FlatData(dtype);
  }

  std::span<const float> AddFloats(const char* name, const py::object& object, std::int64_t count) {
    const Floats& floats = kept_->floats.emplace_back(name, object);
    CheckCount(name, std::ssize(floats.values()), count);
    const auto is_nan = [](float value) { return std::isnan(value); };
    if (std::ranges::any_of(floats.values(), is_nan)) ThrowInvalidInput("{}: found NaN", name);
    return floats.values();
  }

  void SetShape() {
    for (const std::int64_t size : {parts_.block_size, parts_.scaler_block_size}) {
      if (size >= 1 && size <= kMostValues) continue;
      ThrowInvalidInput("expected block sizes from 1 to 2^48, found {}", size);
    }
    const std::int64_t values = CountValues("shape", parts_.shape);
    if (parts_.shape.empty() || values == 0) {
      ThrowInvalidInput("shape: expected positive sizes, found {}", ShapeText(parts_.shape));
    }
    q_.cols = parts_.shape.back();
    q_.rows = values / q_.cols;
    q_.block_size = parts_.block_size;
    // Rows of whole blocks are cut alike by both rules, and the flat one is decoded faster.
    q_.row_blocks = parts_.row_blocks && q_.cols % q_.block_size != 0;
  }

  // The dtype of the scales tells their form.
  void SetScales() {
    const DType dtype = Array("scalers", parts_.scalers,
                              {DType::kF32, DType::kF16, DType::kBF16, DType::kU8, DType::kI8})
                            .dtype();
    const bool coded = dtype == DType::kU8 || dtype == DType::kI8;
    // Codes without factors, or factors without codes.
    if (coded == parts_.nested_scalers.is_none()) {
      ThrowInvalidInput(
          "scalers: expected floats, or with nested_scalers uint8 (bitsandbytes) or int8 (torchao) "
          "codes; found {} {} nested_scalers",
          NamesOf({dtype}), coded ? "without" : "with");
    }
    q_.scales = Add("scalers", parts_.scalers, dtype, q_.blocks());
    q_.scale_form = FormOf(dtype);
    if (coded) SetNestedScales();
    CheckScales(coded);
  }

  // Scales that no quantizer makes decode to NaN, or turn the order of values around. Scales in
  // codes may round to a little below 0.
  void CheckScales(bool coded) const {
    std::vector<float> scales(q_.blocks());
    compat::LoadScales(q_, 0, q_.blocks(), scales.data());
    const auto bad = std::find_if(scales.begin(), scales.end(), [&](float scale) {
      return !std::isfinite(scale) || (!coded && scale < 0);
    });
    if (bad == scales.end()) return;
    ThrowInvalidInput("scalers: block {} has the scale {}; expected finite numbers{}",
                      bad - scales.begin(), *bad, coded ? "" : " of 0 or more");
  }

  static compat::ScaleForm FormOf(DType dtype) {
    for (const auto form : {compat::ScaleForm::kF16, compat::ScaleForm::kBF16,
                            compat::ScaleForm::kDoubleBnb, compat::ScaleForm::kDoubleTorchao}) {
      if (ScaleDType(form) == dtype) return form;
    }
    return compat::ScaleForm::kF32;
  }

  void SetNestedScales() {
    q_.nested.block_size = parts_.scaler_block_size;
    q_.nested.offset = parts_.offset;
    q_.nested.absmax = AddFloats("nested_scalers", parts_.nested_scalers,
                                 BlockCount(q_.blocks(), parts_.scaler_block_size))
                           .data();
    if (q_.scale_form == compat::ScaleForm::kDoubleBnb) {
      q_.nested.map = AddFloats("nested_code", parts_.nested_code, 256).data();
      return;
    }
    const DType given = kept_->floats.back().dtype();
    // torchao has its factors in the type that it computes in.
    if (given == DType::kF16 || given == DType::kBF16) q_.scale_arithmetic = given;
  }

  void SetCode() {
    if (!parts_.nf4.is_none()) {
      q_.code = AddFloats("nf4", parts_.nf4, kNf4Codebook.size()).data();
    } else if (q_.scale_form == compat::ScaleForm::kDoubleTorchao) {
      // The values that torchao writes down with four decimals, rounded to that type.
      q_.code = compat::TorchaoCodebook(q_.scale_arithmetic).data();
    } else {
      q_.code = ParseQuantType(parts_.quant_type) == QuantType::kFp4 ? kFp4Codebook.data()
                                                                     : kNf4Codebook.data();
    }
  }

  const TensorParts& parts_;
  compat::View q_;
  std::shared_ptr<KeptArrays> kept_ = std::make_shared<KeptArrays>();
};

}  // namespace

NF4Tensor FromArrays(const TensorParts& parts) { return Assembly(parts).Build(); }

NF4Tensor FromDict(const py::dict& d) {
  const auto get = [&](const char* name) { return py::object(d[name]); };
  return FromArrays({.quantized_data = get("quantized_data"),
                     .scalers = get("scalers"),
                     .shape = get("shape").cast<std::vector<std::int64_t>>(),
                     .block_size = get("block_size").cast<std::int64_t>(),
                     .nested_scalers = get("nested_scalers"),
                     .nested_code = get("nested_code"),
                     .offset = get("offset").cast<float>(),
                     .scaler_block_size = get("scaler_block_size").cast<std::int64_t>(),
                     .nf4 = get("nf4"),
                     .zero_point = get("zero_point"),
                     .row_blocks = get("row_blocks").cast<bool>()});
}

py::dict ToDict(const NF4Tensor& t) {
  const compat::View& q = t.matrix.view();
  const bool torchao = q.scale_form == compat::ScaleForm::kDoubleTorchao;
  py::object nested_scalers = py::none();
  py::object nested_code = py::none();
  const std::int64_t nested = BlockCount(q.blocks(), q.nested.block_size);
  if (torchao) {  // in the dtype of the arithmetic
    nested_scalers =
        RoundedCopy({q.nested.absmax, static_cast<std::size_t>(nested)}, q.scale_arithmetic);
  } else if (q.nested.absmax != nullptr) {
    nested_scalers = Field(t, q.nested.absmax, DType::kF32, nested);
    nested_code = Field(t, q.nested.map, DType::kF32, 256);
  }
  py::object zero_point = py::none();
  if (q.shifts != nullptr) zero_point = Field(t, q.shifts, DType::kF32, q.blocks());
  // "nf4" holds the values themselves, not the name of a codebook, so that a later version
  // unpickles the same values.
  return py::dict("quantized_data"_a = PackedCodes(t),
                  "scalers"_a = Field(t, q.scales, ScaleDType(q.scale_form), q.blocks()),
                  "shape"_a = py::tuple(py::cast(t.shape)), "block_size"_a = q.block_size,
                  "nested_scalers"_a = nested_scalers, "nested_code"_a = nested_code,
                  "offset"_a = q.nested.offset, "scaler_block_size"_a = q.nested.block_size,
                  "nf4"_a = Field(t, q.code, DType::kF32, 16), "zero_point"_a = zero_point,
                  "row_blocks"_a = q.row_blocks);
}

}  // namespace qlora::python
