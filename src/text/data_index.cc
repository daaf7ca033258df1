#include "text/data_index.h"

#include <fmt/format.h>

#include "text/tokenizer_tables.h"

namespace qlora {

IndexPlace IndexPlace::In(const std::filesystem::path& folder, std::string_view name,
                          std::string key) {
  if (folder.empty()) return {};
  MakeDirectories(folder);
  const std::string file = fmt::format("{}-{:016x}.index", name, HashBytes(key));
  return {.path = folder / file, .key = std::move(key)};
}

}  // namespace qlora
