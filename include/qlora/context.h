// The threads, the device and the ranks of jobs, passed as an argument instead of globals.
#ifndef QLORA_CONTEXT_H_
#define QLORA_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace qlora {

class BackendFactory;
class Communicator;

// Where jobs compute: on a pool of threads, on the device that the option `device` of each job
// names, and with the other ranks of a communicator. One Context may be used by one caller at a
// time; several Contexts can live side by side in a process.
class Context {
 public:
  // threads == 0: one per core that this process may use (affinity mask and cgroup quota
  // respected). Errors: InvalidInput if the system does not give this many threads.
  explicit Context(int threads = 0);
  // Of one rank of a job; the communicator must outlive the context. threads == 0: this rank's
  // share of the cores, which ranks of one host split evenly.
  Context(int threads, Communicator& communicator);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  // The other ranks of the job; of a context of its own: one rank.
  Communicator& communicator() const { return *communicator_; }

  // Calls task(index, worker) once for every index in [0, tasks) and returns when all are done.
  // Indices are handed out one by one, so that a core taken by another process does not hold up
  // the rest; worker is in [0, threads()). A task must not throw and must not call ParallelFor.
  // A thread that another process keeps from running may be moved to another of its cores.
  // Results do not depend on the number of threads as long as every task writes its own outputs.
  void ParallelFor(std::int64_t tasks,
                   const std::function<void(std::int64_t index, int worker)>& task);

 private:
  friend class BackendFactory;  // of the library: sets and reads backends_
  class Pool;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Communicator> one_process_;  // where no communicator was given
  Communicator* communicator_;
  // Makes the backends of all jobs in place of the option `device`; or null.
  std::shared_ptr<const BackendFactory> backends_;
};

// Receives how much of a job is done, and all of it.
using ProgressFn = std::function<void(std::int64_t done, std::int64_t total)>;

}  // namespace qlora

#endif  // QLORA_CONTEXT_H_
