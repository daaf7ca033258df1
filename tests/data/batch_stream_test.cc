#include "data/batch_stream.h"

#include <map>
#include <nlohmann/json.hpp>

#include "data/data_test_util.h"

namespace qlora {
namespace {

bool operator==(const Batch& a, const Batch& b) {
  return a.ids == b.ids && a.targets == b.targets && a.positions == b.positions &&
         a.sequence_begin == b.sequence_begin;
}

// Pre-tokenized samples of different lengths; the second token tells them apart.
class BatchStreamTest : public testing::Test {
 protected:
  BatchStreamTest() {
    std::string lines;
    for (int i = 0; i < kSamples; ++i) {
      OrderedJson ids = {kBos, kByte + i};
      for (int n = (i * 7) % 13; n > 0; --n) ids.push_back(kByte + n);
      lines += OrderedJson{{"input_ids", ids}}.dump() + "\n";
    }
    data_ = Dataset::Open(folder_.With("d.jsonl", lines), tokenizer_, nullptr);
  }

  std::map<std::int32_t, int> CountSamples(const std::vector<Batch>& batches) {
    std::map<std::int32_t, int> seen;
    for (const Batch& batch : batches) {
      for (std::int64_t s = 0; s < batch.sequences(); ++s) {
        ++seen[batch.ids[batch.sequence_begin[s] + 1] - kByte];
      }
    }
    return seen;
  }

  static constexpr int kSamples = 47;
  const Tokenizer tokenizer_ = MakeTestTokenizer();
  DataFolder folder_;
  Dataset data_;
};

TEST_F(BatchStreamTest, EpochVisitsEverySampleOnce) {
  for (const bool packing : {false, true}) {
    for (const bool shuffle : {false, true}) {
      BatchStream stream(data_, {.per_device_train_batch_size = 4,
                                 .max_length = 16,
                                 .packing = packing,
                                 .shuffle = shuffle});
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        const std::int64_t count = stream.MicroBatchesIn(epoch);
        EXPECT_EQ(stream.cursor(), (DataCursor{epoch, 0}));
        const std::vector<Batch> batches = stream.NextWindow(1000);
        EXPECT_EQ(std::ssize(batches), count);
        const auto seen = CountSamples(batches);
        EXPECT_EQ(std::ssize(seen), kSamples);
        for (const auto& [sample, times] : seen) EXPECT_EQ(times, 1) << sample;
        for (const Batch& batch : batches) {
          EXPECT_LE(batch.rows(), stream.MaxRows());
          EXPECT_TRUE(packing || batch.sequences() <= 4);
        }
      }
    }
  }
}

TEST_F(BatchStreamTest, ResumesExactlyAtEveryMicroBatch) {
  for (const bool packing : {false, true}) {
    const StreamOptions options{.per_device_train_batch_size = 3,
                                .max_length = 16,
                                .packing = packing,
                                .seed = 9,
                                .packing_window = 20};
    BatchStream whole(data_, options);
    std::vector<DataCursor> cursors;
    std::vector<Batch> batches;
    while (whole.cursor().epoch < 3) {
      cursors.push_back(whole.cursor());
      batches.push_back(whole.NextWindow(1).front());
    }
    for (std::size_t start = 0; start < cursors.size(); ++start) {
      BatchStream resumed(data_, options, cursors[start]);
      EXPECT_EQ(resumed.cursor(), cursors[start]);
      for (std::size_t b = start; b < std::min(start + 30, batches.size()); ++b) {
        ASSERT_TRUE(resumed.NextWindow(1).front() == batches[b]) << start << " " << b;
      }
    }
  }
}

TEST_F(BatchStreamTest, SkipsThroughEpochs) {
  for (const bool packing : {false, true}) {
    const StreamOptions options{
        .per_device_train_batch_size = 1, .max_length = 16, .packing = packing, .seed = 3};
    BatchStream walked(data_, options);
    for (std::int64_t count = 0; count < 120; ++count) {
      BatchStream skipped(data_, options);
      skipped.Skip(count);
      ASSERT_EQ(skipped.cursor(), walked.cursor()) << count;
      ASSERT_EQ(skipped.PlanWindow(1).micro_batches, walked.PlanWindow(1).micro_batches) << count;
    }
  }
}

TEST_F(BatchStreamTest, PackingFillsAndKeepsOrder) {
  BatchStream packed(data_, {.per_device_train_batch_size = 2, .max_length = 16, .packing = true});
  EXPECT_GT(packed.FillRate(), 0.9);
  EXPECT_EQ(packed.MaxRows(), 32);
  BatchStream loose(data_, {.per_device_train_batch_size = 2, .max_length = 16});
  EXPECT_LT(loose.FillRate(), packed.FillRate());
  EXPECT_EQ(loose.MaxRows(), 28) << "the two longest samples have 14 tokens";
  EXPECT_LT(packed.MicroBatchesIn(0), loose.MicroBatchesIn(0));

  BatchStream in_order(data_,
                       {.per_device_train_batch_size = 5, .max_length = 16, .shuffle = false});
  std::int32_t next = 0;
  for (const Batch& batch : in_order.NextWindow(1000)) {
    for (std::int64_t s = 0; s < batch.sequences(); ++s) {
      EXPECT_EQ(batch.ids[batch.sequence_begin[s] + 1], kByte + next++);
    }
  }
}

TEST_F(BatchStreamTest, WindowsEndWithTheEpoch) {
  BatchStream stream(data_, {.per_device_train_batch_size = 10, .max_length = 16});
  EXPECT_EQ(stream.NextWindow(3).size(), 3U);
  const std::vector<Batch> last = stream.NextWindow(3);
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(last[1].sequences(), 7);
  EXPECT_EQ(stream.cursor(), (DataCursor{1, 0}));
}

// A plan knows the totals before anything is read; micro-batches can be read in any order.
TEST_F(BatchStreamTest, PlansAWindowBeforeReadingIt) {
  for (const bool packing : {false, true}) {
    const StreamOptions options{
        .per_device_train_batch_size = 3, .max_length = 16, .packing = packing};
    BatchStream planned(data_, options);
    BatchStream read(data_, options);
    for (int w = 0; w < 20; ++w) {
      EXPECT_EQ(planned.cursor(), read.cursor());
      const WindowPlan window = planned.PlanWindow(4);
      EXPECT_EQ(window.begin, read.cursor());
      const std::vector<Batch> batches = read.NextWindow(4);
      EXPECT_EQ(window.end, read.cursor());
      EXPECT_EQ(window.end, planned.cursor());
      ASSERT_EQ(window.micro_batches.size(), batches.size());
      std::int64_t rows = 0;
      std::int64_t supervised = 0;
      for (std::int64_t m = std::ssize(batches) - 1; m >= 0; --m) {
        EXPECT_TRUE(planned.Materialise(window, m) == batches[m]);
        EXPECT_EQ(std::ssize(window.micro_batches[m]), batches[m].sequences());
        rows += batches[m].rows();
        supervised += batches[m].supervised();
      }
      EXPECT_EQ(window.rows, rows);
      EXPECT_EQ(window.supervised, supervised);
    }
  }
}

TEST_F(BatchStreamTest, RefusesCursorsOfOtherData) {
  const StreamOptions options{.per_device_train_batch_size = 10, .max_length = 16};
  ExpectRefused([&] { BatchStream(data_, options, {0, 5}); }, "micro-batch 5 of epoch 0");
  ExpectRefused([&] { BatchStream(data_, options, {-1, 0}); }, "epoch -1");
  ExpectRefused([&] { BatchStream(data_, {.max_length = 10}); }, "longest sample has 14 tokens");
  ExpectRefused([&] { BatchStream(data_, {.per_device_train_batch_size = 0}); }, "found 0");
}

}  // namespace
}  // namespace qlora
