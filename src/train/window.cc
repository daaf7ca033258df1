#include "train/window.h"

#include <algorithm>
#include <vector>

#include "data/mismatched_rows.h"
#include "objective/answer_logprobs.h"
#include "pass/eval_memory.h"

namespace qlora {
namespace {

void TakeReference(const WindowNeeds& needs, const std::vector<std::uint32_t>& samples,
                   Batch& batch) {
  std::vector<AnswerLogp> logps;
  for (const std::uint32_t sample : samples) {
    logps.push_back(needs.reference.Of(needs.dataset.key(sample)));
  }
  SetReference(logps, batch);
}

// The rows of a micro-batch in passes of the size of an evaluation's.
std::vector<Batch> MismatchedBatches(const WindowNeeds& needs,
                                     std::span<const MismatchedRow> rows) {
  const std::int64_t most = EvalRows(LongestMismatched(needs.dataset, needs.max_length));
  std::vector<Batch> batches;
  std::vector<Sample> samples;
  std::vector<AnswerLogp> logps;
  std::int64_t filled = 0;
  const auto flush = [&] {
    if (samples.empty()) return;
    batches.push_back(MakeBatch(samples));
    SetReference(logps, batches.back());
    samples.clear();
    logps.clear();
    filled = 0;
  };
  for (const MismatchedRow& row : rows) {
    Sample sample = ReadMismatched(needs.dataset, row, needs.max_length);
    if (filled + std::ssize(sample.ids) > most) flush();
    filled += std::ssize(sample.ids);
    samples.push_back(std::move(sample));
    logps.push_back(needs.reference.Of(KeyOf(needs.dataset, row)));
  }
  flush();
  return batches;
}

std::vector<MismatchedRow> RowsOf(const WindowNeeds& needs, const WindowPlan& window) {
  if (!needs.objective.needs_kl()) return {};
  return MismatchedRows(needs.dataset, window.AllSamples());
}

}  // namespace

StepBatch NextWindow(const WindowNeeds& needs, const RankPlace& place, const TrainPosition& at,
                     BatchStream& stream) {
  const bool has_anchor = needs.anchors != nullptr;
  const std::int64_t anchors = has_anchor ? 1 : 0;
  const WindowPlan window = stream.PlanWindow(place.split.micro_batches - anchors);
  const WindowPlan anchor = has_anchor ? needs.anchors->PlanWindow(1) : WindowPlan{};
  const std::int64_t trained = std::ssize(window.micro_batches);
  StepBatch batch{
      {},
      trained + anchors,
      has_anchor,
      at.micro_step,
      {window.supervised, window.rows, window.chosen, window.samples, anchor.supervised}};
  const std::vector<MismatchedRow> rows = RowsOf(needs, window);
  const IndexRange mine =
      place.split.WithMicroBatches(batch.count).MicroBatchesOfReplica(place.replica());
  std::int64_t first = 0;  // sample of the window
  for (std::int64_t m = 0; m < std::min(mine.end, trained); ++m) {
    const std::vector<std::uint32_t>& samples = window.micro_batches[m];
    const std::int64_t begin = first;
    first += std::ssize(samples);
    if (m < mine.begin) continue;
    StepBatch::MicroBatch& it = batch.micro_batches.emplace_back();
    it.index = m;
    it.batch = stream.Materialise(window, m);
    if (needs.objective.needs_reference()) TakeReference(needs, samples, it.batch);
    if (!rows.empty()) {
      it.mismatched = MismatchedBatches(needs, std::span(rows).subspan(begin, std::ssize(samples)));
    }
  }
  if (has_anchor && mine.begin < batch.count && mine.end == batch.count) {
    batch.micro_batches.push_back({trained, needs.anchors->Materialise(anchor, 0)});
  }
  return batch;
}

}  // namespace qlora
