// What the memory of this machine delivers: the limit of everything that streams.
#ifndef QLORA_BENCH_BENCH_BANDWIDTH_H_
#define QLORA_BENCH_BENCH_BANDWIDTH_H_

#include <cstddef>
#include <span>

#include "qlora/context.h"

namespace qlora::bench {

// Reads every byte once, each thread one consecutive part. The memory is aligned to 64 bytes and a
// multiple of 64 long.
void ReadAll(Context& context, std::span<const std::byte> memory);

// Copies with stores that pass the caches by. Both as long, aligned as above.
void CopyAll(Context& context, std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_BANDWIDTH_H_
