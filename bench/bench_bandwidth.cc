#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/bench_bandwidth.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <atomic>

#include "bench/bench_bandwidth.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<std::uint64_t>;
constexpr D d;
constexpr std::size_t kLanes = hn::MaxLanes(D());

std::uint64_t Read(const std::uint64_t* from, std::size_t words) {
  // Two chains of one cycle each; Or keeps the loads alive and cannot overflow or trap.
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  for (std::size_t i = 0; i < words; i += 2 * kLanes) {
    a = hn::Or(a, hn::Load(d, from + i));
    b = hn::Or(b, hn::Load(d, from + i + kLanes));
  }
  return hn::GetLane(hn::Or(a, b));
}

void Copy(const std::uint64_t* from, std::size_t words, std::size_t times, std::uint64_t* to) {
  // A line of 64 bytes is written `times` times in a row, as decoding writes several lines for one.
  for (std::size_t i = 0; i < words; i += 8) {
    for (std::size_t k = 0; k < times; ++k, to += 8) {
      for (std::size_t j = 0; j < 8; j += kLanes) {
        // Past the caches: a normal store would read each line before it is overwritten.
        hn::Stream(hn::Load(d, from + i + j), d, to + j);
      }
    }
  }
  hwy::FlushStream();
}

}  // namespace qlora::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::bench {

HWY_EXPORT(Read);
HWY_EXPORT(Copy);

namespace {

// Calls fn(first word, words) once per thread, with parts that are multiples of 16 words.
template <typename Fn>
void ForEachPart(Context& context, std::size_t bytes, Fn fn) {
  // 128 bytes: two vectors of the widest target.
  const std::size_t units = bytes / 128;
  const auto threads = static_cast<std::size_t>(context.threads());
  context.ParallelFor(context.threads(), [&](std::int64_t task, int) {
    const std::size_t begin = units * static_cast<std::size_t>(task) / threads;
    const std::size_t end = units * (static_cast<std::size_t>(task) + 1) / threads;
    fn(begin * 16, (end - begin) * 16);
  });
}

}  // namespace

void ReadAll(Context& context, std::span<const std::byte> memory) {
  std::atomic<std::uint64_t> sink{0};
  const auto* words = reinterpret_cast<const std::uint64_t*>(memory.data());
  ForEachPart(context, memory.size(), [&](std::size_t begin, std::size_t count) {
    sink |= HWY_DYNAMIC_DISPATCH(Read)(words + begin, count);
  });
}

void CopyAll(Context& context, std::span<const std::byte> from, std::span<std::byte> to) {
  const auto* source = reinterpret_cast<const std::uint64_t*>(from.data());
  auto* target = reinterpret_cast<std::uint64_t*>(to.data());
  const std::size_t times = to.size() / from.size();
  ForEachPart(context, from.size(), [&](std::size_t begin, std::size_t count) {
    HWY_DYNAMIC_DISPATCH(Copy)(source + begin, count, times, target + begin * times);
  });
}

}  // namespace qlora::bench
#endif
