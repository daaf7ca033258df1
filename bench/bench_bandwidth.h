// The bandwidth of this machine's memory: the limit of everything that streams.
#ifndef QLORA_BENCH_BENCH_BANDWIDTH_H_
#define QLORA_BENCH_BENCH_BANDWIDTH_H_

#include <cstddef>
#include <span>

#include "qlora/context.h"

namespace qlora::bench {

// Reads every byte once, each thread one consecutive part. The memory is aligned to 64 bytes and a
// multiple of 64 long.
void ReadAll(Context& context, std::span<const std::byte> memory);

// Copies with stores that bypass the caches. `to` is k >= 1 times as long as `from` and receives
// every 64 bytes k times in a row: the limit of an operation that writes k times the bytes that it
// reads.
void CopyAll(Context& context, std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_BANDWIDTH_H_
