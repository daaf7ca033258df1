// Attacks the GGUF reader, the tokenizer in its keys, and the reading of a model or of an adapter
// from what it accepts, which must also be written again and read back as the same.
#include "config/gguf_config.h"
#include "fuzz_decoders.h"
#include "fuzz_util.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "model/gguf_checkpoint.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  static const FuzzFolder folder;
  static const std::vector<DecoderConfig> decoders = FuzzDecoders();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Attack([&] {
    const std::filesystem::path path = folder.Put("a.gguf", input);
    Attack([&] {
      const Tokenizer tokenizer = Tokenizer::Load(path);
      tokenizer.Decode(tokenizer.Encode("It's <s> 2024 </s>\n\u00e9"));
    });
    const auto reader = OpenGguf(path);
    ReadAll(*reader);
    Attack([&] {
      const DecoderConfig config = ParseGgufConfig(*reader);
      ReadAll(*OpenGgufCheckpoint(OpenGguf(path), config));
    });
    for (const DecoderConfig& decoder : decoders) {
      Attack([&] { CheckValues(ReadGgufValues(path, decoder)); });
    }
    for (const GgufEntry& entry : reader->values().entries()) {
      Attack([&] { reader->Get<std::uint32_t>(entry.key); });
      Attack([&] { reader->Get<std::vector<std::string>>(entry.key); });
    }
    // The writer sets its own alignment and takes no scalars, so it may refuse.
    const std::filesystem::path copy = folder.path() / "b.gguf";
    const auto writer = CreateGguf(copy, reader->values(), reader->tensors());
    for (const TensorInfo& tensor : reader->tensors()) writer->Write(reader->Bytes(tensor));
    writer->Finish();
    const auto again = OpenGguf(copy);
    // Bit patterns of NaN do not compare equal; the number of keys does.
    if (again->values().entries().size() != reader->values().entries().size()) std::abort();
    for (std::size_t i = 0; i < reader->tensors().size(); ++i) {
      const auto one = reader->Bytes(reader->tensors()[i]);
      const auto two = again->Bytes(again->tensors()[i]);
      if (!std::equal(one.begin(), one.end(), two.begin(), two.end())) std::abort();
    }
  });
  return 0;
}
