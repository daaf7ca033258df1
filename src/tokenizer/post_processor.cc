#include "tokenizer/post_processor.h"

#include <string>

namespace qlora {
namespace {

PostProcessor ParseTemplate(const JsonValue& config) {
  PostProcessor result;
  const JsonValue specials = config["special_tokens"];
  bool text_seen = false;
  for (const JsonValue& item : config["single"].Array()) {
    if (item.Has("Sequence")) {
      if (text_seen || item["Sequence"]["id"].String() != "A") item.Fail("sequence A, once");
      text_seen = true;
      continue;
    }
    const JsonValue name = item["SpecialToken"]["id"];
    const JsonValue special = specials[name.String()];
    if (special.IsNull()) name.Fail("a key of special_tokens");
    for (const JsonValue& id : special["ids"].Array()) {
      (text_seen ? result.after : result.before).push_back(id.Id());
    }
  }
  if (!text_seen) config["single"].Fail("a template with sequence A");
  return result;
}

// ["text", id]
std::int32_t ParsePair(const JsonValue& config) {
  const auto pair = config.Array();
  if (pair.size() != 2) config.Fail("[\"token\", id]");
  return pair[1].Id();
}

}  // namespace

PostProcessor PostProcessor::Parse(const JsonValue& config) {
  PostProcessor result;
  if (config.IsNull()) return result;
  const std::string type = config["type"].String();
  if (type == "ByteLevel") return result;  // moves offsets, which this library does not keep
  if (type == "TemplateProcessing") return ParseTemplate(config);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    result.before = {ParsePair(config["cls"])};
    result.after = {ParsePair(config["sep"])};
    return result;
  }
  if (type != "Sequence") {
    config["type"].Fail(
        "a supported post-processor (Sequence, ByteLevel, TemplateProcessing, BertProcessing, "
        "RobertaProcessing)");
  }
  bool seen = false;
  for (const JsonValue& part : config["processors"].Array()) {
    PostProcessor one = Parse(part);
    if (one.before.empty() && one.after.empty()) continue;
    if (seen) part.Fail("at most one processor that adds tokens");
    seen = true;
    result = std::move(one);
  }
  return result;
}

}  // namespace qlora
