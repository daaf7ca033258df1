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

std::span<const std::byte> BytesOfView(const MatrixView& m) {
  return {static_cast<const std::byte*>(m.data),
          BytesOf(m.dtype, static_cast<std::size_t>(m.cols))};
}

void SaveMoments(const fs::path& path, const AdamState& adam) {
  const std::unique_ptr<TensorWriter> writer = CreateSafetensors(
      path, {{"exp_avg", adam.m.dtype, {adam.m.cols}}, {"exp_avg_sq", adam.v.dtype, {adam.v.cols}}},
      {});
  writer->Write(BytesOfView(adam.m));
  writer->Write(BytesOfView(adam.v));
  writer->Finish();
}

void LoadMoment(const TensorReader& reader, const char* name, const fs::path& path,
                MatrixView out) {
  const TensorInfo* tensor = reader.Find(name);
  if (tensor == nullptr || tensor->dtype != out.dtype || tensor->elements() != out.cols) {
    ThrowInvalidInput(
        "{}: tensor '{}' with {} values expected; the checkpoint is damaged or of "
        "another adapter",
        path.string(), name, out.cols);
  }
  std::memcpy(out.data, reader.Bytes(*tensor).data(), tensor->bytes());
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

fs::path SaveCheckpoint(const fs::path& run_dir, const LoraAdapter& adapter, const BaseForm& form,
                        const AdamState& adam, const TrainPosition& position, const Json& options) {
  const std::string step = fmt::format("{}", position.step);
  const fs::path unfinished = run_dir / (std::string(kUnfinished) + step);
  const fs::path finished = run_dir / (std::string(kPrefix) + step);
  fs::remove_all(unfinished);
  fs::create_directories(unfinished);
  try {
    adapter.Save(unfinished);
    SaveBaseForm(unfinished, form);
    SaveMoments(unfinished / kOptimizer, adam);
    const Json state = {
        {"global_step", position.step},
        {"micro_step", position.micro_step},
        {"epoch", position.epoch},
        {"epoch_batch", position.epoch_batch},
        {"num_tokens", position.tokens},
        {"skipped_steps", position.skipped_steps},
        {"options", options},
    };
    WriteTextFile(unfinished / kState, state.dump(2) + "\n");
    fs::remove_all(finished);
    fs::rename(unfinished, finished);
  } catch (const fs::filesystem_error& error) {
    ThrowRuntime("cannot save {}: {}", finished.string(), error.what());
  }
  return finished;
}

TrainPosition LoadCheckpoint(const fs::path& checkpoint, const DecoderConfig& decoder,
                             const Json& options, LoraAdapter& adapter, AdamState& adam) {
  const fs::path path = checkpoint / kState;
  const std::string where = path.string();
  const Json state = ReadJsonFile(path);
  const Json* then = FindJson(state, "options", where);
  const std::string differences = Differences(then == nullptr ? Json::object() : *then, options);
  if (!differences.empty()) {
    ThrowInvalidInput(
        "{} was made with other options: {}. Use the same options, or start a new run in another "
        "output_dir",
        checkpoint.string(), differences);
  }
  TrainPosition position;
  position.step = JsonGet<std::int64_t>(state, "global_step", where);
  position.micro_step =
      static_cast<std::uint64_t>(JsonGet<std::int64_t>(state, "micro_step", where));
  position.epoch = JsonGet<std::int64_t>(state, "epoch", where);
  position.epoch_batch = JsonGet<std::int64_t>(state, "epoch_batch", where);
  position.tokens = JsonGet<std::int64_t>(state, "num_tokens", where);
  position.skipped_steps = JsonGet<std::int64_t>(state, "skipped_steps", where);

  const LoraAdapter saved = LoraAdapter::Load(checkpoint, decoder);
  const MatrixView from = saved.parameters();
  const MatrixView to = adapter.parameters();
  if (from.cols != to.cols) {
    ThrowInvalidInput("{}: the adapter has another shape than this run's", checkpoint.string());
  }
  std::memcpy(to.data, from.data, BytesOfView(from).size());
  const fs::path optimizer = checkpoint / kOptimizer;
  const std::unique_ptr<TensorReader> reader = OpenSafetensors(optimizer);
  LoadMoment(*reader, "exp_avg", optimizer, adam.m);
  LoadMoment(*reader, "exp_avg_sq", optimizer, adam.v);
  return position;
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

void RemoveOldCheckpoints(const fs::path& run_dir, std::int64_t keep) {
  const std::vector<fs::path> all = ListCheckpoints(run_dir);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    fs::remove(all[i] / kState);  // first: a half-removed folder no longer counts
    fs::remove_all(all[i]);
  }
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
