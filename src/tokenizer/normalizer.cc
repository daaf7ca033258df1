#include "tokenizer/normalizer.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "tokenizer/replacement.h"
#include "tokenizer/stage.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// The factors by which text in UTF-8 can become longer (Unicode Standard Annex 15, section 9).
constexpr double kNfcGrowth = 3;
constexpr double kNfkcGrowth = 11;

void Replace(const Replacement& replacement, NormalizedText* text) {
  std::int64_t front;
  std::string replaced = replacement.Apply(text->text, &front);
  // Hugging Face counts a replacement of one character as that character. A replacement of several
  // counts as text behind the start, and so does the rest when the first character is removed.
  // at_start decides whether a step behind puts U+2581 before the text. `front` is the length of
  // the match at the start of the text, or 0.
  const bool kept =
      front == 0 || (front == Utf8Length(text->text[0]) && !replacement.content().empty());
  text->at_start = text->at_start && kept;
  text->text = std::move(replaced);
}

}  // namespace

// *growth: at most how many times as long as the text the result is.
Normalizer::Step Normalizer::ParseStep(const JsonValue& config, const std::string& type,
                                       double* growth) {
  if (type == "NFC" || type == "NFKC") {
    const NormalForm form = type == "NFC" ? NormalForm::kNfc : NormalForm::kNfkc;
    *growth = type == "NFC" ? kNfcGrowth : kNfkcGrowth;
    return [form](NormalizedText* text) { text->text = Normalize(text->text, form); };
  }
  if (type == "Prepend") {
    const std::string prefix = config["prepend"].String();
    // Growth bounds the length that a file can give to a text: without a bound, a few Replace steps
    // in a row could turn one line into gigabytes.
    *growth = 1 + static_cast<double>(prefix.size());  // of a text of one byte
    return [prefix](NormalizedText* text) {
      if (!text->text.empty()) text->text.insert(0, prefix);
    };
  }
  if (type == "Replace") {
    const auto replacement = std::make_shared<const Replacement>(config);
    *growth = replacement->growth();
    return [replacement](NormalizedText* text) { Replace(*replacement, text); };
  }
  config["type"].Fail("a supported normalizer (Sequence, NFC, NFKC, Prepend, Replace)");
}

Normalizer Normalizer::Parse(const JsonValue& config) {
  Normalizer normalizer;
  Growth growth;
  for (const JsonValue& step : StepsOf(config, "normalizers")) {
    const std::string type = step["type"].String();
    double factor = 1;
    normalizer.steps_.push_back(ParseStep(step, type, &factor));
    // A prefix counts as add_prefix_space in formats that know that word alone (TokenizerSpec).
    normalizer.prepends_ |= type == "Prepend";
    growth.Multiply(factor, step);
  }
  return normalizer;
}

}  // namespace qlora
