#include "hub/hub_adapter.h"

#include "base/file.h"
#include "hub/hub_cache.h"
#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

TEST(HubAdapter, FindsAdaptersOfTheCacheByName) {
  TemporaryFolder cache;
  const fs::path folder = cache / "models--org--lora";
  fs::create_directories(folder / "snapshots/abc");
  fs::create_directories(folder / "refs");
  WriteTextFile(folder / "refs/v2", "abc");
  WriteTextFile(folder / "snapshots/abc/adapter_config.json", "{}");
  setenv("HF_HUB_CACHE", cache.path().c_str(), 1);
  EXPECT_EQ(ResolveAdapterDir("org/lora@v2"), (folder / "snapshots/abc").string());
  ExpectRefused([] { ResolveAdapterDir("org/lora"); }, "qlora pull org/lora");
  ExpectRefused([] { ResolveModelDir("org/lora@v2"); }, "org/lora@v2 as --adapter");
  ExpectRefused([&] { ResolveModelDir(folder.string()); }, "write org/lora");
  // Paths are left to the reader of adapters, a folder wins over a name.
  for (const std::string& path : {std::string(), std::string("./out"), cache.path().string()}) {
    EXPECT_EQ(ResolveAdapterDir(path), path);
  }
  fs::remove(folder / "snapshots/abc/adapter_config.json");
  ExpectRefused([] { ResolveAdapterDir("org/lora@v2"); }, "no adapter_config.json");
  unsetenv("HF_HUB_CACHE");
}

// "--adapter a 'my prompt'" of a verb that takes no prompt.
TEST(HubAdapter, OneOfSeveralThatIsMissingIsNamedWithTheOthers) {
  TemporaryFolder folder;
  ExpectRefused(
      [&] {
        ResolveAdapters({folder.path().string(), "my prompt"}, 0);
      },
      "my prompt: there is no such adapter folder; the adapters were given as: " +
          folder.path().string() + ", my prompt");
}

}  // namespace
}  // namespace qlora
