// Renders the cases that tests/interop/chat_diff.mjs hands over, for comparison with other engines.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "jinja/jinja.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// Lines of {"template": FILE, "variables": {...}, "now": [year, month, day, hour, minute, second]}
// -> lines of {"text": ...} or {"error": ...}.
TEST(ChatTemplateRender, Cases) {
  const char* cases = std::getenv("QLORA_CHAT_CASES");
  const char* results = std::getenv("QLORA_CHAT_RESULTS");
  if (cases == nullptr || results == nullptr) {
    GTEST_SKIP() << "SKIPPED WHOLE: run by tests/interop/chat_diff.mjs";
  }
  std::ifstream in(cases);
  std::ofstream out(results);
  std::string line;
  while (std::getline(in, line)) {
    const nlohmann::ordered_json chat = nlohmann::ordered_json::parse(line);
    nlohmann::ordered_json result;
    try {
      std::ifstream file(chat.at("template").get<std::string>(), std::ios::binary);
      ASSERT_TRUE(file);
      const std::string text(std::istreambuf_iterator<char>(file), {});
      const JinjaTemplate jinja(text);
      JinjaOptions options;
      std::tm now = {};
      const nlohmann::ordered_json& time = chat.at("now");
      now.tm_year = time[0].get<int>() - 1900;
      now.tm_mon = time[1].get<int>() - 1;
      now.tm_mday = time[2].get<int>();
      now.tm_hour = time[3].get<int>();
      now.tm_min = time[4].get<int>();
      now.tm_sec = time[5].get<int>();
      std::mktime(&now);  // the day of the week and of the year
      options.now = now;
      std::vector<JinjaVariable> variables;
      for (const auto& [name, value] : chat.at("variables").items()) {
        variables.push_back({name, &value});
      }
      result["text"] = jinja.Render(variables, options).text;
    } catch (const Error& error) {
      result["error"] = error.what();
    }
    out << result.dump() << "\n";
  }
  EXPECT_TRUE(out.flush());
}

}  // namespace
}  // namespace qlora
