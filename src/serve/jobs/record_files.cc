#include "serve/jobs/record_files.h"

#include <fmt/format.h>

#include <exception>

#include "base/file.h"
#include "io/json.h"
#include "serve/jobs/new_id.h"

namespace qlora {

void ReadRecords(const std::filesystem::path& folder, std::string_view prefix,
                 const std::function<void(const std::string& line)>& log,
                 const std::function<void(const Json& record, const std::string& id,
                                          const std::string& where)>& take) {
  constexpr std::int64_t kMaxRecordBytes = std::int64_t{4} << 20;
  MakeDirectories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    const std::string id = path.stem().string();
    if (path.extension() != ".json" || !IsId(id, prefix)) continue;
    try {
      const std::string where = path.string();
      take(ParseJson(ReadTextFile(path, kMaxRecordBytes), where), id, where);
    } catch (const std::exception& error) {
      log(fmt::format("{}; {} is left out: mend the file, or remove it, and start again",
                      error.what(), id));
    }
  }
}

}  // namespace qlora
