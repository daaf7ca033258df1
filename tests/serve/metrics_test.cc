#include "serve/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST(Metrics, LinesAreOfTheFormatAndHaveAType) {
  Metrics metrics;
  metrics.Count("qlora_requests_total", {"a\"b\\c\nd", "/v1/models", "200"});
  metrics.Observe("qlora_step_seconds", 0.02);
  std::istringstream text(metrics.Text());
  const std::regex sample(R"(^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$)");
  std::set<std::string> types;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("# TYPE ")) types.insert(line.substr(7, line.find(' ', 7) - 7));
    if (line.starts_with('#')) continue;
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string name =
        std::regex_replace(match[1].str(), std::regex("_(bucket|sum|count)$"), "");
    EXPECT_TRUE(types.contains(match[1]) || types.contains(name)) << line;
    EXPECT_NO_THROW(std::stod(match[3])) << line;
  }
}

TEST(Metrics, CountAndCumulate) {
  Metrics metrics;
  metrics.Count("qlora_generation_tokens_total", {"m"}, 22);
  metrics.Count("qlora_generation_tokens_total", {"m"}, 3);
  metrics.Set("qlora_requests_running", 4);
  for (const double seconds : {0.001, 0.01, 0.02, 999.0}) {
    metrics.Observe("qlora_step_seconds", seconds);
  }
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("qlora_generation_tokens_total{model=\"m\"} 25\n"));
  EXPECT_THAT(text, HasSubstr("qlora_requests_running 4\n"));
  EXPECT_THAT(text, HasSubstr("qlora_step_seconds_bucket{le=\"0.005\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("qlora_step_seconds_bucket{le=\"0.01\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("qlora_step_seconds_bucket{le=\"300\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("qlora_step_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("qlora_step_seconds_count 4\n"));
  EXPECT_THROW(metrics.Count("no_such_metric"), Error);
  EXPECT_THROW(metrics.Count("qlora_generation_tokens_total"), Error);
  EXPECT_THROW(metrics.Observe("qlora_requests_running", 1), Error);
}

}  // namespace
}  // namespace qlora
