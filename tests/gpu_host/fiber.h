// Stacks that jump to each other: what the threads of a block are on the host.
#ifndef QLORA_TESTS_GPU_HOST_FIBER_H_
#define QLORA_TESTS_GPU_HOST_FIBER_H_

#include <cstddef>

namespace gpu_host {

class Fiber {
 public:
  Fiber() = default;  // the stack that the program runs on
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  bool ready() const { return top_ != nullptr; }
  // The next jump to this fiber calls entry() on a stack of its own; entry does not return.
  void Start(void (*entry)());
  // Makes a fiber that has started, and is given up, one that is not ready.
  void GiveUp() { top_ = nullptr; }

  // Continues `to` where it jumped away; returns when somebody jumps back to `from`.
  static void Jump(Fiber& from, Fiber& to);

 private:
  static void Begin();

  void* top_ = nullptr;  // of the stack, where the fiber jumped away
  char* stack_ = nullptr;
  void (*entry_)() = nullptr;
  // For AddressSanitizer, which must know the stack that it watches.
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_FIBER_H_
