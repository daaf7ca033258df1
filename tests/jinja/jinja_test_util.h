// Helpers of the tests of templates: rendering at a fixed time, and refusals.
#ifndef QLORA_TESTS_JINJA_JINJA_TEST_UTIL_H_
#define QLORA_TESTS_JINJA_JINJA_TEST_UTIL_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/test_util.h"
#include "jinja/jinja.h"

namespace qlora {

// Renders at 12:34:56 on 26 July 2024.
inline JinjaOutput RenderText(
    std::string_view text,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object(),
    const JinjaLimits& limits = {}) {
  std::tm now = {};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 12;
  now.tm_min = 34;
  now.tm_sec = 56;
  std::mktime(&now);
  std::vector<JinjaVariable> list;
  for (const auto& [name, value] : variables.items()) list.push_back({name, &value});
  return JinjaTemplate(text).Render(list, {.limits = limits, .now = now});
}

// Expects an error that contains `part`; the work is limited to little, so that a loop ends soon.
inline void Refuse(std::string_view text, const std::string& part,
                   const nlohmann::ordered_json& variables = nlohmann::ordered_json::object(),
                   const JinjaLimits& limits = {.work = 1 << 22}) {
  SCOPED_TRACE(text.substr(0, 80));
  ExpectRefused([&] { RenderText(text, variables, limits); }, part);
}

}  // namespace qlora

#endif  // QLORA_TESTS_JINJA_JINJA_TEST_UTIL_H_
