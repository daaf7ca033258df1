#include "command/tokenize_jsonl.h"

#include <algorithm>
#include <cstdint>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

bool IsIdList(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& id) {
           // The conversion of a larger number would wrap around to another id.
           return id.is_number_unsigned() &&
                  id.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
         });
}

}  // namespace

void TokenizeJsonl(const Tokenizer& tokenizer, std::istream& in, const std::string& name,
                   bool add_special_tokens, std::ostream& out) {
  std::string line;
  std::string storage;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    // Blank lines, and the end of the last line.
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    // Repaired first, as Encode repairs: the parser would refuse the line.
    const Json value = ParseJson(ValidUtf8(line, &storage), fmt::format("{}:{}", name, number));
    std::vector<std::int32_t> ids;
    if (value.is_string()) {
      ids = tokenizer.Encode(value.get_ref<const std::string&>(), add_special_tokens);
      // The way back: ids to text, so that round trips can be tested in one file.
    } else if (IsIdList(value)) {
      ids = value.get<std::vector<std::int32_t>>();
    } else {
      ThrowInvalidInput("{}:{}: expected a JSON string or an array of ids, found {}", name, number,
                        value.type_name());
    }
    out << "{\"ids\": " << FormatJson(Json(ids))
        << ", \"text\": " << FormatJson(Json(tokenizer.Decode(ids))) << "}\n";
  }
}

}  // namespace qlora
