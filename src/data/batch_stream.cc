#include "data/batch_stream.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace qlora {

BatchStream::BatchStream(const Dataset& dataset, const StreamOptions& options, DataCursor cursor)
    : dataset_(dataset),
      options_(options),
      order_(dataset.parts(), options.shuffle, options.seed),
      cursor_(cursor) {
  const auto check_positive = [](const char* key, std::int64_t value) {
    if (value < 1) ThrowInvalidInput("{}: expected 1 or more, found {}", key, value);
  };
  check_positive("per_device_train_batch_size", options.per_device_train_batch_size);
  check_positive("packing_window", options.packing_window);
  if (dataset.report().longest > options.max_length) {
    ThrowInvalidInput("the longest sample has {} tokens and max_length is {}",
                      dataset.report().longest, options.max_length);
  }
  if (cursor.epoch < 0) ThrowInvalidInput("data cursor: epoch {} does not exist", cursor.epoch);
  plan_ = PlanEpoch(cursor.epoch);
  // A cursor comes from a checkpoint, which may have been made of other data.
  if (cursor.position < 0 || cursor.position >= plan_.groups.size()) {
    ThrowInvalidInput(
        "data cursor: micro-batch {} of epoch {} does not exist, the epoch has {}; the data is not "
        "that of the checkpoint",
        cursor.position, cursor.epoch, plan_.groups.size());
  }
}

// The order of an epoch, cut into micro-batches.
BatchStream::EpochPlan BatchStream::PlanEpoch(std::int64_t epoch) const {
  EpochPlan plan{.order = order_.Epoch(epoch), .groups = {}};
  if (!options_.packing) {
    plan.groups = GroupEvenly(order_.epoch_size(), options_.per_device_train_batch_size);
    return plan;
  }
  std::vector<std::int32_t> lengths(plan.order.size());
  std::transform(plan.order.begin(), plan.order.end(), lengths.begin(),
                 [this](std::uint32_t sample) { return dataset_.length(sample); });
  plan.groups = PackBestFit(lengths, capacity(), options_.packing_window);
  return plan;
}

// Rows of a full micro-batch; a sample of several sequences may need more.
std::int64_t BatchStream::capacity() const {
  const std::int64_t rows = options_.per_device_train_batch_size * options_.max_length;
  return std::max<std::int64_t>(rows, dataset_.report().largest);
}

// Without packing every epoch has the same number; with packing it depends on which samples meet.
std::int64_t BatchStream::MicroBatchesIn(std::int64_t epoch) const {
  if (epoch == cursor_.epoch) return plan_.groups.size();
  // Planned again, because the number counts for the schedule of the learning rate: an estimate
  // would end the decay early or late.
  if (options_.packing) return PlanEpoch(epoch).groups.size();
  const std::int64_t count = options_.per_device_train_batch_size;
  return (order_.epoch_size() + count - 1) / count;
}

double BatchStream::FillRate() const {
  std::int64_t rows = 0;
  for (const std::uint32_t sample : plan_.order) rows += dataset_.length(sample);
  return static_cast<double>(rows) /
         (static_cast<double>(capacity()) * static_cast<double>(plan_.groups.size()));
}

std::int64_t BatchStream::MaxRows() const {
  if (options_.packing) return capacity();
  // A weight above 1 may bring the longest sample into one micro-batch several times.
  const std::int64_t count = options_.per_device_train_batch_size;
  const std::vector<OrderPart> parts = dataset_.parts();
  if (std::any_of(parts.begin(), parts.end(), [](const OrderPart& p) { return p.weight > 1; })) {
    return count * dataset_.report().largest;
  }
  // Else the longest samples may meet in one, each of them once.
  std::vector<std::int32_t> lengths;
  for (std::int64_t i = 0; i < dataset_.size(); ++i) lengths.push_back(dataset_.length(i));
  const std::int64_t taken = std::min(count, dataset_.size());
  std::partial_sort(lengths.begin(), lengths.begin() + taken, lengths.end(), std::greater<>());
  return std::accumulate(lengths.begin(), lengths.begin() + taken, std::int64_t{0});
}

std::int64_t UnfoldedRows(std::int64_t rows, double unfolding) {
  if (unfolding == 1) return 0;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(rows) * unfolding));
}

std::vector<std::uint32_t> WindowPlan::AllSamples() const {
  std::vector<std::uint32_t> all;
  for (const std::vector<std::uint32_t>& batch : micro_batches) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

//   epoch   | m0 | m1 | m2 | m3 | m4 |      micro-batches
//             ^cursor_
//   count 3 |--------------|                a window
//                          |---------|      the next one is short: no window spans two epochs
WindowPlan BatchStream::PlanWindow(std::int64_t count) {
  QLORA_DCHECK(count > 0);
  WindowPlan window;
  window.begin = cursor_;
  const std::int64_t end = std::min(cursor_.position + count, plan_.groups.size());
  for (; cursor_.position < end; ++cursor_.position) {
    std::vector<std::uint32_t>& samples = window.micro_batches.emplace_back();
    for (const std::uint32_t place : plan_.groups[cursor_.position]) {
      const std::uint32_t sample = plan_.order[place];
      samples.push_back(sample);
      window.rows += dataset_.length(sample);
      window.supervised += dataset_.supervised(sample);
      window.chosen += dataset_.chosen(sample);
      ++window.samples;
    }
  }
  if (end == plan_.groups.size()) NextEpoch();
  window.end = cursor_;
  return window;
}

// At the end of an epoch, where the cursor never stays.
void BatchStream::NextEpoch() {
  cursor_ = {.epoch = cursor_.epoch + 1, .position = 0};
  plan_ = PlanEpoch(cursor_.epoch);
}

void BatchStream::Skip(std::int64_t count) {
  for (std::int64_t left; count >= (left = plan_.groups.size() - cursor_.position); count -= left) {
    NextEpoch();
  }
  cursor_.position += count;
}

Batch BatchStream::Materialise(const WindowPlan& window, std::int64_t m) const {
  std::vector<Sample> samples;
  for (const std::uint32_t sample : window.micro_batches[m]) {
    samples.push_back(dataset_.Get(sample, window.begin.epoch));
  }
  return MakeBatch(samples);
}

std::vector<Batch> BatchStream::NextWindow(std::int64_t count) {
  const WindowPlan window = PlanWindow(count);
  std::vector<Batch> batches;
  for (std::int64_t m = 0; m < std::ssize(window.micro_batches); ++m) {
    batches.push_back(Materialise(window, m));
  }
  return batches;
}

}  // namespace qlora
