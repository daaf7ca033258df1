#include "records/index_array.h"

#include <fmt/format.h>

#include "tokenizer/lookup_tables.h"

namespace qlora {

IndexPlace IndexPlace::In(const std::filesystem::path& folder, std::string_view name,
                          std::string key) {
  if (folder.empty()) return {};
  MakeDirectories(folder);
  // A hash of all that the index depends on: runs with other options make another file in the same
  // folder instead of overwriting this one. The key itself is compared when the file is opened.
  const std::string file = fmt::format("{}-{:016x}.index", name, HashBytes(key));
  return {.path = folder / file, .key = std::move(key)};
}

}  // namespace qlora
