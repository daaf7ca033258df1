#include "inference/generation_config.h"

#include <fmt/format.h>

#include "io/json.h"

namespace qlora {

std::string TakeGenerationConfig(const std::filesystem::path& model_dir, OptionTable& options) {
  const std::filesystem::path path = model_dir / "generation_config.json";
  if (!std::filesystem::exists(path)) return {};
  const Json config = ReadJsonFile(path);
  std::string taken;
  for (const char* key :
       {"do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) {
    const auto value = config.find(key);
    const Option* option = options.Find(key);
    if (value == config.end() || value->is_null() || option->set) continue;
    options.Set(key, FormatJson(*value), path.string());
    taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", key, option->ToString());
  }
  return taken;
}

}  // namespace qlora
