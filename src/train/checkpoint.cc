#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/file.h"
#include "io/formats.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = "trainer_state.json";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kUnfinished = ".unfinished-checkpoint-";

// The N of "checkpoint-N", or nothing.
std::optional<std::int64_t> StepOf(const fs::path& dir) {
  const std::string name = dir.filename().string();
  if (name.rfind(kPrefix, 0) != 0) return {};
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end) return {};
  return step;
}

// Bytes of the optimizer that are moved at a time: a paged one is never in memory as a whole.
constexpr std::size_t kPiece = std::size_t{16} << 20;

std::size_t BytesOfView(const MatrixView& m) { return BytesOf(m.dtype, m.cols); }

// move(piece, offset) for the pieces of a state tensor, which are given back afterwards.
template <typename Move>
void ForPieces(const Optimizer& optimizer, const MatrixView& state, const Move& move) {
  auto* data = static_cast<std::byte*>(state.data);
  for (std::size_t begin = 0; begin < BytesOfView(state); begin += kPiece) {
    const std::size_t count = std::min(kPiece, BytesOfView(state) - begin);
    move(std::span(data + begin, count), begin);
    optimizer.Release(data + begin, count);
  }
}

void SaveOptimizer(const fs::path& path, const Optimizer& optimizer) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, state] : optimizer.State()) {
    infos.push_back({name, state.dtype, {state.cols}});
  }
  const std::unique_ptr<TensorWriter> writer = CreateSafetensors(path, infos, {});
  for (const auto& [name, state] : optimizer.State()) {
    ForPieces(optimizer, state,
              [&](std::span<std::byte> piece, std::size_t) { writer->Write(piece); });
  }
  writer->Finish();
}

void LoadOptimizer(const fs::path& path, Optimizer& optimizer) {
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(path);
  for (const auto& [name, state] : optimizer.State()) {
    const TensorInfo* tensor = reader->Find(name);
    if (tensor == nullptr || tensor->dtype != state.dtype || tensor->elements() != state.cols) {
      ThrowInvalidInput(
          "{}: tensor '{}' with {} values expected; the checkpoint is damaged or of another "
          "adapter",
          path.string(), name, state.cols);
    }
    const std::byte* bytes = reader->Bytes(*tensor).data();
    ForPieces(optimizer, state, [&](std::span<std::byte> piece, std::size_t begin) {
      std::memcpy(piece.data(), bytes + begin, piece.size());
    });
    reader->Release(*tensor);
  }
}

Json ToJson(const TrainPosition& p) {
  return {{"global_step", p.step},
          {"micro_step", p.micro_step},
          {"epoch", p.epoch},
          {"epoch_batch", p.epoch_batch},
          {"num_tokens", p.tokens},
          {"skipped_steps", p.skipped_steps},
          {"skipped_in_a_row", p.skipped_in_a_row},
          {"eval_due", p.eval_due},
          {"sampled_step", p.sampled_step},
          {"loss_mean", p.losses.mean},
          {"loss_deviation", p.losses.deviation},
          {"loss_count", p.losses.count},
          {"best_metric", p.best.metric},
          {"best_global_step", p.best.step},
          {"evals_since_best", p.best.since_best}};
}

TrainPosition PositionOf(const Json& state, const std::string& where) {
  const auto integer = [&](const char* key) { return JsonGet<std::int64_t>(state, key, where); };
  const auto real = [&](const char* key) { return JsonGet<double>(state, key, where); };
  TrainPosition p;
  p.step = integer("global_step");
  p.micro_step = static_cast<std::uint64_t>(integer("micro_step"));
  p.epoch = integer("epoch");
  p.epoch_batch = integer("epoch_batch");
  p.tokens = integer("num_tokens");
  p.skipped_steps = integer("skipped_steps");
  p.skipped_in_a_row = integer("skipped_in_a_row");
  p.eval_due = JsonGet<bool>(state, "eval_due", where);
  p.sampled_step = integer("sampled_step");
  p.losses = {real("loss_mean"), real("loss_deviation"), integer("loss_count")};
  p.best = {real("best_metric"), integer("best_global_step"), integer("evals_since_best")};
  return p;
}

// Takes a checkpoint out of sight in one step, then removes it file by file.
void Discard(const fs::path& dir) {
  const fs::path hidden =
      dir.parent_path() /
      (std::string(kUnfinished) + dir.filename().string().substr(kPrefix.size()) + "-old");
  try {
    fs::remove_all(hidden);
    fs::rename(dir, hidden);
    fs::remove_all(hidden);
  } catch (const fs::filesystem_error& error) {
    ThrowRuntime("cannot remove {}: {}", dir.string(), error.what());
  }
}

// "learning_rate (0.0002 in the checkpoint, 0.001 now), ..."
std::string Differences(const Json& then, const Json& now) {
  std::string text;
  for (const auto& [key, value] : now.items()) {
    const Json before = then.contains(key) ? then.at(key) : Json();
    if (before == value) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} ({} in the checkpoint, {} now)", key, before.dump(), value.dump());
  }
  return text;
}

}  // namespace

fs::path CheckpointDir(const fs::path& run_dir, std::int64_t step) {
  return run_dir / fmt::format("{}{}", kPrefix, step);
}

fs::path SaveCheckpoint(const fs::path& run_dir, const LoraAdapter& adapter, const BaseForm& form,
                        const Optimizer& optimizer, const TrainPosition& position,
                        const Json& options) {
  const std::string step = fmt::format("{}", position.step);
  const fs::path unfinished = run_dir / (std::string(kUnfinished) + step);
  const fs::path finished = CheckpointDir(run_dir, position.step);
  try {
    fs::remove_all(unfinished);
    fs::create_directories(unfinished);
    adapter.Save(unfinished);
    SaveBaseForm(unfinished, form);
    SaveOptimizer(unfinished / kOptimizer, optimizer);
    Json state = ToJson(position);
    state["options"] = options;
    WriteTextFile(unfinished / kState, state.dump(2) + "\n");
    if (fs::exists(finished)) Discard(finished);
    fs::rename(unfinished, finished);
    SyncFolder(run_dir);
  } catch (const fs::filesystem_error& error) {
    ThrowRuntime("cannot save {}: {}", finished.string(), error.what());
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);  // gives its space back
    throw;
  }
  return finished;
}

TrainPosition LoadCheckpoint(const fs::path& checkpoint, const Json& options, LoraAdapter& adapter,
                             Optimizer& optimizer) {
  const fs::path path = checkpoint / kState;
  const std::string where = path.string();
  const Json state = ReadJsonFile(path);
  const Json* then = FindJson(state, "options", where);
  const std::string differences = Differences(then == nullptr ? Json::object() : *then, options);
  if (!differences.empty()) {
    ThrowInvalidInput(
        "{} was made with other options: {}. Use the same options, or start a new run in another "
        "output_dir; --adapter DIR makes it begin with the adapter of this one",
        checkpoint.string(), differences);
  }
  adapter.Read(checkpoint);
  LoadOptimizer(checkpoint / kOptimizer, optimizer);
  return PositionOf(state, where);
}

void CheckCheckpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kState;
  PositionOf(ReadJsonFile(path), path.string());
  OpenAdapter(checkpoint);
  OpenSafetensors(checkpoint / kOptimizer);
}

std::vector<fs::path> ListCheckpoints(const fs::path& run_dir) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run_dir, ignored)) {
    const std::optional<std::int64_t> step = StepOf(entry.path());
    if (step && fs::exists(entry.path() / kState)) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

void RemoveOldCheckpoints(const fs::path& run_dir, std::int64_t keep, std::int64_t newest,
                          std::int64_t spared) {
  std::vector<fs::path> others = ListCheckpoints(run_dir);
  // A run that went on from an older checkpoint may have later ones beside the newest.
  std::erase_if(
      others, [&](const fs::path& dir) { return StepOf(dir) == newest || StepOf(dir) == spared; });
  const auto kept = static_cast<std::size_t>(newest == spared ? keep : keep - 1);
  for (std::size_t i = 0; i + kept < others.size(); ++i) Discard(others[i]);
}

void RemoveAllCheckpoints(const fs::path& run_dir) {
  for (const fs::path& checkpoint : ListCheckpoints(run_dir)) Discard(checkpoint);
}

void RemoveUnfinishedCheckpoints(const fs::path& run_dir) {
  std::error_code ignored;
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(run_dir, ignored)) {
    if (entry.path().filename().string().rfind(kUnfinished, 0) == 0) {
      unfinished.push_back(entry.path());
    }
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

}  // namespace qlora
