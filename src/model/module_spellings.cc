#include "model/module_spellings.h"

#include <array>
#include <map>
#include <string_view>

#include "base/text.h"
#include "model/linear_shapes.h"

namespace qlora {
namespace {

// A * is the number of an expert.
struct Spelling {
  std::string_view whole;
  std::array<std::string_view, 3> parts;
  bool in_turn = false;
};
constexpr auto kSpellings = std::to_array<Spelling>({
    // Families join q, k and v, or gate and up, or do not.
    {"self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {"mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"}},
    {"mlp.shared_expert.gate_up_proj",
     {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"}},
    {"mlp.experts.*.gate_up_proj", {"mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"}},
    {"experts.*.gate_up_proj", {"experts.*.gate_proj", "experts.*.up_proj"}},
    {"linear_attn.in_proj_qkv",
     {"linear_attn.in_proj_q", "linear_attn.in_proj_k", "linear_attn.in_proj_v"}},
    // Granite 4, whose GGUF files are those of a Granite 3.
    {"shared_mlp.input_linear", {"mlp.gate_proj", "mlp.up_proj"}},
    {"shared_mlp.output_linear", {"mlp.down_proj"}},
    // gpt-oss in the class of Unsloth.
    {"mlp.experts.gate_up_projs.*", {"mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"}, true},
    {"mlp.experts.down_projs.*", {"mlp.experts.*.down_proj"}},
    // Mixtral's block in transformers 5.
    {"block_sparse_moe.experts.*.w1", {"mlp.experts.*.w1"}},
    {"block_sparse_moe.experts.*.w2", {"mlp.experts.*.w2"}},
    {"block_sparse_moe.experts.*.w3", {"mlp.experts.*.w3"}},
});

std::string OfExpert(std::string_view name, std::int64_t expert) {
  std::string out(name);
  const std::size_t star = out.find('*');
  return star == std::string::npos ? out : out.replace(star, 1, std::to_string(expert));
}

}  // namespace

std::vector<RecutLinear> RecutLinears(const DecoderConfig& config, std::int64_t layer) {
  std::map<std::string, std::int64_t> rows;  // of the linears of the layer
  ForEachPair(LinearNames(config, layer), ShapeLinears(config, layer),
              [&](const std::string& name, const LinearShape& shape) { rows[name] = shape.out; });
  std::vector<RecutLinear> recuts;
  for (const Spelling& spelling : kSpellings) {
    const bool is_expert = spelling.whole.find('*') != std::string_view::npos;
    for (std::int64_t e = 0; e < (is_expert ? config.experts().num_experts : 1); ++e) {
      RecutLinear recut{OfExpert(spelling.whole, e), {}, {}, spelling.in_turn};
      for (const std::string_view part : spelling.parts) {
        if (part.empty()) continue;
        recut.parts.push_back(OfExpert(part, e));
        const auto found = rows.find(recut.parts.back());
        if (found != rows.end()) recut.rows.push_back(found->second);
      }
      const bool has_whole = rows.contains(recut.whole);
      const bool has_parts = recut.rows.size() == recut.parts.size();
      // What the first expert has not, the others have not either.
      if (has_whole == has_parts || (has_whole && !recut.rows.empty())) break;
      recuts.push_back(std::move(recut));
    }
  }
  return recuts;
}

std::string RouterSpelled(const DecoderConfig& config, std::string name) {
  // Mixtral's block in transformers 5.
  constexpr std::string_view kMlp = ".mlp.gate";
  if (config.names.mlp == "block_sparse_moe" && name.ends_with(kMlp)) {
    name.replace(name.size() - kMlp.size(), kMlp.size(), ".block_sparse_moe.gate");
  }
  if (!config.moe.is_joined) return name;
  return ReplaceAll(std::move(name), ".router.linear", ".router");
}

}  // namespace qlora
