// Checkpoints that no run writes: damaged or forged, cut short, or without checksums.
#include <cstring>
#include <limits>
#include <tuple>

#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/file_checksums.h"
#include "qlora/error.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using DamagedCheckpointTest = TinyRunTest;

// What no run writes: a damaged or forged checkpoint is refused before anything is changed, and
// "auto" passes over it.
TEST_F(DamagedCheckpointTest, RefusesValuesThatNoRunWrites) {
  TrainOptions options = Options("run");
  options.save_steps = 4;
  Run(options, 9);  // leaves 4, 8 and 9
  const fs::path newest = root_ / "run" / "checkpoint-9";
  const fs::path state = newest / "trainer_state.json";
  const std::string good = ReadTextFile(state);
  options.resume_from_checkpoint = newest;
  const auto with = [&](const char* key, const Json& value) {
    Json json = Json::parse(good);
    json[key] = value;
    json.erase(kStateChecksum);
    WriteTextFile(state, json.dump());
  };
  for (const auto& [key, value, reason] :
       {std::tuple<const char*, Json, const char*>{"global_step", 4611686018427387904,
                                                   "global_step"},
        {"global_step", -1, "global_step"},
        {"global_step", 10, "expected 9 as in the name of the folder"},
        {"eval_due", true, "no evaluation data"},
        {"epoch_batch", 100, "epoch_batch"},
        {"epoch_batch", 26, "data cursor"},
        {"skipped_in_a_row", 3, "skipped_in_a_row"},
        {"epoch", 2147483648, "expected 0 to"},
        {"micro_step", 2147483648, "micro-batches for each of 9 steps"},
        {"loss_deviation", -1.0, "loss_deviation"},
        {"total_steps", std::numeric_limits<std::int64_t>::min(), "total_steps"},
        {"best_metric", "low", "best_metric"}}) {
    SCOPED_TRACE(key);
    with(key, value);
    ExpectRefused(options, reason);
  }
  WriteTextFile(state, good);
  options.resume_from_checkpoint = "auto";
  with("global_step", 10);
  Context context(1);
  const TrainPlan plan = PlanTraining(context, options);
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_NE(plan.warnings[0].find("checkpoint-9 is damaged"), std::string::npos);
}

TEST_F(DamagedCheckpointTest, RefusesMomentsThatNoRunWrites) {
  TrainOptions options = Options("run");
  Run(options, 3);
  const fs::path path = root_ / "run" / "checkpoint-3" / "optimizer.safetensors";
  const std::string good = ReadTextFile(path);
  options.resume_from_checkpoint = root_ / "run" / "checkpoint-3";
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -1.0f}) {
    std::string text = good;
    std::memcpy(text.data() + text.size() - sizeof(bad), &bad, sizeof(bad));  // of exp_avg_sq
    WriteTextFile(path, text);
    ExpectRefused(options, "tensor 'exp_avg_sq' holds");
  }
  WriteTextFile(path, good);
  Run(options);
}

// One flipped bit leaves a value that a run might have written; only the checksum tells.
TEST_F(DamagedCheckpointTest, ChangedBytesOfACheckpointAreFound) {
  TrainOptions options = Options("run");
  options.save_steps = 4;
  Run(options, 9);  // leaves 4, 8 and 9
  const fs::path newest = root_ / "run" / "checkpoint-9";
  for (const char* name : {"adapter_model.safetensors", "optimizer.safetensors"}) {
    SCOPED_TRACE(name);
    const std::string good = ReadTextFile(newest / name);
    std::string bad = good;
    bad[bad.size() - sizeof(float)] ^= 1;
    WriteTextFile(newest / name, bad);
    options.resume_from_checkpoint = newest;
    ExpectRefused(options, (newest / name).string() + ": expected the CRC-32 ");
    options.resume_from_checkpoint = "auto";
    Context context(1);
    const TrainPlan plan = PlanTraining(context, options);
    EXPECT_EQ(plan.resume->step, 8);
    ASSERT_EQ(plan.warnings.size(), 1u);
    EXPECT_NE(plan.warnings[0].find("checkpoint-9 is damaged and passed over"), std::string::npos);
    WriteTextFile(newest / name, good);
  }
  // The record of the checksums has one of its own: a value of it that a run might have written.
  const std::string record = ReadTextFile(newest / "trainer_state.json");
  Json changed = Json::parse(record);
  changed["loss_deviation"] = 0.0078125;
  WriteTextFile(newest / "trainer_state.json", FormatJson(changed, 2) + "\n");
  options.resume_from_checkpoint = newest;
  ExpectRefused(options, "trainer_state.json: expected the CRC-32 ");
  options.resume_from_checkpoint = "auto";
  {
    Context context(1);
    EXPECT_EQ(PlanTraining(context, options).resume->step, 8);
  }
  // Its layout does not count.
  WriteTextFile(newest / "trainer_state.json", Json::parse(record).dump());
  const std::string base = ReadTextFile(newest / "qlora_base.json");
  options.resume_from_checkpoint = newest;
  WriteTextFile(newest / "qlora_base.json", base + " ");
  ExpectRefused(options, "expected " + std::to_string(base.size()) + " bytes");
  fs::remove(newest / "qlora_base.json");
  ExpectRefused(options, "the file is missing");
  WriteTextFile(newest / "qlora_base.json", base);
  WriteTextFile(newest / "notes.txt", "of the user");
  Run(options);
}

TEST_F(DamagedCheckpointTest, CheckpointsWithoutChecksumsAreReadAndChecked) {
  TrainOptions options = Options("run");
  options.save_steps = 4;
  Run(options, 9);
  const fs::path newest = root_ / "run" / "checkpoint-9";
  Json state = ReadJsonFile(newest / "trainer_state.json");
  state.erase("files");
  state.erase(kStateChecksum);
  WriteTextFile(newest / "trainer_state.json", state.dump());
  options.resume_from_checkpoint = newest;
  Context context(1);
  EXPECT_EQ(PlanTraining(context, options).resume->step, 9);
  std::string adapter = ReadTextFile(newest / "adapter_model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(adapter.data() + adapter.size() - sizeof(nan), &nan, sizeof(nan));
  WriteTextFile(newest / "adapter_model.safetensors", adapter);
  ExpectRefused(options, "adapter_model.safetensors: tensor");
  options.resume_from_checkpoint = "auto";
  EXPECT_EQ(PlanTraining(context, options).resume->step, 8);
}

}  // namespace
}  // namespace qlora
