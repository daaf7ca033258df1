// Jumps between stacks. On x86-64 a jump saves what a called function must keep and changes the
// stack pointer, 7 ns; elsewhere it is swapcontext, which also saves the signal mask.
#include "gpu_host/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "gpu_host/asan.h"

#if defined(__x86_64__)
extern "C" void gpu_host_jump(void** save, void* load);
// The registers that a function keeps for its caller, pushed; then the stacks are exchanged.
asm(R"(
.text
.p2align 4
.type gpu_host_jump, @function
gpu_host_jump:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gpu_host_jump, .-gpu_host_jump
)");
#else
#include <ucontext.h>
#endif

namespace gpu_host {
namespace {

// Sanitized code needs more. Pages that are not touched take no memory.
constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::size_t kGuardBytes = 4096;

Fiber* from_fiber = nullptr;
Fiber* to_fiber = nullptr;

}  // namespace

void Fiber::Begin() {
  const void* bottom = nullptr;
  std::size_t size = 0;
  FinishSwitch(nullptr, &bottom, &size);
  // Where the first jump to any fiber came from: tells the bounds of the program's stack.
  if (from_fiber->stack_ == nullptr) {
    from_fiber->bottom_ = bottom;
    from_fiber->size_ = size;
  }
  to_fiber->entry_();
  std::abort();
}

void Fiber::Start(void (*entry)()) {
  if (stack_ == nullptr) {
    void* pages = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages, kGuardBytes, PROT_NONE) != 0) std::abort();
    stack_ = static_cast<char*>(pages) + kGuardBytes;
    bottom_ = stack_;
    size_ = kStackBytes;
  }
  Unpoison(stack_, kStackBytes);
  entry_ = entry;
  fake_stack_ = nullptr;
#if defined(__x86_64__)
  // Six registers, the address that `ret` takes, and one word: at a function's first instruction
  // the stack pointer is 8 below a multiple of 16.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + kStackBytes) - 8;
  for (int i = 0; i < 8; ++i) top[i] = 0;
  top[6] = reinterpret_cast<std::uintptr_t>(&Fiber::Begin);
  top_ = top;
#else
  auto* context = new (stack_) ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack_ + sizeof(ucontext_t);
  context->uc_stack.ss_size = kStackBytes - sizeof(ucontext_t);
  makecontext(context, &Fiber::Begin, 0);
  top_ = context;
#endif
}

void Fiber::Jump(Fiber& from, Fiber& to) {
  from_fiber = &from;
  to_fiber = &to;
  StartSwitch(&from.fake_stack_, to.bottom_, to.size_);
#if defined(__x86_64__)
  gpu_host_jump(&from.top_, to.top_);
#else
  if (from.top_ == nullptr) from.top_ = new ucontext_t;  // of the program's stack, once
  swapcontext(static_cast<ucontext_t*>(from.top_), static_cast<ucontext_t*>(to.top_));
#endif
  FinishSwitch(from.fake_stack_, nullptr, nullptr);
}

}  // namespace gpu_host
