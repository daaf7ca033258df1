// What a conversion replaces, keeps and leaves where it writes, also after it was killed.
#include "base/file.h"
#include "convert/convert_fixture.h"
#include "io/safetensors.h"
#include "io/tensor_file.h"
#include "qlora/error.h"

namespace qlora {
namespace {

class ConvertOutputTest : public ConvertTest {};

TEST_F(ConvertOutputTest, OverwriteReplacesNothingButGguf) {
  ExportOptions options = ExportTo("model.gguf");
  options.verify = "false";
  Export(context_, options);
  EXPECT_THROW(Export(context_, options), Error);
  options.overwrite = true;
  EXPECT_NO_THROW(Export(context_, options));
  fs::copy(kGolden / "llama-tiny", root_ / "source");
  options.model_name_or_path = root_ / "source";
  options.output = root_ / "source" / "model.safetensors";
  EXPECT_THROW(Export(context_, options), Error);
  EXPECT_EQ(ReadTextFile(options.output),
            ReadTextFile(kGolden / "llama-tiny" / "model.safetensors"));
}

TEST_F(ConvertOutputTest, NothingIsLeftWhenTheModelIsBad) {
  fs::copy(kGolden / "llama-tiny", root_ / "bad");
  const auto size = fs::file_size(root_ / "bad" / "model.safetensors");
  fs::resize_file(root_ / "bad" / "model.safetensors", size - 100);
  EXPECT_THROW(Quantize(root_ / "bad", "out"), Error);
  ExportOptions options = ExportTo("out.gguf");
  options.model_name_or_path = root_ / "bad";
  EXPECT_THROW(Export(context_, options), Error);
  EXPECT_FALSE(fs::exists(root_ / "out"));
  EXPECT_FALSE(fs::exists(root_ / "out.gguf"));
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_EQ(entry.path().filename(), "bad");
  }
}

TEST_F(ConvertOutputTest, ExistingOutputIsKept) {
  WriteTextFile(root_ / "out.gguf", "precious");
  const ExportOptions options = ExportTo("out.gguf");
  EXPECT_THROW(Export(context_, options), Error);
  EXPECT_EQ(ReadTextFile(root_ / "out.gguf"), "precious");
}

// Zeros in the place of the last tensors stand for a writer that is wrong.
TEST_F(ConvertOutputTest, AFileThatComputesSomethingElseIsNotVerified) {
  ExportOptions options = ExportTo("model.gguf");
  options.on_written = [&] {
    std::string bytes = ReadTextFile(options.output);
    std::fill(bytes.end() - static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end(), '\0');
    WriteTextFile(options.output, bytes);
  };
  try {
    Export(context_, options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    EXPECT_NE(std::string(error.what()).find("do not use the output"), std::string::npos)
        << error.what();
  }
  options.format = "hf";
  EXPECT_THROW(Export(context_, options), Error) << "a folder is not named .gguf";
}

TEST_F(ConvertOutputTest, WhatAppearsMeanwhileIsKept) {
  for (const char* format : {"gguf", "hf"}) {
    ExportOptions options = ExportTo(std::string("out-") + format);
    options.format = format;
    const fs::path theirs =
        options.format == "hf" ? fs::path(options.output) / "a.txt" : fs::path(options.output);
    const auto appear = [&](std::int64_t, std::int64_t) {
      fs::create_directories(theirs.parent_path());
      WriteTextFile(theirs, "precious");
    };
    try {
      Export(context_, options, appear);
      ADD_FAILURE() << format << ": nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput) << format;
      EXPECT_NE(std::string(error.what()).find("is not replaced"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(ReadTextFile(theirs), "precious");
    EXPECT_EQ(std::distance(fs::directory_iterator(theirs.parent_path()), {}), 1) << format;
    fs::remove_all(options.output);
  }
}

TEST_F(ConvertOutputTest, WritesThroughLinksToFolders) {
  const fs::path link = root_ / "link";
  for (const bool exists : {true, false}) {
    const fs::path folder = root_ / "disk" / (exists ? "empty" : "absent");
    fs::create_directories(exists ? folder : folder.parent_path());
    fs::create_symlink(folder.lexically_relative(root_), link);
    Quantize(kGolden / "llama-tiny", "link");
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_TRUE(HoldsModel(folder));
    fs::remove(link);
  }
}

// The link leads to nothing, and the name of a file is taken all the same.
TEST_F(ConvertOutputTest, AGgufFileDoesNotReplaceALink) {
  fs::create_symlink("absent", root_ / "model.gguf");
  ExportOptions options = ExportTo("model.gguf");
  EXPECT_THROW(Export(context_, options), Error);
  EXPECT_TRUE(fs::is_symlink(root_ / "model.gguf"));
}

TEST_F(ConvertOutputTest, OverwritingKeepsTheFilesOfTheUser) {
  Quantize(kGolden / "llama-tiny", "out");
  fs::create_directories(root_ / "out" / "papers");
  WriteTextFile(root_ / "out" / "papers" / "thesis.txt", "mine");
  WriteTextFile(root_ / "out" / "notes.txt", "mine too");
  WriteTextFile(root_ / "out" / "model-00001-of-00002.safetensors", "an old shard");
  QuantizeCheckpointOptions options;
  options.model_name_or_path = kGolden / "llama-tiny";
  options.output_dir = root_ / "out";
  options.overwrite_output_dir = true;
  QuantizeCheckpoint(context_, options);
  EXPECT_EQ(ReadTextFile(root_ / "out" / "papers" / "thesis.txt"), "mine");
  EXPECT_EQ(ReadTextFile(root_ / "out" / "notes.txt"), "mine too");
  EXPECT_FALSE(fs::exists(root_ / "out" / "model-00001-of-00002.safetensors"));
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

TEST_F(ConvertOutputTest, HiddenFoldersOfOthersStay) {
  fs::create_directories(root_ / ".out.unfinished");
  fs::create_directories(root_ / ".out.unfinished-abcdef" / "old");
  fs::create_directories(root_ / ".out.unfinished-ghijkl" / "new");
  Quantize(kGolden / "llama-tiny", "out");
  EXPECT_TRUE(fs::exists(root_ / ".out.unfinished"));
  EXPECT_TRUE(fs::exists(root_ / ".out.unfinished-abcdef" / "old")) << "what was replaced";
  EXPECT_FALSE(fs::exists(root_ / ".out.unfinished-ghijkl")) << "left by a process that is gone";
}

// A process that was killed while it replaced a checkpoint leaves one of these states.
class KilledReplacementTest : public ConvertTest {
 protected:
  // The checkpoint `out` with a file of the user, in the state before it is replaced.
  void SetUp() override {
    Quantize(kGolden / "llama-tiny", "out");
    WriteTextFile(root_ / "out" / "notes.txt", "mine");
    fs::create_directories(hidden_);
  }
  std::string QuantizeAgain(bool overwrite) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = kGolden / "llama-tiny";
    options.output_dir = root_ / "out" / "";  // with a slash at the end
    options.overwrite_output_dir = overwrite;
    try {
      QuantizeCheckpoint(context_, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    return "";
  }

  const fs::path hidden_ = root_ / ".out.unfinished-abcdef";
};

TEST_F(KilledReplacementTest, BetweenTheRenamesTheOldCheckpointComesBack) {
  Quantize(kGolden / "llama-tiny", "other");
  for (const bool overwrite : {false, true}) {
    fs::create_directories(hidden_);
    fs::copy(root_ / "other", hidden_ / "new");
    fs::rename(root_ / "out", hidden_ / "old");
    const std::string message = QuantizeAgain(overwrite);
    EXPECT_EQ(message.find("which is back now") != std::string::npos, !overwrite) << message;
    EXPECT_EQ(ReadTextFile(root_ / "out" / "notes.txt"), "mine");
    EXPECT_TRUE(HoldsModel(root_ / "out"));
    EXPECT_FALSE(fs::exists(hidden_));
  }
}

TEST_F(KilledReplacementTest, AfterTheRenamesTheFilesOfTheUserMoveOn) {
  fs::rename(root_ / "out", hidden_ / "old");
  Quantize(kGolden / "llama-tiny", "other");
  fs::rename(root_ / "other", root_ / "out");
  EXPECT_NE(QuantizeAgain(false).find("is not empty; give"), std::string::npos);
  EXPECT_EQ(ReadTextFile(root_ / "out" / "notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(hidden_));
}

TEST_F(KilledReplacementTest, BeforeTheRenamesNothingIsNeeded) {
  fs::create_directories(hidden_ / "new");
  EXPECT_NE(QuantizeAgain(false).find("is not empty; give"), std::string::npos);
  EXPECT_FALSE(fs::exists(hidden_));
  EXPECT_EQ(ReadTextFile(root_ / "out" / "notes.txt"), "mine");
}

TEST_F(KilledReplacementTest, WhatOthersPutInItsPlaceStays) {
  fs::create_directories(hidden_ / "new");
  fs::rename(root_ / "out", hidden_ / "old");
  Quantize(kGolden / "llama-tiny", "other");
  fs::rename(root_ / "other", root_ / "out");
  EXPECT_NE(QuantizeAgain(false).find("is not empty; give"), std::string::npos);
  EXPECT_EQ(ReadTextFile(hidden_ / "old" / "notes.txt"), "mine");
}

}  // namespace
}  // namespace qlora
