#include "base/matrix.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

#include "base/check.h"

namespace qlora {

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

std::vector<float> KaimingUniform(RandomKey key, std::int64_t rows, std::int64_t cols) {
  // kaiming_uniform_ with a = sqrt(5): sqrt(6 / ((1 + a^2) I)) = 1 / sqrt(I).
  const double bound = 1 / std::sqrt(static_cast<double>(cols));
  std::vector<float> values(rows * cols);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const double u = RandomUniform(key, static_cast<std::uint64_t>(i));
    values[i] = static_cast<float>(bound * (2 * u - 1));
  }
  return values;
}

void FillUniform(const MatrixView& m, std::uint64_t seed) {
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const auto index = static_cast<std::uint64_t>(r * m.cols + c) + seed;
      // Knuth's multiplicative hash: values without a pattern that a prefetcher or a row could meet
      // twice. 24 bits are exact in float32.
      const auto bits = static_cast<std::uint32_t>(index * 2654435761u) >> 8;
      const float value = static_cast<float>(bits) * 0x1p-23f - 1.0f;
      if (m.dtype == DType::kF32) {
        m.Row<float>(r)[c] = value;
      } else {
        m.Row<BFloat16>(r)[c] = ToBFloat16(value);
      }
    }
  }
}

// Keeps the stride of the whole matrix. A view without data, as in planning, stays without data.
std::vector<float> Transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols) {
  std::vector<float> out(values.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) out[c * rows + r] = values[r * cols + c];
  }
  return out;
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
  UploadWide(memory, values.data(), DType::kF32, 0, m);
}

// Uploads a piece at a time, so that the copy of a whole table of embeddings is never in memory.
void UploadWide(Memory& memory, const void* data, DType dtype, double shift, const MatrixView& m) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  const std::int64_t total = m.rows * m.cols;
  std::vector<std::byte> host(BytesOf(m.dtype, std::min(kPiece, total)));
  for (std::int64_t begin = 0; begin < total; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, total - begin);
    ConvertToWide(static_cast<const std::byte*>(data) + BytesOf(dtype, begin), dtype, shift,
                  {host.data(), m.dtype, 1, count, count});
    memory.Upload(host.data(), static_cast<std::byte*>(m.data) + BytesOf(m.dtype, begin),
                  BytesOf(m.dtype, count));
  }
}

// Waits for the ops that write m.
std::vector<double> DownloadReal(Memory& memory, const ConstMatrixView& m) {
  const std::int64_t count = m.rows * m.cols;
  std::vector<std::byte> host(BytesOf(m.dtype, count));
  memory.Download(m.data, host.data(), host.size());
  std::vector<double> values(count);
  const ConstMatrixView flat{host.data(), m.dtype, 1, count, count};
  for (std::int64_t i = 0; i < count; ++i) values[i] = RealAt(flat, i);
  return values;
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

void ConvertToWide(const void* data, DType dtype, double shift, MatrixView out, double factor) {
  const auto* bytes = static_cast<const std::byte*>(data);
  // memcpy, because files do not align values.
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
    const double sum = (shift == 0 ? double{value} : double{value} + shift) * factor;  // keeps -0
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

}  // namespace qlora
