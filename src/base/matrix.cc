#include "base/matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace qlora {
namespace {

void SetReal(MatrixView m, std::int64_t r, std::int64_t c, double value) {
  switch (m.dtype) {
    case DType::kF32:
      m.Row<float>(r)[c] = static_cast<float>(value);
      return;
    case DType::kF64:
      m.Row<double>(r)[c] = value;
      return;
    case DType::kC128:
      m.Row<std::complex<double>>(r)[c] = value;
      return;
    default:
      ThrowRuntime("SetReal: {} is not supported", NameOf(m.dtype));
  }
}

}  // namespace

void FillKaiming(RandomKey key, MatrixView a) {
  const double bound = 1 / std::sqrt(static_cast<double>(a.cols));
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t i = 0; i < a.cols; ++i) {
      const double u = RandomUniform(key, static_cast<std::uint64_t>(r * a.cols + i));
      SetReal(a, r, i, bound * (2 * u - 1));
    }
  }
}

MatrixView Columns(const MatrixView& m, std::int64_t begin, std::int64_t count) {
  MatrixView out = m;
  out.cols = count;
  if (m.data != nullptr) {
    out.data = static_cast<std::byte*>(m.data) + BytesOf(m.dtype, begin);
  }
  return out;
}

ConstMatrixView Columns(const ConstMatrixView& m, std::int64_t begin, std::int64_t count) {
  ConstMatrixView out = m;
  out.cols = count;
  if (m.data != nullptr) {
    out.data = static_cast<const std::byte*>(m.data) + BytesOf(m.dtype, begin);
  }
  return out;
}

void UploadWide(Memory& memory, std::span<const float> values, const MatrixView& m) {
  QLORA_DCHECK(std::ssize(values) == m.rows * m.cols);
  std::vector<std::byte> host(BytesOf(m.dtype, values.size()));
  ConvertToWide(values.data(), DType::kF32, 0,
                {host.data(), m.dtype, 1, std::ssize(values), std::ssize(values)});
  memory.Upload(host.data(), m.data, host.size());
}

std::vector<double> DownloadReal(Memory& memory, const ConstMatrixView& m) {
  const std::int64_t count = m.rows * m.cols;
  std::vector<std::byte> host(BytesOf(m.dtype, count));
  memory.Download(m.data, host.data(), host.size());
  std::vector<double> values(count);
  const ConstMatrixView flat{host.data(), m.dtype, 1, count, count};
  for (std::int64_t i = 0; i < count; ++i) values[i] = RealAt(flat, i);
  return values;
}

void FillZero(MatrixView m) {
  QLORA_DCHECK(m.stride == m.cols);
  if (!m.empty()) std::memset(m.data, 0, BytesOf(m.dtype, m.rows * m.cols));
}

double RealAt(const ConstMatrixView& m, std::int64_t i) {
  switch (m.dtype) {
    case DType::kF32:
      return m.Row<float>(0)[i];
    case DType::kF64:
      return m.Row<double>(0)[i];
    case DType::kC128:
      return m.Row<std::complex<double>>(0)[i].real();
    default:
      ThrowRuntime("RealAt: {} is not supported", NameOf(m.dtype));
  }
}

void ConvertToWide(const void* data, DType dtype, double shift, MatrixView out) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const auto read = [&]<typename T>(T value, std::int64_t i) {
    std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  };
  for (std::int64_t i = 0; i < out.cols; ++i) {
    float value = 0;
    switch (dtype) {
      case DType::kF32:
        value = read(float{}, i);
        break;
      case DType::kF16:
        value = ToFloat(read(Float16{}, i));
        break;
      case DType::kBF16:
        value = ToFloat(read(BFloat16{}, i));
        break;
      default:
        ThrowRuntime("ConvertToWide: {} is not supported", NameOf(dtype));
    }
    const double sum = shift == 0 ? double{value} : double{value} + shift;  // keeps -0
    switch (out.dtype) {
      case DType::kF32:
        out.Row<float>(0)[i] = static_cast<float>(sum);
        break;
      case DType::kF64:
        out.Row<double>(0)[i] = sum;
        break;
      case DType::kC128:
        out.Row<std::complex<double>>(0)[i] = sum;
        break;
      default:
        ThrowRuntime("ConvertToWide: {} is not a wide type", NameOf(out.dtype));
    }
  }
}

namespace {

// A float is NaN or Inf exactly when its exponent bits are all ones.
template <typename Bits>
std::int64_t FirstWithExponent(Context& context, const ConstMatrixView& m, Bits exponent) {
  const std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> first{none};
  context.ParallelFor(m.rows, [&](std::int64_t r, int) {
    const Bits* row = m.Row<Bits>(r);
    bool bad = false;
    for (std::int64_t c = 0; c < m.cols; ++c) bad |= (row[c] & exponent) == exponent;
    if (!bad) return;
    const Bits* at =
        std::find_if(row, row + m.cols, [&](Bits bits) { return (bits & exponent) == exponent; });
    const std::int64_t index = r * m.cols + (at - row);
    std::int64_t seen = first.load(std::memory_order_relaxed);
    while (index < seen && !first.compare_exchange_weak(seen, index)) {
    }
  });
  return first == none ? -1 : first.load();
}

}  // namespace

std::int64_t FirstNonFinite(Context& context, const ConstMatrixView& m) {
  switch (m.dtype) {
    case DType::kF32:
      return FirstWithExponent<std::uint32_t>(context, m, 0x7f800000);
    case DType::kF16:
      return FirstWithExponent<std::uint16_t>(context, m, 0x7c00);
    case DType::kBF16:
      return FirstWithExponent<std::uint16_t>(context, m, 0x7f80);
    default:
      ThrowRuntime("FirstNonFinite: {} is not supported", NameOf(m.dtype));
  }
}

}  // namespace qlora
