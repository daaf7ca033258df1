// Any bytes as tokenizer.json: refused with an Error, or a tokenizer whose ids and texts are sound.
// Any bytes as text: ids that decode to the same text, in one go and as a stream.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_util.h"
#include "test_build.h"
#include "tokenizer/tokenizer.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// The properties of every tokenizer and every text.
void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.Encode(text);
  for (const std::int32_t id : ids) {
    Require(id >= 0 && id < tokenizer.vocab_size() && !tokenizer.TokenText(id).empty());
  }
  Require(tokenizer.Encode(text) == ids);  // with the words remembered
  const std::string decoded = tokenizer.Decode(ids);
  std::string storage;
  Require(ValidUtf8(decoded, &storage).data() == decoded.data());
  Tokenizer::StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const std::int32_t id : ids) streamed += stream.Add(id);
  Require(streamed + stream.Finish() == decoded);
}

void CheckFixtures(std::string_view text) {
  static const std::array<Tokenizer, 6> kTokenizers = [] {
    const auto load = [](const char* name) {
      return Tokenizer::Load(SourceDir() / "tests/fixtures" / name);
    };
    return std::array<Tokenizer, 6>{load("llama3"), load("o200k"),   load("splits"),
                                    load("gemma"),  load("falcon3"), load("unknown")};
  }();
  for (const Tokenizer& tokenizer : kTokenizers) CheckText(tokenizer, text);
  std::string storage;
  const std::string_view valid = ValidUtf8(text, &storage);
  for (const Tokenizer* tokenizer : {&kTokenizers[0], &kTokenizers[1]}) {
    Require(tokenizer->Decode(tokenizer->Encode(text, false), false) == valid);
  }
}

// The files up to the first 0 bytes, then a text.
void CheckFiles(std::string_view data) {
  static const FuzzFolder folder;
  folder.Put("tokenizer.json", TakeText(data));
  folder.Put("tokenizer_config.json", TakeText(data));
  const Tokenizer tokenizer = Tokenizer::Load(folder.path());
  CheckText(tokenizer, data.substr(0, 200));
  for (const char* text : {"ab ba", "a\xC3\xA9 <s>x", ""}) {
    Attack([&] { CheckText(tokenizer, text); });  // may need an unknown token that is missing
  }
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    CheckFixtures(rest);
  } else {
    Attack([&] { CheckFiles(rest); });
  }
  return 0;
}
