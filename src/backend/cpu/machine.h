// The machine that the ops of this folder run on: threads, kernels and scratch memory.
//
// Files are named after ops (norm.cc, rope.cc); ops of several files have folders: attention/,
// delta/, linear/. cpu_backend.cc cuts an op into tasks and calls them. Work is cut by shape, never
// by the number of threads, so results are the same bits on any number of threads.
//
// One engine multiplies dense and 4-bit weights (gemm/kernels.h has its table of kernels). NF4 is
// decoded into panels as it is needed, so that there is no second, decoded copy of the weights. Few
// rows of activations are multiplied as dot products instead, with weights as they are stored in
// the file or prepacked (gemm/prepacked.h, with AVX512_VBMI): beforehand to generate, and for
// float32 products of 4 and more rows also as they are needed, 16 rows of a weight at a time. Tiles
// of AMX multiply any number of rows with prepacked weights (x86/prepacked_amx.cc).
//
// Products in 8 bits have codes in place of values, and sums that are exact (int8/).
//
// gemm/*-inl.h and int8/ compile for several instruction sets (Highway), x86/ and arm/ have
// instructions of one architecture; the fastest is chosen at run time (machine/simd_target.h).
#ifndef QLORA_BACKEND_CPU_MACHINE_H_
#define QLORA_BACKEND_CPU_MACHINE_H_

#include <cstdint>
#include <functional>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/workspace.h"
#include "qlora/context.h"

namespace qlora::cpu {

struct Machine {
  Context& context;
  const Kernels& kernels;
  Workspace& workspace;
};

// Part `part` of item `item`.
struct Part {
  std::int64_t item;
  std::int64_t part;
};

// Returns the part at `index` of a list that holds parts(0) parts of item 0, then parts(1) parts of
// item 1, and so on.
template <typename Parts>
Part FindPart(std::int64_t index, const Parts& parts) {
  std::int64_t item = 0;
  for (; index >= parts(item); ++item) index -= parts(item);
  return {item, index};
}

// Runs body(item, part, worker) in parallel, for each part in [0, parts(item)) of each item in
// [0, items).
template <typename Parts, typename Body>
void ParallelParts(const Machine& machine, std::int64_t items, const Parts& parts,
                   const Body& body) {
  std::int64_t tasks = 0;
  for (std::int64_t item = 0; item < items; ++item) tasks += parts(item);
  const auto task = [&](std::int64_t index, int worker) {
    const Part found = FindPart(index, parts);
    body(found.item, found.part, worker);
  };
  machine.context.ParallelFor(tasks, std::ref(task));
}

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_MACHINE_H_
