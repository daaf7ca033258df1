// Data files of any bytes: every record is read or refused with an Error, and becomes a sample that
// keeps the promises of base/batch.h.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "data/record_encoder.h"
#include "fuzz_util.h"
#include "prompt/chat_template.h"
#include "prompt/chat_template_load.h"
#include "prompt/field_template.h"
#include "records/record_file.h"
#include "test_build.h"

namespace qlora {
namespace {

constexpr std::array<const char*, 5> kNames = {"d.jsonl", "d.json", "d.csv", "d.tsv", "d"};
constexpr std::array<RecordFormat, 6> kFormats = {
    RecordFormat::kText,     RecordFormat::kPromptCompletion, RecordFormat::kInstruction,
    RecordFormat::kShareGpt, RecordFormat::kMessages,         RecordFormat::kInputIds};
constexpr std::array<LayoutChoice, 2> kChoices = {LayoutChoice::kAuto, LayoutChoice::kText};

struct Encoders {
  Tokenizer tokenizer = Tokenizer::Load(SourceDir() / "tests/golden/llama-tiny");
  std::unique_ptr<ChatTemplate> chat =
      LoadChatTemplate({.chat_template = "chatml"}, tokenizer, ChatClock::kFixed);
  std::deque<RecordEncoder> encoders;  // which cannot be moved

  Encoders() {
    for (const RecordFormat format : kFormats) {
      for (const LayoutChoice choice : kChoices) {
        encoders.emplace_back(ChooseLayout(format, {.choice = choice}, /*has_chat_template=*/true),
                              DataOptions(), tokenizer, chat.get());
      }
    }
  }
};

void Check(const Sample& sample, std::int64_t vocab_size) {
  bool good = sample.ids.size() == sample.labels.size();
  for (std::size_t t = 0; good && t < sample.ids.size(); ++t) {
    const std::int32_t label = sample.labels[t];
    good = sample.ids[t] >= 0 && sample.ids[t] < vocab_size &&
           (label == kIgnoreLabel || (label >= 0 && label < vocab_size));
  }
  if (!good) std::abort();
}

void Run(const char* name, const std::string& bytes) {
  static const Encoders encoders;
  const RecordFile file(FileBytes::FromMemory(name, bytes));
  for (std::int64_t i = 0; i < file.size(); ++i) {
    Attack([&] {
      const OrderedJson record = file.Read(i);
      for (const RecordEncoder& encoder : encoders.encoders) {
        Attack([&] {
          for (const EncodedRecord& encoded : encoder.EncodeAll(record)) {
            Check(encoded.sample, encoders.tokenizer.vocab_size());
          }
        });
      }
    });
  }
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Attack([&] { Run(kNames[data[0] % kNames.size()], bytes); });
  Attack([&] { FieldTemplate(bytes, "prompt_template").Render({{"input", "x"}, {"output", 1}}); });
  return 0;
}
