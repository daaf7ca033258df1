// What GGUF files say about where they come from.
#include "model/gguf_source.h"

#include "model/gguf_file.h"

namespace qlora {
namespace {

TEST(GgufSource, NamesTheCheckpointThatAFileWasMadeFrom) {
  const auto source = [](const std::vector<std::pair<std::string, std::string>>& keys) {
    GgufModel model("llama");
    for (const auto& [key, value] : keys) model.Set(key, value);
    return GgufSourceOf(*OpenGguf(model.Write()));
  };
  EXPECT_EQ(source({}).name, "");
  EXPECT_EQ(source({}).repository, "");
  EXPECT_EQ(source({{"general.name", "Tiny 1B"}}).name, "Tiny 1B");
  const std::string url = "https://huggingface.co/org/tiny";
  EXPECT_EQ(source({{"general.source.repo_url", url}}).repository, "org/tiny");
  EXPECT_EQ(source({{"general.source.url", url + "/"}}).repository, "org/tiny");
  EXPECT_EQ(source({{"general.source.huggingface.repository", "org/a"}, {"general.repo_url", url}})
                .repository,
            "org/a");
  // A folder of GGUF files, and places elsewhere, are no checkpoint.
  EXPECT_EQ(source({{"general.repo_url", url + "-GGUF"}}).repository, "");
  EXPECT_EQ(source({{"general.repo_url", "https://example.org/a/b"}}).repository, "");
}

TEST(GgufSource, TheBaseOfAFineTunedModelIsAnotherModel) {
  const auto repository = [](const char* base) {
    GgufModel model("llama");
    model.Set("general.name", std::string("Tiny Chat"));
    model.Set("general.base_model.0.name", std::string(base));
    model.Set("general.base_model.0.repo_url", std::string("https://huggingface.co/org/tiny-chat"));
    const std::filesystem::path path = model.Write();
    EXPECT_EQ(BaseNameOf(path.string()),
              std::string(base) == "Tiny Chat" ? "org/tiny-chat" : path.string());
    return GgufSourceOf(*OpenGguf(path)).repository;
  };
  EXPECT_EQ(repository("Tiny Chat"), "org/tiny-chat");
  EXPECT_EQ(repository("Tiny"), "");
  EXPECT_EQ(BaseNameOf("org/other"), "org/other");
}

}  // namespace
}  // namespace qlora
