// Configurations that are written, and read or refused.
#ifndef QLORA_TESTS_CONFIG_CONFIG_FIXTURE_H_
#define QLORA_TESTS_CONFIG_CONFIG_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "config/config.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {

namespace fs = std::filesystem;

class ConfigTest : public testing::Test {
 protected:
  DecoderConfig Load(const Json& json) const {
    WriteTextFile(dir_ / "config.json", json.dump());
    return LoadDecoderConfig(dir_);
  }
  // The message with which it is refused.
  std::string Refusal(const Json& json) const {
    try {
      Load(json);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << json.dump();
    return "";
  }

  static Json Minimal(const char* model_type) {
    return {{"model_type", model_type}, {"hidden_size", 64},        {"intermediate_size", 128},
            {"num_hidden_layers", 6},   {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
  }

  TemporaryFolder folder_;
  fs::path dir_ = folder_.path();
};

}  // namespace qlora

#endif  // QLORA_TESTS_CONFIG_CONFIG_FIXTURE_H_
