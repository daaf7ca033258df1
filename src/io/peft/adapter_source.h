// The adapters that options name: a place, and the weight of the adapter among others.
#ifndef QLORA_IO_PEFT_ADAPTER_SOURCE_H_
#define QLORA_IO_PEFT_ADAPTER_SOURCE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct AdapterSource {
  std::string path;  // a folder of PEFT or mlx-lm, or a GGUF file
  double weight = 1;
};

// Splits "PATH:WEIGHT" at its last colon. The whole text is a path where it exists, or where what
// follows the colon is no number. Errors: InvalidInput for a weight that is not finite.
AdapterSource ParseAdapterSource(std::string_view text);

// The adapters of a model, in the order of the options.
struct AdapterSet {
  std::vector<AdapterSource> sources;
  // 0: adapters are combined exactly. Otherwise modules of a larger rank are reduced to this one.
  std::int64_t rank = 0;

  bool empty() const { return sources.empty(); }
  // The first decides on what only one can: tokenizer, layout of prompts, form of the base. ""
  // where there is none.
  std::string first() const { return empty() ? "" : sources.front().path; }
  // True where the adapter is used as it is.
  bool is_single() const { return sources.size() == 1 && sources[0].weight == 1 && rank == 0; }
};

enum class AdapterFormat : std::uint8_t { kPeft, kMlx, kGguf };
// What is at this place; kPeft where nothing tells, whose reader says what is missing.
AdapterFormat FormatOfAdapter(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_IO_PEFT_ADAPTER_SOURCE_H_
