#include "data/batch_stream.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace qlora {

BatchStream::BatchStream(const Dataset& dataset, const StreamOptions& options, DataCursor cursor)
    : dataset_(dataset),
      options_(options),
      order_(dataset.parts(), options.shuffle, options.seed),
      cursor_(cursor) {
  if (options.per_device_train_batch_size < 1 || options.packing_window < 1) {
    ThrowInvalidInput("per_device_train_batch_size: expected 1 or more, found {}",
                      options.per_device_train_batch_size);
  }
  if (dataset.report().longest > options.max_length) {
    ThrowInvalidInput("the longest sample has {} tokens and max_length is {}",
                      dataset.report().longest, options.max_length);
  }
  if (cursor.epoch < 0) ThrowInvalidInput("data cursor: epoch {} does not exist", cursor.epoch);
  plan_ = PlanEpoch(cursor.epoch);
  if (cursor.position < 0 || cursor.position >= plan_.groups.size()) {
    ThrowInvalidInput(
        "data cursor: micro-batch {} of epoch {} does not exist, the epoch has {}; the data is not "
        "that of the checkpoint",
        cursor.position, cursor.epoch, plan_.groups.size());
  }
}

BatchStream::Plan BatchStream::PlanEpoch(std::int64_t epoch) const {
  Plan plan{.order = order_.Epoch(epoch), .groups = {}};
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

std::int64_t BatchStream::capacity() const {
  return options_.per_device_train_batch_size * options_.max_length;
}

std::int64_t BatchStream::MicroBatchesIn(std::int64_t epoch) const {
  if (epoch == cursor_.epoch) return plan_.groups.size();
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
  std::vector<std::int32_t> lengths;
  for (std::int64_t i = 0; i < dataset_.size(); ++i) lengths.push_back(dataset_.length(i));
  // A weight above 1 may bring the longest sample into one micro-batch several times.
  const std::int64_t count = options_.per_device_train_batch_size;
  bool repeats = false;
  for (const OrderPart& part : dataset_.parts()) repeats = repeats || part.weight > 1;
  if (repeats) return count * dataset_.report().longest;
  const auto taken = static_cast<std::size_t>(std::min(count, dataset_.size()));
  std::partial_sort(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(taken),
                    lengths.end(), std::greater<>());
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < taken; ++i) rows += lengths[i];
  return rows;
}

Batch BatchStream::Next() {
  std::vector<Sample> samples;
  for (const std::uint32_t place : plan_.groups[cursor_.position]) {
    samples.push_back(dataset_.Get(plan_.order[place]));
  }
  ++cursor_.position;
  if (cursor_.position == plan_.groups.size()) {
    cursor_ = {.epoch = cursor_.epoch + 1, .position = 0};
    plan_ = PlanEpoch(cursor_.epoch);
  }
  return MakeBatch(samples);
}

std::vector<Batch> BatchStream::NextWindow(std::int64_t count) {
  std::vector<Batch> window;
  const std::int64_t epoch = cursor_.epoch;
  while (std::ssize(window) < count && cursor_.epoch == epoch) window.push_back(Next());
  return window;
}

}  // namespace qlora
