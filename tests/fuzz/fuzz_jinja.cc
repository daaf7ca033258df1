// Chat templates of any text: parsed or refused, rendered or refused, within their limits.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "fuzz_util.h"
#include "jinja/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  static const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x",
          "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]}])");
  static const nlohmann::ordered_json tools = {{{"name", "f"}}};
  Attack([&] {
    const JinjaTemplate jinja({reinterpret_cast<const char*>(data), size});
    const JinjaOptions options = {.limits = {.work = 1 << 20, .output = 1 << 16}, .now = {}};
    const JinjaOutput output = jinja.Render(
        std::vector<JinjaVariable>{{"messages", &messages}, {"tools", &tools}}, options);
    std::size_t at = 0;
    for (const JinjaSpan& span : output.generation) {
      if (span.begin < at || span.end < span.begin || span.end > output.text.size()) std::abort();
      at = span.begin;  // blocks may be nested
    }
  });
  return 0;
}
