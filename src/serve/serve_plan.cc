#include "serve/serve_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/printable.h"
#include "inference/asked_questions.h"
#include "inference/engine.h"
#include "pass/pass_shape.h"
#include "pass/rope.h"
#include "pass/state_pool.h"
#include "plan/memory_plan.h"
#include "serve/request_fields.h"
#include "serve/structured/grammar_edit.h"

namespace qlora {
namespace {

// Fewer answers at the same time are worth a shorter context, down to this one.
constexpr std::int64_t kWantedSequences = 4;
constexpr std::int64_t kLeastContext = 4096;
// Tokens of a question with its state that there is always room for.
constexpr std::int64_t kLeastQuestion = 1024;
// Bodies of requests that are coming or read, in memory. Half of it (kLargestBodies) holds a text
// of a million tokens, and each byte is planned as what it may become.
constexpr std::size_t kMostBodies = std::size_t{16} << 20;
// A byte of a body becomes so many while it is read: of the JSON, of messages, of what the chat
// template makes of them, and above all of the tokenizer, which takes the most for one long word.
// Measured of the tokenizer: up to 44; the others have a copy each.
constexpr std::size_t kBodyGrowth = 48;

// Of this process, once it has read all of the weights.
std::size_t LoadedBytes(const LoadedModel& base) {
  const WeightSizes& weights = base.weights.sizes;
  return std::max(ResidentBytes(), weights.owned + weights.mapped);
}

// What the base and its adapters ask of memory.
class Needs {
 public:
  // adapters: that passes have room for.
  Needs(const LoadedModel& base, const std::vector<ServedModelPtr>& models, Adapters adapters)
      : base_(base), adapters_(std::move(adapters)), adapter_bytes_(BytesOfAdapters(models)) {}

  std::size_t adapter_bytes() const { return adapter_bytes_; }
  std::size_t loaded() const { return LoadedBytes(base_); }
  // Of keys and values, and states.
  std::size_t Slots(std::int64_t sequences, std::int64_t positions) const {
    return BytesOfPool(base_.config, base_.precision, sequences, positions);
  }
  // Of passes with their workspace, and of rotary tables.
  std::size_t Passes(const EngineLimits& limits) const {
    const ActivationShape slots = EvalShape(base_.config, limits.rows);
    const ActivationShape alone = EvalShape(base_.config, limits.alone_rows, limits.alone_unfolded);
    BackendLimits of_slots = LimitsOf(base_.config, adapters_, slots.rows, slots.head_rows);
    of_slots.any_order = true;
    const BackendLimits of_alone = LimitsOf(base_.config, adapters_, alone.rows, alone.head_rows);
    return RopeTables::Bytes(base_.config, base_.precision.wide, limits.positions) +
           std::max(Bytes(slots), Bytes(alone)) +
           std::max(base_.backend->WorkspaceBytes(of_slots),
                    base_.backend->WorkspaceBytes(of_alone));
  }

  // Of answers that are written, beside their slots: the texts of all tokens, and of each answer
  // its ids, which take twice as much while they grow, those that its slot keeps, what the sampler
  // has of each logit, and what holds the answer to a form.
  std::size_t Answers(std::int64_t sequences, std::int64_t positions) const {
    constexpr std::int64_t kTextBytes = 64;  // measured: 60
    constexpr std::int64_t kIdBytes = 3 * sizeof(std::int32_t);
    constexpr std::int64_t kLogitBytes = 40;
    const std::int64_t vocabulary = base_.config.vocab_size;
    const auto form = static_cast<std::int64_t>(GrammarEdit::MostBytes(vocabulary));
    const std::int64_t one = positions * kIdBytes + vocabulary * kLogitBytes + form;
    return static_cast<std::size_t>(vocabulary * kTextBytes + sequences * one);
  }

 private:
  std::size_t Bytes(const ActivationShape& shape) const {
    return BytesOfPass(base_.config, adapters_, base_.precision, shape);
  }

  const LoadedModel& base_;
  Adapters adapters_;
  std::size_t adapter_bytes_;
};

// Bytes for all that comes now, beside the model that is loaded.
std::size_t RoomOf(const LoadedModel& base, const ServeOptions& options) {
  const std::size_t available = RoomBeside(base.weights.sizes, base.backend->memory().Available());
  if (options.max_memory.empty()) {
    return options.kv_memory.empty() ? available / 2 : available;
  }
  const std::size_t limit = ParseBytes(options.max_memory);
  const std::size_t held = LoadedBytes(base);
  const std::size_t room = limit > held ? std::min(limit - held, available) : 0;
  // One limit for the server and its jobs.
  return options.runs.empty() ? room : room / 2;
}

// Returns the tokens of a question with its state. Passes over questions are as long as one of
// them, and as what shares a pass with it, up to a quarter of the room.
std::int64_t LimitQuestions(const Needs& needs, std::size_t room, EngineLimits& limits) {
  std::int64_t length = limits.positions;
  limits.alone_rows = length + kMostFurtherRows;
  limits.alone_unfolded = kMostUnfoldedRows;
  while (length / 2 >= kLeastQuestion && needs.Passes(limits) > room / 4) {
    length /= 2;
    limits.alone_rows = length + kMostFurtherRows;
  }
  return length;
}

// Of `room`, for adapters that come later.
std::size_t LaterAdapters(const ServeOptions& options, std::size_t room) {
  return options.gets_adapters() ? room / 8 : 0;
}

// Bytes of bodies, of the memory of the server.
std::size_t BodiesIn(std::size_t memory) { return std::min(kMostBodies, memory / 8 / kBodyGrowth); }

// RequestRoom.
std::size_t RoomOfRequests(std::size_t bodies) { return 4 * bodies; }

// Of requests while they come, are read and wait, and of what lies for clients and the disk.
std::size_t BytesOfRequests(const ServeOptions& options, std::size_t bodies) {
  return kBodyGrowth * bodies + RoomOfRequests(bodies) + BytesOfUnread(bodies) +
         (options.log_requests.empty() ? 0 : 2 * BytesOfLog(bodies)) +
         static_cast<std::size_t>(kReaders * kMostBodyValues * kJsonValueBytes);
}

// A max_memory with which one sequence would fit.
std::size_t EnoughMemory(const ServeOptions& options, std::size_t loaded, std::size_t passes,
                         std::size_t answer) {
  // Bodies have a part of the memory. From below the sums approach the least memory that is enough.
  std::size_t enough = loaded;
  for (int turn = 0; turn < 64; ++turn) {
    std::size_t room = passes + BytesOfRequests(options, BodiesIn(enough)) + answer;
    if (options.gets_adapters()) room += room / 7 + 1;
    enough = loaded + (options.runs.empty() ? room : 2 * room);
  }
  return enough;
}

// The memory of a loaded model differs from start to start by up to 1 MiB, measured.
constexpr std::size_t kStartMargin = std::size_t{2} << 20;

// As an option takes it.
std::string RoundedUp(std::size_t bytes) { return fmt::format("{}MiB", (bytes >> 20) + 1); }

[[noreturn]] void ThrowNoRoom(const Needs& needs, const ServeOptions& options,
                              const EngineLimits& limits, std::size_t for_keys) {
  const std::size_t slot = needs.Slots(1, limits.positions);
  const std::size_t passes = needs.Passes(limits);
  // States and windows have a size of their own, and keys and values grow with the positions.
  constexpr std::int64_t kUseful = 64;
  std::int64_t fits = limits.positions / kUseful * kUseful;
  while (fits > 0 && needs.Slots(1, fits) > for_keys) fits -= kUseful;
  std::string remedy = fmt::format("--context_length {} fits", fits);
  if (fits == 0 && !options.kv_memory.empty()) {
    remedy = fmt::format("--kv_memory {} would do", RoundedUp(slot));
  } else if (fits == 0) {
    const std::size_t answer = slot + needs.Answers(1, limits.positions);
    remedy = fmt::format(
        "--max_memory {} would do",
        RoundedUp(EnoughMemory(options, needs.loaded() + kStartMargin, passes, answer)));
  }
  throw Error(ErrorCode::kOutOfMemory,
              fmt::format("the loaded model takes {}, passes take {}; keys and values of {} tokens "
                          "need {}, and there is room for {}: {}",
                          FormatBytes(needs.loaded()), FormatBytes(passes), limits.positions,
                          FormatBytes(slot), FormatBytes(for_keys), remedy));
}

}  // namespace

std::size_t RoomBeside(const WeightSizes& weights, std::size_t available) {
  return available - std::min(available, weights.mapped);
}

std::size_t BytesOfBodies(const ServeOptions& options) {
  return BodiesIn(options.max_memory.empty() ? AvailableBytes() / 2
                                             : ParseBytes(options.max_memory));
}

ServePlan PlanServing(const LoadedModel& base, const std::vector<ServedModelPtr>& models,
                      Adapters adapters, const ServeOptions& options, std::size_t bodies) {
  const std::int64_t model_context = base.config.max_position_embeddings;
  if (options.context_length > model_context) {
    ThrowInvalidInput("context_length: {} is more than the model's own of {} tokens",
                      options.context_length, model_context);
  }
  ServePlan plan;
  EngineLimits& limits = plan.limits;
  limits.queue = options.max_queue;
  limits.step_ms = options.max_step_ms;
  const std::int64_t context = options.context_length > 0 ? options.context_length : model_context;
  limits.positions = context;
  limits.rows = std::max(std::min(kMostPromptRows, context), Engine::LeastRows(base.config));
  const Needs needs(base, models, std::move(adapters));
  const std::size_t room = RoomOf(base, options);
  const std::size_t later = LaterAdapters(options, room);
  const std::size_t requests = BytesOfRequests(options, bodies);
  std::int64_t question = 0;
  std::size_t passes = 0;
  std::size_t bytes = 0;  // for keys and values
  const auto fit = [&] {
    question = LimitQuestions(needs, room, limits);
    passes = needs.Passes(limits);
    const std::size_t others = passes + requests + later + needs.Answers(0, limits.positions);
    const std::size_t slot = needs.Slots(1, limits.positions);
    const std::size_t answer =
        needs.Answers(1, limits.positions) - needs.Answers(0, limits.positions);
    const std::size_t left = room > others ? room - others : 0;
    const std::size_t most = left / (slot + answer);
    bytes = left - std::min(left, std::max<std::size_t>(most, 1) * answer);
    if (!options.kv_memory.empty()) bytes = std::min(bytes, ParseBytes(options.kv_memory));
    return static_cast<std::int64_t>(std::min({most, bytes / std::max<std::size_t>(slot, 1),
                                               static_cast<std::size_t>(options.max_sequences)}));
  };
  const std::int64_t wanted = std::min(kWantedSequences, options.max_sequences);
  while (options.context_length == 0 && fit() < wanted && limits.positions / 2 >= kLeastContext) {
    limits.positions /= 2;
  }
  limits.sequences = fit();
  if (limits.sequences < 1) ThrowNoRoom(needs, options, limits, bytes);
  if (limits.sequences < options.max_sequences || limits.positions < context) {
    plan.note = fmt::format("memory for {} of {} tokens each; the model reads {}",
                            Counted(limits.sequences, "answer"), limits.positions, model_context);
  }
  plan.decision_length = question;
  plan.adapter_bytes = needs.adapter_bytes() + later;
  const WeightSizes& weights = base.weights.sizes;
  plan.parts = {{"weights", weights.owned + weights.mapped},
                {"adapters", plan.adapter_bytes},
                {"keys and values", needs.Slots(limits.sequences, limits.positions)},
                {"answers", needs.Answers(limits.sequences, limits.positions)},
                {"passes", passes},
                {"requests", requests}};
  plan.request_bytes = RoomOfRequests(bodies);
  const std::size_t known = weights.owned + weights.mapped + needs.adapter_bytes();
  const std::size_t resident = ResidentBytes();
  plan.other_bytes = resident - std::min(resident, known);
  return plan;
}

std::int64_t MemoryLeft(const ServeOptions& options, const ServePlan& plan) {
  std::size_t planned = plan.other_bytes;
  for (const MemoryPart& part : plan.parts) planned += part.bytes;
  const std::size_t resident = ResidentBytes();
  const std::size_t all = options.max_memory.empty() ? resident + AvailableBytes() / 10 * 9
                                                     : ParseBytes(options.max_memory);
  return static_cast<std::int64_t>(all) - static_cast<std::int64_t>(std::max(planned, resident));
}

}  // namespace qlora
