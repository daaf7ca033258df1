#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/coded_panels.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <cstring>

#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/int8/coded_panels.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Values of a group, up to whole vectors with zeros behind them.
struct GroupValues {
  std::int64_t count;
  HWY_ALIGN float values[int8::kGroup];
  HWY_ALIGN std::int8_t codes[int8::kGroup];

  std::int64_t padded() const { return RoundUp(count, std::max<std::int64_t>(kLanes, kInt8Step)); }
};

void LoadGroup(const ConstRow& x, const float* factors, std::int64_t first, GroupValues& group) {
  std::fill(group.values + group.count, group.values + group.padded(), 0.0f);
  std::fill(group.codes + group.padded(), group.codes + int8::kGroup, std::int8_t{0});
  ForEachVector(group.count, [&](auto d, std::int64_t i) HWY_ATTR {
    auto value = x.Load(d, first + i);
    if (factors != nullptr) value = hn::Mul(value, hn::LoadU(d, factors + first + i));
    hn::StoreU(value, d, group.values + i);
  });
}

float LargestMagnitude(const GroupValues& group) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> d32;
  // Below 2^31, the order of whole numbers is that of numbers without a sign.
  const hn::RebindToSigned<FloatTag> i32;
  auto largest = hn::Zero(i32);
  for (std::int64_t i = 0; i < group.padded(); i += kLanes) {
    const auto bits = hn::BitCast(d32, hn::Load(d, group.values + i));
    largest = hn::Max(largest, hn::BitCast(i32, hn::And(bits, hn::Set(d32, 0x7fffffff))));
  }
  const std::int32_t bits = hn::GetLane(hn::MaxOfLanes(i32, largest));
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct CodedGroup {
  float scale;
  std::int32_t sum;  // of the codes
  int8::Spikes spikes;
};

std::int32_t SumOfCodes(const GroupValues& group) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < group.count; ++i) sum += group.codes[i];
  return sum;
}

// As int8::CodeGroup, which codes groups with spikes. Whole numbers are exact in float32.
CodedGroup CodeOf(GroupValues& group) {
  const FloatTag d;
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const hn::RebindToUnsigned<FloatTag> d32;
  const int8::CodeScale scale = int8::ScaleOfLargest(LargestMagnitude(group));
  if (scale.inverse == 0) {
    std::memset(group.codes, 0, sizeof(group.codes));
    return {scale.scale, 0, {}};
  }
  const auto inverse = hn::Set(d, scale.inverse);
  // Sums with it are whole numbers, whose lowest byte is the code.
  const auto rounder = hn::Set(d, 0x1.8p23f);
  // More than the squares of all others can be, so that one sum has both.
  constexpr int kFar = 1 << 17;
  static_assert(int8::kGroup * int8::kSpikeCode * int8::kSpikeCode <= kFar);
  static_assert(int8::kGroup * kFar <= 1 << 24);
  auto squares_and_far = hn::Zero(d);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < group.padded(); i += kLanes) {
    const auto rounded = hn::Add(hn::Mul(hn::Load(d, group.values + i), inverse), rounder);
    auto* codes = reinterpret_cast<std::uint8_t*>(group.codes);
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(d32, rounded)), d8, codes + i);
    const auto value = hn::Sub(rounded, rounder);
    const auto is_far = hn::Ge(hn::Abs(value), hn::Set(d, float{int8::kSpikeCode}));
    const auto square = hn::Mul(value, value);
    const auto counted = hn::IfThenElse(is_far, hn::Set(d, float{kFar}), square);
    squares_and_far = hn::Add(squares_and_far, counted);
    sum = hn::Add(sum, value);
  }
  const auto both = static_cast<int>(hn::GetLane(hn::SumOfLanes(d, squares_and_far)));
  if (!int8::HasSpikes(group.count, both / kFar, both % kFar)) {
    return {scale.scale, static_cast<std::int32_t>(hn::GetLane(hn::SumOfLanes(d, sum))), {}};
  }
  CodedGroup coded;
  coded.scale = int8::CodeGroup({group.values, static_cast<std::size_t>(group.count)}, group.codes,
                                coded.spikes);
  coded.sum = SumOfCodes(group);
  return coded;
}

}  // namespace

void PackCodesOfTarget(const ConstMatrixView& x, const float* factors, CodeOrder order,
                       const CodedPanel& panel) {
  std::int32_t spike_count = 0;
  for (std::int64_t first = 0; first < x.cols; first += int8::kGroup) {
    GroupValues group;
    group.count = std::min(int8::kGroup, x.cols - first);
    const std::int64_t quads = RoundUp(group.count, kInt8Depth) / kInt8Step;
    const std::int64_t at = first / int8::kGroup * panel.width;
    std::uint32_t lanes_of[int8::kGroup] = {};
    bool has_spikes = false;
    for (std::int64_t lane = 0; lane < panel.width; ++lane) {
      std::int8_t* to = panel.codes + first * panel.width + lane * kInt8Step;
      if (lane >= panel.rows) {  // nobody reads its sums
        for (std::int64_t i = 0; i < quads; ++i) {
          std::memset(to + i * panel.width * kInt8Step, 0, kInt8Step);
        }
        panel.scales[at + lane] = 0;
        panel.starts[at + lane] = 0;
        continue;
      }
      LoadGroup(ConstRow(x, lane), factors, first, group);
      // Behind the values, codes of zeros; CodeGroup leaves those of whole vectors as they were.
      const CodedGroup coded = CodeOf(group);
      const int8::Spikes& spikes = coded.spikes;
      panel.scales[at + lane] = coded.scale;
      panel.starts[at + lane] = -kCodeOffset * coded.sum;
      const std::int8_t* codes = group.codes;
      std::int8_t paired[int8::kGroup];
      if (order == CodeOrder::kPaired) {
        PairCodes(reinterpret_cast<const std::uint8_t*>(codes), group.count,
                  reinterpret_cast<std::uint8_t*>(paired));
        codes = paired;
      }
      for (std::int64_t i = 0; i < quads; ++i) {
        std::memcpy(to + i * panel.width * kInt8Step, codes + i * kInt8Step, kInt8Step);
      }
      for (int i = 0; i < spikes.count; ++i) lanes_of[spikes.columns[i]] |= 1u << lane;
      has_spikes = has_spikes || spikes.count > 0;
    }
    for (std::int64_t i = 0; has_spikes && i < group.count; ++i) {
      if (lanes_of[i] == 0) continue;
      panel.spikes[spike_count++] = {static_cast<std::int32_t>(first + i), lanes_of[i]};
    }
  }
  *panel.spike_count = spike_count;
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

CodedPanels::CodedPanels(Carver& carver, std::span<const IndexRange> ranges, std::int64_t k,
                         bool are_single)
    : most_(are_single ? 1 : kInt8Lanes), k_(k) {
  for (const IndexRange& range : ranges) {
    for (std::int64_t row = range.begin; row < range.end; row += most_) {
      places_.push_back({row, std::min(most_, range.end - row), lanes_ + row - range.begin});
    }
    lanes_ += RoundUp(range.size(), kInt8Vector);
  }
  codes_ = carver.Matrix(DType::kU8, lanes(), RoundUp(k, kInt8Depth));
  scales_ = carver.Matrix(DType::kF32, lanes(), groups());
  starts_ = carver.Matrix(DType::kI32, lanes(), groups());
  spikes_ = carver.Matrix(DType::kU8, count(),
                          most_spikes() * static_cast<std::int64_t>(sizeof(SpikeColumn)));
  spike_counts_ = carver.Matrix(DType::kI32, 1, count());
}

CodedPanel CodedPanels::operator[](std::int64_t panel) const {
  const Place& place = places_[panel];
  return {.row = place.row,
          .rows = place.rows,
          .lane = place.lane,
          .width = most_ == 1 ? 1 : RoundUp(place.rows, kInt8Vector),
          .codes = static_cast<std::int8_t*>(codes_.data) + place.lane * codes_.cols,
          .scales = scales_.Row<float>(place.lane),
          .starts = starts_.Row<std::int32_t>(place.lane),
          .spikes = static_cast<SpikeColumn*>(spikes_.data) + panel * most_spikes(),
          .spike_count = spike_counts_.Row<std::int32_t>(0) + panel};
}

HWY_EXPORT(PackCodesOfTarget);
void PackCodes(const ConstMatrixView& x, const float* factors, CodeOrder order,
               const CodedPanel& panel) {
  HWY_DYNAMIC_DISPATCH(PackCodesOfTarget)(x, factors, order, panel);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
