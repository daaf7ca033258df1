#include "io/peft/adapter_source.h"

#include <cmath>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "io/gguf_path.h"

namespace qlora {

namespace fs = std::filesystem;

AdapterSource ParseAdapterSource(std::string_view text) {
  AdapterSource source{std::string(text), 1};
  std::error_code ignored;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || fs::exists(source.path, ignored)) {
    return source;
  }
  const std::string_view number = text.substr(colon + 1);
  const auto weight = ParseNumber<double>(number);
  if (!weight && !fs::exists(text.substr(0, colon), ignored)) return source;
  if (!weight || !std::isfinite(*weight)) {
    ThrowInvalidInput("adapter {}: expected a finite weight behind the colon, found {}", text,
                      number);
  }
  return {std::string(text.substr(0, colon)), *weight};
}

AdapterFormat FormatOfAdapter(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && HasGgufMagic(path)) return AdapterFormat::kGguf;
  const bool mlx = fs::exists(path / "adapters.safetensors", ignored) &&
                   !fs::exists(path / "adapter_model.safetensors", ignored);
  return mlx ? AdapterFormat::kMlx : AdapterFormat::kPeft;
}

}  // namespace qlora
