#include "io/peft/adapter_source.h"

#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/file.h"
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
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), source.weight);
  const bool is_number = error == std::errc() && end == number.data() + number.size();
  if (!is_number && !fs::exists(text.substr(0, colon), ignored)) return {source.path, 1};
  if (!is_number || !std::isfinite(source.weight)) {
    ThrowInvalidInput("adapter {}: expected a finite weight behind the colon, found {}", text,
                      number);
  }
  source.path = text.substr(0, colon);
  return source;
}

AdapterFormat FormatOfAdapter(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && HasGgufMagic(path)) return AdapterFormat::kGguf;
  const bool mlx = fs::exists(path / "adapters.safetensors", ignored) &&
                   !fs::exists(path / "adapter_model.safetensors", ignored);
  return mlx ? AdapterFormat::kMlx : AdapterFormat::kPeft;
}

}  // namespace qlora
