// `qlora-bench peak`: the arithmetic limit of each instruction set of this machine.
#ifndef QLORA_BENCH_BENCH_PEAK_H_
#define QLORA_BENCH_BENCH_PEAK_H_

#include <vector>

#include "bench/bench_clock.h"
#include "bench/bench_row.h"
#include "qlora/context.h"

namespace qlora::bench {

// Two rows for each loop of machine/peak.h whose instruction is here: operations a second of all
// threads, and the cycles from one instruction to the next of a thread. A cycle is what an addition
// takes that waits for the one before it, measured in turn: the clock of wide vectors and of tiles
// may be slower than that of additions, which then counts as more cycles.
std::vector<BenchRow> BenchPeak(Context& context, Clock clock);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_PEAK_H_
