// Files that a run leaves and reads again: the state of a checkpoint, logs, the index of samples,
// and the file of a layer of the library. The first byte chooses.

#include <fstream>

#include "checkpoint/checkpoint.h"
#include "checkpoint/resume_options.h"
#include "checkpoint/resume_point.h"
#include "checkpoint/run_info.h"
#include "data/sample_index.h"
#include "fuzz_util.h"
#include "io/json.h"
#include "qlora/linear.h"
#include "report/report_page.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// A whole adapter lies in the checkpoint, so that its other files are reached.
const FuzzFolder& Checkpoint() {
  static const FuzzFolder folder;
  static const bool filled = [] {
    const fs::path adapter = SourceDir() / "tests/golden/llama-tiny/adapter";
    for (const auto& entry : fs::directory_iterator(adapter)) {
      fs::copy(entry.path(), folder.path() / entry.path().filename());
    }
    return true;
  }();
  if (!filled) std::abort();
  return folder;
}

// trainer_state.json, a 0 byte, the header of optimizer.safetensors, a 0 byte, and its data.
void CheckState(std::string_view input) {
  const std::string_view state = TakeText(input);
  const std::string_view header = TakeText(input);
  Checkpoint().Put("trainer_state.json", state);
  Checkpoint().Put("optimizer.safetensors", SafetensorsOf(header, input));
  const fs::path dir = Checkpoint().path();
  Attack([&] { CheckCheckpoint(dir); });
  Attack([&] { CheckOptionsOnResume(dir, OptionsToJson(TrainOptions())); });
  Attack([&] { FindResumePoint(dir, TrainOptions(), 100); });
  const CheckpointPlace place = ReadPlace(dir);
  const TrainPosition again = PositionFromJson(PositionToJson(place.at), "written");
  if (PositionToJson(again) != PositionToJson(place.at)) std::abort();
}

// The files of the log, each up to a 0 byte.
void CheckLogs(std::string_view input) {
  static const FuzzFolder folder;
  for (const char* name : {"train_log.jsonl", "eval_log.jsonl", "samples.jsonl",
                           "train_config.json", "run_info.json"}) {
    folder.Put(name, TakeText(input));
  }
  Attack([&] { FinishedStepOf(folder.path()); });
  Attack([&] { StartFolderOf(folder.path()); });
  const std::string data = ReportData({folder.path()}, false);
  OrderedJson parsed;
  const auto defect = TryParseJson(data, parsed);
  // The record of a run nests its files, which may be as deep as a text may be.
  if (defect && defect->reason.find("more than") == std::string::npos) std::abort();
  const std::string page = ReportPage(data);
  if (!IsReportPage(page)) std::abort();
}

// Entries and text of an index that belongs to a data file: taken, or made again.
void CheckIndex(std::string_view input) {
  static const FuzzFolder folder;
  static const Tokenizer tokenizer = Tokenizer::Load(SourceDir() / "tests/golden/llama-tiny");
  static const DataSource source{
      .path = folder.Put("d.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"abc\"}\n{\"text\":\"x y\"}\n")};
  static const DataOptions options = [] {
    DataOptions o;
    o.max_length = 16;
    o.index_folder = folder.path() / "index";
    return o;
  }();
  const auto open = [&] { return SampleIndex::Open(source, options, tokenizer, nullptr, nullptr); };
  // The index of the records, and that of the samples, as they are made.
  static const std::vector<std::pair<fs::path, std::string>> files = [&] {
    open();
    std::vector<std::pair<fs::path, std::string>> made;
    for (const auto& entry : fs::directory_iterator(options.index_folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      made.emplace_back(entry.path(), std::string(std::istreambuf_iterator<char>(file), {}));
    }
    return made;
  }();
  // Bytes of one of them are changed, beyond the numbers by which a reader finds the key.
  for (const auto& [path, bytes] : files) fs::remove(path);
  const std::size_t number =
      input.empty() ? 0 : static_cast<unsigned char>(input[0]) % files.size();
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::string bytes = files[f].second;
    if (f == number && input.size() > 2) {
      const std::size_t at = 24 + static_cast<unsigned char>(input[1]) % (bytes.size() - 24);
      const std::string_view change = input.substr(2);
      bytes.replace(at, change.size(), change);
    }
    folder.Put("index/" + files[f].first.filename().string(), bytes);
  }
  const std::shared_ptr<const SampleIndex> index = open();
  for (const SampleEntry& entry : index->entries()) {
    Attack([&] {
      if (std::ssize(index->Read(entry).ids) != entry.length) std::abort();
    });
    index->Where(entry.record);
  }
}

// The header of a layer's file, a 0 byte, and its data.
void CheckLinear(std::string_view input) {
  static const FuzzFolder folder;
  static Context context(1);
  const std::string_view header = TakeText(input);
  const fs::path file = folder.Put("layer.safetensors", SafetensorsOf(header, input));
  QLoraLinear layer = QLoraLinear::Load(context, file);
  const std::int64_t in = layer.in_features();
  const std::int64_t out = layer.out_features();
  const std::vector<float> x(static_cast<std::size_t>(in), 1.0f);
  std::vector<float> y(static_cast<std::size_t>(out));
  layer.Forward(MakeView(x.data(), 1, in), MakeView(y.data(), 1, out));
  const fs::path copy = folder.path() / "copy.safetensors";
  layer.Save(copy);
  const QLoraLinear again = QLoraLinear::Load(context, copy);
  if (again.in_features() != in || again.config().r != layer.config().r) std::abort();
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*kReaders[])(std::string_view) = {CheckState, CheckLogs, CheckIndex, CheckLinear};
  Attack([&] { kReaders[data[0] % 4](input); });
  return 0;
}
