// Planned scratch memory of the CPU backend: one arena that all workers share and one for each.
// Ops carve their scratch memory from the start; nothing survives a call.
#ifndef QLORA_BACKEND_CPU_WORKSPACE_H_
#define QLORA_BACKEND_CPU_WORKSPACE_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/check.h"

namespace qlora::cpu {

struct WorkspaceSize {
  std::size_t shared = 0;
  std::size_t worker = 0;

  std::size_t Total(int workers) const {
    return shared + worker * static_cast<std::size_t>(workers);
  }
};
inline WorkspaceSize Max(const WorkspaceSize& a, const WorkspaceSize& b) {
  return {std::max(a.shared, b.shared), std::max(a.worker, b.worker)};
}

class Workspace {
 public:
  // Grows only, so that limits of earlier calls stay covered.
  void Reserve(const WorkspaceSize& size, int workers) {
    if (size.shared > shared_.bytes()) shared_ = Arena(size.shared);
    if (std::ssize(workers_) == workers && size.worker <= workers_[0].bytes()) return;
    const std::size_t bytes = std::max(size.worker, workers_.empty() ? 0 : workers_[0].bytes());
    // Both sets at a time could be more memory than there is. Without memory for all workers there
    // are none, which Check refuses.
    workers_.clear();
    std::vector<Arena> made;
    for (int w = 0; w < workers; ++w) made.emplace_back(bytes);
    workers_ = std::move(made);
  }

  Arena& shared() { return shared_; }
  Arena& worker(int w) { return workers_[w]; }

  // Throws unless Reserve has been called with limits that cover an op that carves this much.
  void Check(const WorkspaceSize& needed) const {
    const std::size_t worker = workers_.empty() ? 0 : workers_[0].bytes();
    if (needed.shared > shared_.bytes() || needed.worker > worker) {
      ThrowRuntime(
          "workspace: {} shared and {} bytes per worker are reserved, {} and {} needed (Reserve "
          "must be called with limits that cover every op)",
          shared_.bytes(), worker, needed.shared, needed.worker);
    }
  }

 private:
  Arena shared_;
  std::vector<Arena> workers_;
};

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_WORKSPACE_H_
