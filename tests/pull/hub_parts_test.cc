// The parts of a pull that need no server: hashes, names, headers, the choice of files, settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "io/test_util.h"
#include "pull/content_hash.h"
#include "pull/hub_api.h"
#include "pull/selection.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string HashOf(ContentHash hash, const std::string& text, std::size_t piece) {
  for (std::size_t i = 0; i < text.size(); i += piece) {
    hash.Update(std::string_view(text).substr(i, piece));
  }
  return hash.Finish();
}

// The examples of FIPS 180-4, and lengths around a block.
TEST(ContentHashTest, IsTheStandard) {
  EXPECT_EQ(HashOf(ContentHash::Sha256(), "abc", 1),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashOf(ContentHash::Sha256(), "", 1),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashOf(ContentHash::Sha256(), std::string(1000000, 'a'), 777),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(HashOf(ContentHash::Sha1(), "abc", 3), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(HashOf(ContentHash::Sha1(), std::string(1000000, 'a'), 64),
            "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  for (std::size_t size = 54; size < 130; ++size) {
    EXPECT_EQ(HashOf(ContentHash::Sha256(), std::string(size, 'x'), 1),
              HashOf(ContentHash::Sha256(), std::string(size, 'x'), 99));
  }
}

TEST(HubApiTest, HeadersAreRead) {
  EXPECT_EQ(NextPage("<https://h/a?cursor=x>; rel=\"next\""), "https://h/a?cursor=x");
  EXPECT_EQ(NextPage("<https://h/a>; rel=\"prev\", <https://h/b>; rel=\"next\""), "https://h/b");
  EXPECT_EQ(NextPage("<https://h/a>; rel=\"xet-auth\""), "");
  EXPECT_EQ(NextPage(""), "");
  HttpHead head;
  head.headers = {{"ratelimit", "\"resolvers\";r=0;t=55"}, {"retry-after", "7"}};
  EXPECT_EQ(WaitOf(head), 55);
  head.headers["ratelimit"] = "\"resolvers\";r=12;t=55";
  EXPECT_EQ(WaitOf(head), 7);
  head.headers.clear();
  EXPECT_EQ(WaitOf(head), 0);
}

TEST(HubApiTest, UrlsKeepTheirOrigin) {
  EXPECT_EQ(OriginOf("https://hub.co/a"), OriginOf("https://hub.co:443/b?c"));
  EXPECT_NE(OriginOf("https://hub.co/a"), OriginOf("http://hub.co/a"));
  EXPECT_NE(OriginOf("https://hub.co/a"), OriginOf("https://hub.co:444/a"));
  EXPECT_EQ(ResolveUrl("https://h/a/b", "/c"), "https://h/c");
  EXPECT_THROW(ResolveUrl("https://h/a", "http://odd\x8d.example/"), Error);
  EXPECT_EQ(EncodeSegment("tool use #1+\xC3\xA9%20"), "tool%20use%20%231%2B%C3%A9%2520");
  EXPECT_EQ(Abridged("a\x1b[2J\nb"), "a\\x1b[2J b");
}

std::vector<HubFile> Files(std::initializer_list<const char*> paths) {
  std::vector<HubFile> files;
  for (const char* path : paths) files.push_back({path, std::string(40, 'a'), 1});
  return files;
}

std::vector<std::string> Select(const std::vector<HubFile>& files, const SelectionOptions& options,
                                HubType type = HubType::kModel, const std::string& index = "") {
  std::vector<std::string> paths;
  for (const HubFile& file :
       SelectFiles(files, type, options, [&](const HubFile&) { return index; })) {
    paths.push_back(file.path);
  }
  return paths;
}

TEST(SelectionTest, TakesOneFormOfTheWeights) {
  EXPECT_THAT(Select(Files({"config.json", "model.safetensors", "model.safetensors.index.json",
                            "consolidated.safetensors", "model.fp16.safetensors", "LICENSE.txt",
                            "onnx/config.json", "tokenizer.model"}),
                     {}),
              ElementsAre("config.json", "model.safetensors", "LICENSE.txt", "tokenizer.model"));
  EXPECT_THAT(Select(Files({"a.safetensors", "b.safetensors", "c.safetensors",
                            "model.safetensors.index.json"}),
                     {}, HubType::kModel,
                     R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}})"),
              ElementsAre("a.safetensors", "b.safetensors", "model.safetensors.index.json"));
  EXPECT_THAT(
      Select(Files({"adapter_config.json", "adapter_model.safetensors", "optimizer.pt"}), {}),
      ElementsAre("adapter_config.json", "adapter_model.safetensors"));
  // Of mlx-lm, which also keeps those of earlier steps.
  EXPECT_THAT(
      Select(Files({"0000100_adapters.safetensors", "adapter_config.json", "adapters.safetensors"}),
             {}),
      ElementsAre("adapter_config.json", "adapters.safetensors"));
}

TEST(SelectionTest, SaysWhyNothingIsTaken) {
  ExpectRefused(
      [] {
        Select(Files({"config.json", "pytorch_model.bin"}), {});
      },
      "it has pytorch_model.bin");
  ExpectRefused([] { Select(Files({"script.py"}), {}, HubType::kDataset); },
                "refs/convert/parquet");
  ExpectRefused([] { Select(Files({"a.bin"}), {.include = {"*.gguf"}}); }, "none of the 1 files");
  const auto evil = [] {
    Select(Files({"model.safetensors.index.json"}), {}, HubType::kModel,
           R"({"weight_map": {"x": "../../evil.safetensors"}})");
  };
  EXPECT_THAT(ErrorOf(evil).what(), HasSubstr("which the repository does not have"));
}

TEST(SelectionTest, PatternsOverrideTheChoice) {
  const auto files = Files({"a-Q4_K_M.gguf", "a-Q8_0.gguf", "README.md", "data/x.parquet"});
  EXPECT_THAT(Select(files, {.include = {"*Q4_K_M*.gguf"}}), ElementsAre("a-Q4_K_M.gguf"));
  EXPECT_THAT(Select(files, {.all = true, .exclude = {"*.gguf"}}),
              ElementsAre("README.md", "data/x.parquet"));
  EXPECT_THAT(Select(files, {}, HubType::kDataset), ElementsAre("README.md", "data/x.parquet"));
  EXPECT_TRUE(FitsPattern("aXbXc", "a*b?c"));
  EXPECT_FALSE(FitsPattern("abc", "ab"));
  EXPECT_TRUE(FitsPattern("abcabc", "*abc"));
  EXPECT_TRUE(FitsPattern("onnx/.a\\b", "*x?.[ab]\\*"));
  EXPECT_TRUE(FitsPattern("a[1].gguf", "a[1].gguf"));
  EXPECT_FALSE(FitsPattern("c.gguf", "[ab].gguf"));
}

TEST(HubSettingsTest, ReadsTheVariablesOfHuggingFace) {
  const TemporaryFolder home;
  WriteTextFile(home / "token", "hf_file\n");
  setenv("HF_HOME", home.path().c_str(), 1);
  setenv("HF_ENDPOINT", " https://mirror/hub/ ", 1);
  unsetenv("HF_TOKEN");
  EXPECT_EQ(ReadHubSettings().token, "hf_file");
  EXPECT_EQ(ReadHubSettings().endpoint, "https://mirror/hub");
  setenv("HF_TOKEN", "hf_variable", 1);
  EXPECT_EQ(ReadHubSettings().token_source, "HF_TOKEN");
  setenv("HF_TOKEN", "hf_a\r\nX-Evil: 1", 1);
  ExpectRefused([] { ReadHubSettings(); }, "HF_TOKEN");
  unsetenv("HF_TOKEN");
  setenv("HF_HUB_OFFLINE", "1", 1);
  ExpectRefused([] { ReadHubSettings(); }, "offline");
  for (const char* name : {"HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"}) unsetenv(name);
}

TEST(HubApiTest, RedirectsStayWithHttps) {
  CheckRedirect("http://hub/a", "http://cdn/a");
  CheckRedirect("http://hub/a", "https://cdn/a");
  CheckRedirect("HTTPS://hub/a", "https://cdn/a");
  EXPECT_THAT(ErrorOf([] { CheckRedirect("HTTPS://hub/a", "http://cdn/a"); }).what(),
              HasSubstr("hub redirects from https to http"));
}

TEST(HubApiTest, MessagesHideThePasswordOfAnEndpoint) {
  EXPECT_EQ(WithoutPassword("http://user:pass@hub/a"), "http://***@hub/a");
  EXPECT_EQ(WithoutPassword("user:p@ss@hub"), "***@hub");
  EXPECT_EQ(WithoutPassword("https://hub/a"), "https://hub/a");
  EXPECT_THAT(ErrorOf([] { OriginOf("ftp://user:secret@hub/"); }).what(),
              testing::Not(HasSubstr("secret")));
}

TEST(HubApiTest, RefusesNamesThatATerminalShowsAsOthers) {
  EXPECT_TRUE(IsSafePath("\u00e4.json"));
  EXPECT_FALSE(IsSafePath("a\u009b.json"));
  EXPECT_FALSE(IsSafePath("a\u202egnp.json"));
}

TEST(HubSettingsTest, RefusesTextBehindTheTimeout) {
  setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1e3", 1);
  EXPECT_THAT(ErrorOf([] { ReadHubSettings(); }).what(), HasSubstr("found '1e3'"));
  unsetenv("HF_HUB_DOWNLOAD_TIMEOUT");
}

}  // namespace
}  // namespace qlora
