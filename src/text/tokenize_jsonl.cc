#include "text/tokenize_jsonl.h"

#include <cstdint>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "base/check.h"
#include "text/unicode.h"

namespace qlora {

void TokenizeJsonl(const Tokenizer& tokenizer, std::istream& in, const std::string& name,
                   bool add_special_tokens, std::ostream& out) {
  using nlohmann::json;
  std::string line;
  std::string storage;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json text = json::parse(ValidUtf8(line, &storage), nullptr, false);
    if (!text.is_string()) {
      ThrowInvalidInput("{}:{}: expected a JSON string, found {}", name, number,
                        text.is_discarded() ? "malformed JSON" : text.type_name());
    }
    const std::vector<std::int32_t> ids =
        tokenizer.Encode(text.get_ref<const std::string&>(), add_special_tokens);
    out << "{\"ids\": " << json(ids).dump() << ", \"text\": " << json(tokenizer.Decode(ids)).dump()
        << "}\n";
  }
}

}  // namespace qlora
