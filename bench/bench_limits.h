// The limits of the device of a backend, and the end of the ops that are queued there.
#ifndef QLORA_BENCH_BENCH_LIMITS_H_
#define QLORA_BENCH_BENCH_LIMITS_H_

#include "backend/backend.h"
#include "base/arena.h"

namespace qlora::bench {

struct Limit {
  double value = 0;  // FLOP/s or bytes/s
  const char* kind = "";
};

// On the CPU: multiply-adds from registers. On a device: a square product of random values of the
// compute type by its library.
Limit MeasureFlops(Context& context, Backend& backend, DType compute);

// On the CPU: reading of memory. On a device: a copy of memory, reads and writes counted.
class Bandwidth {
 public:
  Bandwidth(Context& context, Backend& backend);
  // Measures once more; the best counts.
  void Measure();
  const Limit& limit() const { return limit_; }

 private:
  Context& context_;
  Backend& backend_;
  Arena from_;
  Arena to_;  // of a device
  Limit limit_;
};

// Waits until every op that a backend was given has run. Nothing on the CPU.
class QueueEnd {
 public:
  explicit QueueEnd(Memory& memory) : memory_(memory), byte_(64, memory) {}
  void Wait() const {
    std::byte copy;
    memory_.Download(byte_.data(), &copy, 1);
  }

 private:
  Memory& memory_;
  Arena byte_;
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_LIMITS_H_
