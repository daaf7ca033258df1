#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/file.h"
#include "base/system.h"
#include "base/text.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/file_checksums.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/retention.h"
#include "io/json.h"
#include "io/peft/peft.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/tensor_file.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kAdapterFile = "adapter_model.safetensors";
// A key of trainer_state.json that is not part of TrainPosition.
constexpr const char* kTotalSteps = "total_steps";

// Bytes of the optimizer that are moved at a time: a paged optimizer is never in memory as a whole.
constexpr std::size_t kPiece = std::size_t{16} << 20;

// The bytes of a state tensor (1, n).
std::size_t BytesOfView(const ConstMatrixView& m) { return BytesOf(m.dtype, m.cols); }

// Calls move(data, offset, bytes) for the pieces of a state tensor, which are in the memory of the
// optimizer, and releases each.
template <typename View, typename Move>
void ForPieces(const Optimizer& optimizer, const View& state, const Move& move) {
  auto* data = state.template Row<std::byte>(0);
  for (std::size_t begin = 0; begin < BytesOfView(state); begin += kPiece) {
    const std::size_t count = std::min(kPiece, BytesOfView(state) - begin);
    move(data + begin, begin, count);
    optimizer.Release(data + begin, count);
  }
}

// Writes each state tensor as (n), through pieces of host memory. The order and the sizes are known
// before the first byte, so the header is written first and the data are not held.
void SaveOptimizer(const fs::path& path, const Optimizer& optimizer) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, state] : optimizer.State()) {
    infos.push_back({name, state.dtype, {state.cols}});
  }
  const std::unique_ptr<TensorWriter> writer = CreateSafetensors(path, infos, {});
  for (const auto& [name, state] : optimizer.State()) {
    ForPieces(optimizer, state, [&](const std::byte* data, std::size_t, std::size_t count) {
      writer->Write({HostBytes(optimizer.memory(), data, count).data(), count});
    });
  }
  writer->Finish();
}

// Refuses values in `bytes`, a piece of `tensor` that begins at `offset`, that are not finite, and
// with `positive` those that are negative.
void CheckValues(const fs::path& path, const TensorInfo& tensor, std::size_t offset,
                 std::span<const std::byte> bytes, bool positive) {
  if (tensor.dtype != DType::kF32) return;  // 8-bit codes, of which each is a moment
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &bytes[at], sizeof(value));
    if (std::isfinite(value) && !(positive && value < 0)) continue;
    ThrowInvalidInput("{}: tensor '{}' holds {} at index {}; the checkpoint is damaged",
                      path.string(), tensor.name, value, (offset + at) / sizeof(float));
  }
}

// Second moments and scales are not negative.
bool IsPositive(const TensorInfo& moments) { return moments.name != "exp_avg"; }

// Checks a file of moments without an optimizer that could load them.
void CheckOptimizer(const fs::path& path) {
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(path);
  for (const TensorInfo& tensor : reader->tensors()) {
    CheckValues(path, tensor, 0, reader->Bytes(tensor), IsPositive(tensor));
    reader->Release(tensor);
  }
}

// Checks an adapter without a model that could take it.
void CheckAdapter(const fs::path& checkpoint) {
  const Adapter adapter = OpenAdapter(checkpoint);
  const fs::path path = checkpoint / kAdapterFile;
  for (const TensorInfo& tensor : adapter.tensors->tensors()) {
    CheckValues(path, tensor, 0, adapter.tensors->Bytes(tensor), /*positive=*/false);
    adapter.tensors->Release(tensor);
  }
}

// Refuses counters that contradict each other, beyond what CheckPosition compares. A step has at
// most gradient_accumulation_steps micro-batches.
void CheckCounters(const TrainPosition& at, const Json& state, const std::string& where) {
  const std::int64_t most = MicroBatchesOfStep(state.value("options", Json::object()));
  if (most > 0 && at.micro_step / most + (at.micro_step % most > 0) > at.step) {
    ThrowInvalidInput(
        "{}: key 'micro_step': expected at most {} micro-batches for each of {} steps, found {}; "
        "the checkpoint is damaged",
        where, most, at.step, at.micro_step);
  }
  // Checkpoints of earlier versions do not record the number of steps.
  const Json* total = FindJson(state, kTotalSteps, where);
  if (total != nullptr && JsonAs<std::int64_t>(*total, kTotalSteps, where) < at.step) {
    ThrowInvalidInput(
        "{}: key '{}': expected at least the {} steps that are done, found {}; the checkpoint is "
        "damaged",
        where, kTotalSteps, at.step, total->dump());
  }
}

// The position in `state`, which must agree with the checkpoint's folder.
TrainPosition PositionOf(const fs::path& checkpoint, const Json& state) {
  const std::string where = (checkpoint / kTrainerState).string();
  const TrainPosition at = PositionFromJson(state, where);
  if (const auto step = StepOfCheckpoint(checkpoint); step && *step != at.step) {
    ThrowInvalidInput("{}: key 'global_step': expected {} as in the name of the folder, found {}",
                      where, *step, at.step);
  }
  CheckCounters(at, state, where);
  return at;
}

// Reads the moments into an optimizer of the same shape. Each piece is checked on its way, so that
// the file is read once. An error leaves the optimizer with a mixture of values; the run ends then.
void LoadOptimizer(const fs::path& path, Optimizer& optimizer) {
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(path);
  for (const auto& [name, state] : optimizer.State()) {
    const TensorInfo* tensor = reader->Find(name);
    if (tensor == nullptr || tensor->dtype != state.dtype || tensor->elements() != state.cols) {
      ThrowInvalidInput(
          "{}: expected tensor '{}' with {} values; the checkpoint is damaged or belongs to "
          "another adapter",
          path.string(), name, state.cols);
    }
    const std::byte* bytes = reader->Bytes(*tensor).data();
    ForPieces(optimizer, state, [&](std::byte* data, std::size_t begin, std::size_t count) {
      CheckValues(path, *tensor, begin, {bytes + begin, count}, IsPositive(*tensor));
      optimizer.memory().Upload(bytes + begin, data, count);
    });
    reader->Release(*tensor);
  }
}

// Gives `made` the name `finished`. A checkpoint of that name is removed afterwards, where the file
// system can exchange names, so that one of the two is there at any time.
void PutInPlace(const fs::path& made, const fs::path& finished) {
  if (ExchangeNames(made, finished)) {
    fs::remove_all(made);
    return;
  }
  if (fs::exists(finished)) DiscardCheckpoint(finished);
  fs::rename(made, finished);
}

}  // namespace

// ---- Writing.

// The steps, so that a crash at any point leaves a whole checkpoint or none:
//
//   .unfinished-checkpoint-N/   adapter, form of the base, files of the caller, moments;
//                               trainer_state.json last
//   checkpoint-N/               the same folder after one rename
//   run_dir                     synced, so that the rename survives a power failure
fs::path SaveCheckpoint(const fs::path& run_dir, const LoraAdapter& adapter, const BaseRecord& base,
                        const Optimizer& optimizer, const TrainPosition& position,
                        std::int64_t total_steps, const Json& options,
                        const std::function<void(const fs::path& unfinished)>& add_files) {
  const fs::path unfinished = UnfinishedCheckpointDir(run_dir, position.step);
  const fs::path finished = CheckpointDir(run_dir, position.step);
  try {
    fs::remove_all(unfinished);
    fs::create_directories(unfinished);
    adapter.Save(unfinished);
    SaveBaseRecord(unfinished, base);
    if (add_files) add_files(unfinished);
    SaveOptimizer(unfinished / kOptimizer, optimizer);
    Json state = PositionToJson(position);
    state[kTotalSteps] = total_steps;
    state["options"] = options;
    AddChecksums(unfinished, state);
    WriteTextFile(unfinished / kTrainerState, FormatJson(state, 2) + "\n");
    PutInPlace(unfinished, finished);
    SyncFolder(run_dir);
  } catch (const fs::filesystem_error& error) {
    ThrowRuntime("cannot save {}: {}", finished.string(), error.what());
  } catch (const Error& error) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);  // frees the disk space
    // The hidden name would tell the reader nothing, and is gone.
    throw Error(error.code(), ReplaceAll(error.what(), unfinished.string(), finished.string()));
  }
  return finished;
}

// The copy gets its name when it is complete, like a checkpoint that is written.
fs::path CopyCheckpoint(const fs::path& checkpoint, const fs::path& run_dir) {
  const fs::path copy = run_dir / checkpoint.filename();
  const fs::path unfinished = UnfinishedCheckpointDir(run_dir, *StepOfCheckpoint(checkpoint));
  try {
    fs::remove_all(unfinished);
    fs::copy(checkpoint, unfinished, fs::copy_options::recursive);
    SyncTree(unfinished);
    PutInPlace(unfinished, copy);
    SyncFolder(run_dir);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);  // frees the disk space
    ThrowRuntime("cannot copy {} into {}: {}", checkpoint.string(), run_dir.string(), error.what());
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw;
  }
  return copy;
}

// ---- Reading.

// A record of an older version is recognised first: its difference has a separate remedy, while
// any other difference ends with the general advice.
void CheckOptionsOnResume(const fs::path& checkpoint, Json options, bool base_may_change) {
  const fs::path path = checkpoint / kTrainerState;
  const Json state = ReadJsonFile(path);
  const Json* then = FindJson(state, "options", path.string());
  if (base_may_change) LeaveOutBase(then == nullptr ? Json::object() : *then, options);
  const std::string differences =
      DifferencesOnResume(then == nullptr ? Json::object() : *then, options);
  if (then != nullptr && HasOtherTextsOfOlderVersion(*then, options)) {
    ThrowInvalidInput(
        "{} was made by a version of qlora that laid out Alpaca records, and prompts and "
        "completions, in another way: {}. Add --prompt-layout instruction_answer to `qlora train "
        "--resume_from_checkpoint` to resume with the same texts",
        checkpoint.string(), differences);
  }
  if (!differences.empty()) {
    const bool splits = differences.find("gradient_accumulation_steps") != std::string::npos ||
                        differences.find("per_device_train_batch_size") != std::string::npos;
    ThrowInvalidInput(
        "{} was made with other options: {}{}. Use the same options, or choose another output_dir; "
        "--adapter DIR starts a new run from this adapter",
        checkpoint.string(), differences,
        splits ? fmt::format(" (without packing, per_device_train_batch_size and "
                             "gradient_accumulation_steps, of all ranks together, may change where "
                             "their product stays; global_batch_size {} keeps it)",
                             SamplesOfStep(*then))
               : std::string());
  }
}

std::string NoteUnrecorded(const fs::path& checkpoint) {
  return NoteUnrecorded(ReadJsonFile(checkpoint / kTrainerState).value("options", Json::object()));
}

bool SplitsStepsAgain(const fs::path& checkpoint, const Json& options) {
  const Json state = ReadJsonFile(checkpoint / kTrainerState);
  return HasOtherMicroBatches(state.value("options", Json::object()), options);
}

TrainPosition LoadCheckpoint(const fs::path& checkpoint, const Json& options, LoraAdapter& adapter,
                             Optimizer& optimizer) {
  // A checkpoint with a wrong position or other options is refused before adapter and moments
  // change.
  const Json state = ReadJsonFile(checkpoint / kTrainerState);
  TrainPosition at = PositionOf(checkpoint, state);
  CheckOptionsOnResume(checkpoint, options);
  CountAgain(state.value("options", Json::object()), options, at);
  adapter.Read(checkpoint);
  LoadOptimizer(checkpoint / kOptimizer, optimizer);
  return at;
}

CheckpointPlace ReadPlace(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kTrainerState;
  const Json state = ReadJsonFile(path);
  // Checkpoints of earlier versions do not record the number of steps.
  return {PositionOf(checkpoint, state),
          JsonGetOr<std::int64_t>(state, kTotalSteps, 0, path.string())};
}

void CheckCheckpoint(const fs::path& checkpoint) {
  // Each call throws for a file that is damaged. The checksums come last, because the others say
  // more.
  const Json state = ReadJsonFile(checkpoint / kTrainerState);
  PositionOf(checkpoint, state);
  CheckAdapter(checkpoint);
  CheckOptimizer(checkpoint / kOptimizer);
  CheckFileChecksums(checkpoint, state);
}

}  // namespace qlora
