// Adapters beside a base.
#include "serve/adapter_checks.h"

#include <gtest/gtest.h>

#include "base/memory.h"
#include "pass/activations.h"
#include "pass/decoder_families.h"

namespace qlora {
namespace {

// Whatever an adapter of this rank changes, passes have room for it.
TEST(LargestAdapter, IsOnEveryLinearOfEveryFamily) {
  for (const TestedFamily& family : Families()) {
    const LoraAdapter largest = LargestAdapter(family.config, HostMemory(), 3);
    EXPECT_EQ(RankOf(largest), 3);
    const AdapterSizes sizes(family.config, {&largest});
    for (const auto& layer : sizes.layers) {
      for (const AdapterSizes::Place& place : layer) EXPECT_EQ(place.rank, 3) << family.name;
    }
    EXPECT_EQ(sizes.dora_linear > 0, family.config.experts().num_experts == 0) << family.name;
  }
}

}  // namespace
}  // namespace qlora
