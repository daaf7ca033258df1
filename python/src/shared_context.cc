#include "shared_context.h"

namespace qlora::python {

ContextPtr ContextOr(const ContextPtr& context) {
  if (context != nullptr) return context;
  // Only touched with the interpreter's lock held. Never destroyed: at exit, and in a forked
  // process, there may be no threads left to join.
  static ContextPtr* shared = nullptr;
  if (shared == nullptr || !(*shared)->in_this_process()) {
    shared = new ContextPtr(std::make_shared<SharedContext>(0));
  }
  return *shared;
}

ContextPtr ContextFor(const ContextPtr& context, std::int64_t threads) {
  if (context != nullptr || threads == 0) return ContextOr(context);
  constexpr std::int64_t kMost = 4096;
  if (threads < 0 || threads > kMost) {
    ThrowInvalidInput("threads: expected 0 to {}, found {}", kMost, threads);
  }
  // Separate threads, which end with the last object that names this context.
  return std::make_shared<SharedContext>(static_cast<int>(threads));
}

}  // namespace qlora::python
