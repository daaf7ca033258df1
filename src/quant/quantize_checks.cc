#include "quant/quantize_checks.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "base/matrix.h"
#include "base/shape.h"
#include "quant/block_encoder.h"
#include "quant/first_non_finite.h"

namespace qlora {

std::string QuantizeSubject(const std::string& name) {
  return name.empty() ? "quantize" : fmt::format("quantize: tensor '{}'", name);
}

// Weights of errors are finite and not negative; otherwise a larger error could count as a better
// one.
void CheckQuantizeOptions(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  const auto fail = [&](const std::string& what) {
    ThrowInvalidInput("{}: {}", QuantizeSubject(options.name), what);
  };
  CountValues(QuantizeSubject(options.name), std::array{rows, cols});
  const auto check_block = [&](const char* option, std::int64_t size) {
    if (size < 1) fail(fmt::format("expected {} >= 1, found {}", option, size));
    if (size > kMostValues) fail(fmt::format("expected {} <= 2^48, found {}", option, size));
  };
  check_block("block_size", options.block_size);
  if (options.scale_type == ScaleType::kDoubleBnb) {
    check_block("scaler_block_size", options.scaler_block_size);
  }
  if (options.importance.empty()) return;
  if (!options.scale_search || std::ssize(options.importance) != cols) {
    fail(fmt::format("importance needs scale_search and {} values, one per column; found {}", cols,
                     options.importance.size()));
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    if (!(options.importance[c] >= 0) || std::isinf(options.importance[c])) {
      fail(fmt::format("importance of column {} is {}; expected a finite value >= 0", c,
                       options.importance[c]));
    }
  }
}

void CheckDType(const ConstMatrixView& w, const std::string& name) {
  if (IsFloat(w.dtype)) return;
  ThrowInvalidInput("{}: expected F32, BF16 or F16 values, found {}", QuantizeSubject(name),
                    NameOf(w.dtype));
}

// The tasks only notice that there is such a value; which one is first is found here, so that the
// message does not depend on the number of threads.
void ThrowNotFinite(Context& context, const ConstMatrixView& w, const std::string& name) {
  const std::int64_t i = FirstNonFinite(context, w);
  QLORA_DCHECK(i >= 0);
  float value;
  GatherFloats(w, i, 1, &value);
  ThrowInvalidInput(
      "{}: value {} at index {} (row {}, column {}); expected finite values. Check the file for a "
      "damaged download or a diverged training run",
      QuantizeSubject(name), value, i, i / w.cols, i % w.cols);
}

void CheckStorage(std::span<const std::byte> storage, std::size_t bytes, const std::string& name) {
  // 64 bytes are a cache line and the widest vector: kernels stream to such addresses, and no line
  // is shared by two pieces.
  if (storage.size() >= bytes && reinterpret_cast<std::uintptr_t>(storage.data()) % 64 == 0) return;
  ThrowInvalidInput("{}: expected {} bytes of storage aligned to 64, found {}",
                    QuantizeSubject(name), bytes, storage.size());
}

}  // namespace qlora
