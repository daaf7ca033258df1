// A configuration as text tells one from another.
#include "config/config_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Values that `value` may become.
std::vector<Json> OthersOf(const Json& value) {
  if (value.is_boolean()) return {!value.get<bool>()};
  if (value.is_number_integer())
    return {value.get<std::int64_t>() + 1, 2 * value.get<std::int64_t>()};
  if (value.is_number_float()) return {2 * value.get<double>(), value.get<double>() + 1e-6};
  if (value.is_null()) return {1, true};
  return {};
}

// Calls visit(changed) for each value in `root` that is changed alone.
template <typename Visit>
void ForEachChange(Json& root, Json& value, const Visit& visit) {
  if (value.is_structured()) {
    for (Json& part : value) ForEachChange(root, part, visit);
    return;
  }
  const Json before = value;
  for (const Json& other : OthersOf(before)) {
    value = other;
    visit();
  }
  value = before;
}

DecoderConfig Parsed(const Json& root) { return ParseDecoderConfig(root, "config.json"); }

// What no text tells, because it does not decide what is computed.
DecoderConfig WithoutNames(DecoderConfig config) {
  config.model_type.clear();
  config.architecture.clear();
  config.names = {};
  config.module_prefix.clear();
  config.max_position_embeddings = 0;
  config.notes.clear();
  config.stage = {};
  return config;
}

// One value of a config.json changes: either the text does, or nothing that is computed.
TEST(ConfigTextTest, TellsEveryValueThatDecides) {
  std::int64_t changed = 0;
  for (const auto& entry : fs::recursive_directory_iterator(SourceDir() / "tests/golden")) {
    if (entry.path().filename() != "config.json") continue;
    Json root = ReadJsonFile(entry.path());
    const DecoderConfig config = Parsed(root);
    ForEachChange(root, root, [&] {
      DecoderConfig other;
      try {
        other = Parsed(root);
      } catch (const Error&) {
        return;
      }
      const bool is_same = WithoutNames(other) == WithoutNames(config);
      EXPECT_EQ(ConfigText(other) == ConfigText(config), is_same)
          << entry.path() << ": "
          << DescribeConfigDifference(ConfigText(config), ConfigText(other));
      changed += !is_same;
    });
  }
  EXPECT_GT(changed, 100);
}

TEST(ConfigTextTest, NamesWhatDiffers) {
  DecoderConfig config;
  config.ropes.resize(1);
  const std::string before = ConfigText(config);
  EXPECT_EQ(DescribeConfigDifference(before, before), "");
  config.rms_norm_eps = 1e-5f;
  config.ropes[0].rope_theta = 500000;
  EXPECT_EQ(DescribeConfigDifference(before, ConfigText(config)),
            "rms_norm_eps 1e-06, now 1e-05, rope");
  EXPECT_EQ(DescribeConfigDifference("", "conv_taps=0;"), "conv_taps");
}

}  // namespace
}  // namespace qlora
