// Parquet files of any bytes: the rows are written as lines of JSON that can be read again, or the
// file is refused with an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fuzz_util.h"
#include "io/json.h"
#include "parquet/parquet.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const parquet::Source source{
      .name = "x.parquet", .size = size, .read = [bytes](auto begin, auto count) {
        if (begin > bytes.size() || count > bytes.size() - begin) std::abort();
        return std::string(bytes.substr(begin, count));
      }};
  Attack([&] {
    parquet::WriteJsonLines(source,
                            [](std::string_view line) {
                              OrderedJson row;
                              const auto defect = TryParseJson(line, row);
                              // Text of a file may nest deeper, or have more keys, than is read.
                              if (defect && defect->reason.find("more than") == std::string::npos)
                                std::abort();
                            },
                            {.bytes = 1 << 20, .growth = 100});
  });
  return 0;
}
