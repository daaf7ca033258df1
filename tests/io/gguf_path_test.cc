#include "io/gguf_path.h"

#include "base/file.h"
#include "io/test_util.h"

namespace qlora {
namespace {

TEST(GgufPath, FindsTheModelOfAFolder) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name) { WriteTextFile(folder / name, "x"); };
  EXPECT_EQ(FindGguf(folder.path()), std::nullopt);
  EXPECT_EQ(FindGguf(folder / "none.gguf"), std::nullopt);
  write("a.txt");
  EXPECT_EQ(FindGguf(folder / "a.txt"), std::nullopt);
  write("m-Q4_K_M.gguf");
  EXPECT_EQ(FindGguf(folder / "m-Q4_K_M.gguf"), folder / "m-Q4_K_M.gguf");
  // What lies beside models is none.
  write("mmproj-m-f16.gguf");
  write("m.imatrix.gguf");
  EXPECT_EQ(FindGguf(folder.path()), folder / "m-Q4_K_M.gguf");
  write("m-Q8_0.gguf");
  ExpectRefused([&] { FindGguf(folder.path()); },
                "holds 2 GGUF models; give the file of one of them: m-Q4_K_M.gguf, m-Q8_0.gguf");
  // A Hugging Face model beside them is the model of the folder.
  write("config.json");
  EXPECT_EQ(FindGguf(folder.path()), std::nullopt);
  EXPECT_EQ(FindGguf(folder / "m-Q8_0.gguf"), folder / "m-Q8_0.gguf");
}

TEST(GgufPath, PartsAreOneModel) {
  const TemporaryFolder folder;
  for (const char* part : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    WriteTextFile(folder / part, "x");
  }
  EXPECT_EQ(FindGguf(folder.path()), folder / "m-00001-of-00002.gguf");
  EXPECT_EQ(FindGguf(folder / "m-00002-of-00002.gguf"), folder / "m-00002-of-00002.gguf");
}

}  // namespace
}  // namespace qlora
