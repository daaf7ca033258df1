// A copy of a tiny model that tests may damage, and a run on it.
#ifndef QLORA_TESTS_CLI_TINY_MODEL_H_
#define QLORA_TESTS_CLI_TINY_MODEL_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/test_util.h"
#include "test_build.h"

namespace qlora {

inline fs::path Golden(const std::string& name) { return SourceDir() / "tests/golden" / name; }

// The header and the data of a safetensors file, to be put together again after changes.
struct SafetensorsParts {
  nlohmann::json header;
  std::string data;

  static SafetensorsParts Read(const fs::path& path) {
    const std::string text = ReadAll(path);
    std::uint64_t size = 0;
    std::memcpy(&size, text.data(), sizeof(size));
    return {nlohmann::json::parse(text.substr(8, size)), text.substr(8 + size)};
  }
  void Write(const fs::path& path) const {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << text << data;
  }
};

// The folder of a test holds the model as `model`, a dataset as `data.jsonl` and the settings of a
// run as `base.yaml`.
class TinyModelTest : public ScratchTest {
 protected:
  void SetUp() override {
    fs::create_directory(scratch_ / "model");
    for (const char* name :
         {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(Golden("llama-tiny") / name, scratch_ / "model" / name);
    }
    std::string lines;
    for (int i = 0; i < 8; ++i) {
      lines += "{\"text\": \"Once upon a time there were " + std::to_string(i) + " bears.\"}\n";
    }
    Write("data.jsonl", lines);
    Write("base.yaml",
          "model: model\ndataset: data.jsonl\noutput_dir: out\nmax_steps: 2\nmax_length: 64\n"
          "lora_r: 4\ncompute_dtype: float32\nthreads: 1\n");
  }

  fs::path model() const { return scratch_ / "model"; }

  void EditJson(const fs::path& path, const std::function<void(nlohmann::json&)>& edit) const {
    nlohmann::json json = nlohmann::json::parse(ReadAll(path));
    edit(json);
    std::ofstream(path) << json.dump();
  }
  void EditWeights(const std::function<void(SafetensorsParts&)>& edit) const {
    SafetensorsParts parts = SafetensorsParts::Read(model() / "model.safetensors");
    edit(parts);
    parts.Write(model() / "model.safetensors");
  }

  // Two steps of training into `out`, with what a test adds or says otherwise.
  static std::vector<std::string> TrainWords(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"train", "base.yaml"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome Run(const std::vector<std::string>& words, std::string_view input = "") const {
    return RunQlora(scratch_, words, input);
  }
  // Runs a command that must succeed, and returns the object that it prints.
  nlohmann::json RunJson(std::vector<std::string> words) const {
    words.push_back("--json");
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

  // Every file below the test's folder with its content.
  std::map<std::string, std::string> Everything() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(scratch_)) {
      files[entry.path().string()] = entry.is_directory() ? "" : ReadAll(entry.path());
    }
    return files;
  }

  // The command must end with exit code 2 and leave the folder as it was. Returns its message.
  std::string Refused(const std::vector<std::string>& words) const {
    const auto before = Everything();
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(before == Everything()) << "the refused command changed files";
    EXPECT_NE(outcome.LastErrorLine().find("See: qlora help"), std::string::npos) << outcome.err;
    return outcome.err;
  }
};

}  // namespace qlora

#endif  // QLORA_TESTS_CLI_TINY_MODEL_H_
