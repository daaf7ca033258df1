// Attacks the safetensors reader. The first byte chooses: a raw file; a header and data with the
// right length before them, whose weights in 8 bits are decoded; an index beside a good shard.
#include "fuzz_util.h"
#include "io/fp8.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  static const FuzzFolder folder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const int mode = input[0] % 3;
  input.remove_prefix(1);
  Attack([&] {
    if (mode == 0) {
      ReadAll(*OpenSafetensors(folder.Put("a.safetensors", input)));
    } else if (mode == 1) {
      const std::string_view header = TakeText(input);
      ReadAll(*WithDecodedFp8(
          OpenSafetensors(folder.Put("a.safetensors", SafetensorsOf(header, input)))));
    } else {
      folder.Put("s",
                 SafetensorsOf(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xy"));
      ReadAll(*OpenSafetensors(folder.Put("model.safetensors.index.json", input)));
    }
  });
  return 0;
}
