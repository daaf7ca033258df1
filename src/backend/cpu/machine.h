// The machine that the ops of this folder run on: threads, kernels and scratch memory.
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
