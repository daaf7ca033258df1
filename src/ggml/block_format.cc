#include "ggml/block_format.h"

#include <algorithm>

namespace qlora {
namespace {

using enum BlockFormat;
using enum Importance;

constexpr BlockFormatInfo kFormats[] = {
    {kQ4_0, "Q4_0", 2, 32, 18, kUsed, true},
    {kQ4_1, "Q4_1", 3, 32, 20, kUsed, true},
    {kQ5_0, "Q5_0", 6, 32, 22, kUsed, true},
    {kQ5_1, "Q5_1", 7, 32, 24, kUsed, true},
    {kQ8_0, "Q8_0", 8, 32, 34, kIgnored, true},
    {kQ2_K, "Q2_K", 10, 256, 84, kUsed, true},
    {kQ3_K, "Q3_K", 11, 256, 110, kUsed, true},
    {kQ4_K, "Q4_K", 12, 256, 144, kUsed, true},
    {kQ5_K, "Q5_K", 13, 256, 176, kUsed, true},
    {kQ6_K, "Q6_K", 14, 256, 210, kUsed, true},
    {kIQ2_XXS, "IQ2_XXS", 16, 256, 66, kNeeded, false},
    {kIQ2_XS, "IQ2_XS", 17, 256, 74, kNeeded, false},
    {kIQ3_XXS, "IQ3_XXS", 18, 256, 98, kUsed, false},
    {kIQ1_S, "IQ1_S", 19, 256, 50, kNeeded, false},
    {kIQ4_NL, "IQ4_NL", 20, 32, 18, kUsed, true},
    {kIQ3_S, "IQ3_S", 21, 256, 110, kUsed, false},
    {kIQ2_S, "IQ2_S", 22, 256, 82, kUsed, false},
    {kIQ4_XS, "IQ4_XS", 23, 256, 136, kUsed, true},
    {kIQ1_M, "IQ1_M", 29, 256, 56, kUsed, false},
    {kTQ1_0, "TQ1_0", 34, 256, 54, kIgnored, false},
    {kTQ2_0, "TQ2_0", 35, 256, 66, kIgnored, false},
    {kMXFP4, "MXFP4", 39, 32, 17, kUsed, true},
    {kNVFP4, "NVFP4", 40, 64, 36, kIgnored, false},
    {kQ1_0, "Q1_0", 41, 128, 18, kIgnored, false},
    {kQ2_0, "Q2_0", 42, 64, 18, kIgnored, false},
};

constexpr bool IsInOrder() {
  for (std::size_t i = 0; i < std::size(kFormats); ++i) {
    if (&kFormats[static_cast<int>(kFormats[i].format)] != &kFormats[i]) return false;
    if (kFormats[i].values > kMaxBlockValues) return false;
  }
  return true;
}
static_assert(IsInOrder());

const BlockFormatInfo* FindBy(auto field, auto value) {
  const auto found = std::ranges::find(kFormats, value, field);
  return found == std::end(kFormats) ? nullptr : &*found;
}

}  // namespace

std::span<const BlockFormatInfo> BlockFormats() { return kFormats; }

const BlockFormatInfo& InfoOf(BlockFormat format) { return kFormats[static_cast<int>(format)]; }

const BlockFormatInfo* FindBlockFormat(std::uint32_t ggml_type) {
  return FindBy(&BlockFormatInfo::ggml_type, ggml_type);
}

const BlockFormatInfo* FindBlockFormat(std::string_view name) {
  return FindBy(&BlockFormatInfo::name, name);
}

}  // namespace qlora
