#include "tokenizer/post_processor.h"

#include <string>

#include "tokenizer/stage.h"

namespace qlora {
namespace {

// "single" is a list like <s> A </s>, where A is the text and each special token names an entry of
// "special_tokens", which has the ids. (A second template, "pair", is for two texts at once.)
PostProcessor ParseTemplate(const JsonValue& config) {
  PostProcessor result;
  const JsonValue specials = config["special_tokens"];
  bool text_seen = false;
  for (const JsonValue& item : config["single"].Array()) {
    if (item.Has("Sequence")) {
      // A template may repeat the text or name B; both would give other ids than Encode, so they
      // are refused instead of ignored.
      if (text_seen || item["Sequence"]["id"].String() != "A") item.Fail("sequence A, once");
      text_seen = true;
      continue;
    }
    const JsonValue name = item["SpecialToken"]["id"];
    const JsonValue special = specials[name.String()];
    if (special.IsNull()) name.Fail("a key of special_tokens");
    for (const JsonValue& id : special["ids"].Array()) {
      // One special token may have several ids.
      (text_seen ? result.after : result.before).push_back(id.Id());
    }
  }
  if (!text_seen) config["single"].Fail("a template with sequence A");
  return result;
}

}  // namespace

PostProcessor PostProcessor::Parse(const JsonValue& config) {
  PostProcessor result;
  bool seen = false;
  for (const JsonValue& step : StepsOf(config, "processors")) {
    const std::string type = step["type"].String();
    if (type == "ByteLevel") continue;  // moves offsets, which this library does not keep
    if (type != "TemplateProcessing") {
      step["type"].Fail("a supported post-processor (Sequence, ByteLevel, TemplateProcessing)");
    }
    if (seen) step.Fail("at most one TemplateProcessing");
    seen = true;
    result = ParseTemplate(step);
  }
  return result;
}

}  // namespace qlora
