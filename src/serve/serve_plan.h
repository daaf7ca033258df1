// The memory of a server, decided before it is taken.
#ifndef QLORA_SERVE_SERVE_PLAN_H_
#define QLORA_SERVE_SERVE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "inference/loaded_model.h"
#include "qlora/train_plan.h"
#include "serve/engine/engine_service.h"
#include "serve/serve_options.h"
#include "serve/served_models.h"

namespace qlora {

struct ServePlan {
  EngineLimits limits = {};
  std::int64_t decision_length = 0;    // tokens of a question with its state, at most
  std::size_t adapter_bytes = 0;       // of all adapters, also those that come later
  std::size_t request_bytes = 0;       // RequestRoom
  std::size_t other_bytes = 0;         // beside all parts: tokenizer, code ...
  std::vector<MemoryPart> parts = {};  // weights, adapters, keys and values ...
  std::string note = {};               // for people: what was asked for and has no room; ""
};

// Of what the system calls available: the pages of files that are read in place are so, too, until
// they are read.
std::size_t RoomBeside(const WeightSizes& weights, std::size_t available);

// Threads that read requests.
inline constexpr std::int64_t kReaders = 4;
// One body may have such a part of the bytes of all, so that a slow client leaves room for others.
inline constexpr std::int64_t kLargestBodies = 2;
// Bytes of bodies of requests that may be in memory; before the model is loaded.
std::size_t BytesOfBodies(const ServeOptions& options);
// Bytes of answers that lie for their clients, beside what requests hold; one body's text as ids is
// less. Bytes of conversations that can be marked; as many wait for the disk.
inline std::size_t BytesOfUnread(std::size_t bodies) { return 2 * bodies; }
inline std::size_t BytesOfLog(std::size_t bodies) { return 2 * bodies; }

// As many sequences as fit, of the whole context; of a shorter one where the context is not given
// and few of it would fit. adapters: that passes are to have room for. Errors: OutOfMemory, with
// what would fit, where none does; InvalidInput for a context_length beyond the model's.
ServePlan PlanServing(const LoadedModel& base, const std::vector<ServedModelPtr>& models,
                      Adapters adapters, const ServeOptions& options, std::size_t bodies);

// Bytes that a training beside the server may take: of max_memory, which is one limit for both, or
// of what is free, all but what the plan has and the server has not touched yet. Not positive if
// nothing is left.
std::int64_t MemoryLeft(const ServeOptions& options, const ServePlan& plan);

}  // namespace qlora

#endif  // QLORA_SERVE_SERVE_PLAN_H_
