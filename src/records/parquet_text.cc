#include "records/parquet_text.h"

#include "parquet/parquet.h"
#include "records/derived_text.h"

namespace qlora {

FileBytes ParquetAsText(const FileBytes& file, const std::filesystem::path& folder,
                        const ReadingLimits& limits) {
  const parquet::Source source = {
      .name = file.name(), .size = file.size(), .read = [&file](auto begin, auto count) {
        return file.Read(begin, count);
      }};
  return MakeText(file, "rows as lines", folder, [&](const TextSink& write) {
    parquet::WriteJsonLines(source, write, {.memory = limits.memory});
  });
}

}  // namespace qlora
