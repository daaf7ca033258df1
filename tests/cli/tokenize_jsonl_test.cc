// `qlora tokenize --jsonl`: a line in, a line out.
#include "command/tokenize_jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/tiny_model.h"
#include "qlora/error.h"
#include "test_build.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Tokenizer Fixture(const char* name) {
  return Tokenizer::Load(SourceDir() / "tests/fixtures" / name);
}

TEST(TokenizeJsonl, OneLineInOneLineOut) {
  const Tokenizer tokenizer = Fixture("llama3");
  std::istringstream in("\"Hello\"\n\n\"a\\nb\"\r\n[1, 2]\n\"\xFF\"\n");
  std::ostringstream out;
  TokenizeJsonl(tokenizer, in, "texts.jsonl", false, out);
  std::istringstream lines(out.str());
  std::vector<std::string> texts;
  for (std::string line; std::getline(lines, line);) {
    const auto item = nlohmann::json::parse(line);
    EXPECT_EQ(tokenizer.Decode(item["ids"].get<Ids>()), item["text"]);
    texts.push_back(item["text"]);
  }
  EXPECT_THAT(texts, ElementsAre("Hello", "a\nb", tokenizer.Decode(Ids{1, 2}), "\ufffd"));
}

TEST(TokenizeJsonl, NamesTheLineThatIsWrong) {
  const Tokenizer tokenizer = Fixture("llama3");
  for (const char* bad : {"{}", "12", "\"open", "[1, -2]", "[1.5]"}) {
    std::istringstream in(std::string("\"fine\"\n") + bad + "\n");
    std::ostringstream out;
    try {
      TokenizeJsonl(tokenizer, in, "texts.jsonl", true, out);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidInput);
      EXPECT_THAT(e.what(), HasSubstr("texts.jsonl:2: ")) << bad;
    }
  }
}

}  // namespace
}  // namespace qlora
