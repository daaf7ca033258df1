// The micro-batches of a run, epoch after epoch, resumable at any of them.
#ifndef QLORA_DATA_BATCH_STREAM_H_
#define QLORA_DATA_BATCH_STREAM_H_

#include <cstdint>
#include <vector>

#include "base/batch.h"
#include "data/dataset.h"
#include "data/epoch_order.h"
#include "data/packing.h"

namespace qlora {

struct StreamOptions {
  std::int64_t per_device_train_batch_size = 1;
  std::int64_t max_length = 2048;
  bool packing = false;
  bool shuffle = true;
  std::uint64_t seed = 42;
  std::int64_t packing_window = 4096;  // samples among which companions are looked for
};

// The position of the next micro-batch. With the same data set and options, a stream that starts
// here continues exactly as the stream that stopped here.
struct DataCursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // micro-batches of the epoch that are done

  bool operator==(const DataCursor&) const = default;
};

// A gradient accumulation window: the micro-batches between two updates of the weights, all of one
// epoch, as numbers of samples. Planning reads the index alone, so that the totals are known before
// the first micro-batch is computed, and each of several processes can read its own share.
struct WindowPlan {
  DataCursor begin;  // its position is the index of the first micro-batch in the epoch
  DataCursor end;    // where the next window begins
  std::vector<std::vector<std::uint32_t>> micro_batches;  // samples, in the order of their rows
  std::int64_t rows = 0;                                  // tokens of all micro-batches
  std::int64_t supervised = 0;                            // tokens that are trained on, of all
  std::int64_t chosen = 0;                                // those of the first sequences of samples
  std::int64_t samples = 0;

  std::vector<std::uint32_t> AllSamples() const;  // of all micro-batches, in their order
};

// Without packing a micro-batch is per_device_train_batch_size samples; the last of an epoch has
// the remaining samples. With packing a micro-batch is as many whole samples as fit
// per_device_train_batch_size * max_length rows. The stream never ends; the data set must outlive
// it.
class BatchStream {
 public:
  // Errors: InvalidInput when the cursor is beyond its epoch or a sample is longer than
  // max_length.
  BatchStream(const Dataset& dataset, const StreamOptions& options, DataCursor cursor = {});

  // The next micro-batch; never the end of an epoch.
  DataCursor cursor() const { return cursor_; }
  std::int64_t MicroBatchesIn(std::int64_t epoch) const;
  // Returns the rows of the micro-batches of the cursor's epoch, as a fraction of the rows that
  // fit; 1 is full.
  double FillRate() const;
  // Returns the rows that no micro-batch exceeds, for planning memory.
  std::int64_t MaxRows() const;

  // Moves the cursor by `count` micro-batches, through as many epochs as they are.
  void Skip(std::int64_t count);

  // Plans up to `count` micro-batches and moves the cursor behind them. The last window of an epoch
  // may be short.
  WindowPlan PlanWindow(std::int64_t count);
  // Reads micro-batch m of a window of this stream. May be called by several threads.
  // Errors: InvalidInput when a file has changed.
  Batch Materialise(const WindowPlan& window, std::int64_t m) const;

  // Reads a whole window at once: PlanWindow, and every micro-batch of it.
  std::vector<Batch> NextWindow(std::int64_t count);

 private:
  // The samples of each micro-batch of an epoch.
  struct EpochPlan {
    std::vector<std::uint32_t> order;
    Groups groups;  // of places in `order`
  };
  EpochPlan PlanEpoch(std::int64_t epoch) const;
  void NextEpoch();
  std::int64_t capacity() const;

  const Dataset& dataset_;
  StreamOptions options_;
  EpochOrder order_;
  DataCursor cursor_;
  EpochPlan plan_;  // of cursor_.epoch
};

// The most unfolded rows (Batch) of so many rows of data with this DataReport::unfolding; 0 without
// prefixes.
std::int64_t UnfoldedRows(std::int64_t rows, double unfolding);

}  // namespace qlora

#endif  // QLORA_DATA_BATCH_STREAM_H_
