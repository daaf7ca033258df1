// Models, exports and calibration on a backend whose memory the host cannot touch: the same results
// as on the CPU backend.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "backend/guarded_backend.h"
#include "base/file.h"
#include "convert/convert_on.h"
#include "model/model_loader.h"
#include "train/prepared_run.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldenModels = fs::path(QLORA_SOURCE_DIR) / "tests" / "golden";
const fs::path kData = kGoldenModels / "train-20" / "data.jsonl";

class GuardedConvertTest : public testing::Test {
 protected:
  GuardedConvertTest()
      : root_(fs::path(testing::TempDir()) /
              ("qlora-guarded-" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
               std::to_string(getpid()))),
        context_(2) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~GuardedConvertTest() override { fs::remove_all(root_); }

  static std::set<std::string> Families() {
    std::set<std::string> families;
    for (const auto& entry : fs::directory_iterator(kGoldenModels)) {
      const std::string name = entry.path().filename();
      if (name.ends_with("-tiny")) families.insert(name);
    }
    return families;
  }

  // What the model says about a text, and how it goes on.
  std::string Answers(const BackendMaker& backends, const ModelOptions& options) {
    Model model = ModelLoader::Load(context_, options, backends);
    EvalOptions eval;
    eval.dataset = {kData};
    eval.per_token = true;
    const EvalResult result = model.Evaluate(eval);
    std::string text = fmt::format("{} {}\n", result.loss, result.token_accuracy);
    for (const double logprob : result.logprobs) text += fmt::format("{} ", logprob);
    GenerateOptions generate;
    generate.max_new_tokens = 12;
    text += model.Generate("Once upon", generate).text;
    generate.do_sample = true;
    generate.top_k = 20;
    generate.repetition_penalty = 1.1;
    return text + model.Generate("Once upon", generate).text;
  }

  // An adapter of a few steps with `change`.
  std::string TrainAdapter(const std::string& name,
                           const std::function<void(TrainOptions&)>& change) {
    TrainOptions options;
    options.model_name_or_path = kGoldenModels / "llama-tiny";
    options.output_dir = root_ / name;
    options.data.dataset = {kData};
    options.lora_r = 4;
    options.learning_rate = 1e-2;
    options.compute_dtype = "float32";
    options.max_steps = 2;
    change(options);
    TrainObserver observer;
    Train(context_, PlanTraining(context_, options), observer);
    return options.output_dir;
  }

  void ExpectSameExports(const std::string& name, ExportOptions options) {
    SCOPED_TRACE(name);
    options.verify = true;
    options.output = root_ / (name + "-cpu");
    const ExportReport cpu = ExportOn(context_, BackendsOf(Device::kCpu), options);
    options.output = root_ / (name + "-guarded");
    const ExportReport guarded = ExportOn(context_, GuardedBackends(), options);
    EXPECT_EQ(cpu.mean_logprob_difference, guarded.mean_logprob_difference);
    EXPECT_EQ(cpu.max_logprob_difference, guarded.max_logprob_difference);
    ASSERT_EQ(cpu.files.size(), guarded.files.size());
    for (std::size_t i = 0; i < cpu.files.size(); ++i) {
      EXPECT_TRUE(ReadTextFile(cpu.files[i]) == ReadTextFile(guarded.files[i])) << cpu.files[i];
    }
  }

  fs::path root_;
  Context context_;
};

TEST_F(GuardedConvertTest, ModelsOfEveryFamily) {
  for (const std::string& family : Families()) {
    for (const char* compute : {"float32", "bfloat16"}) {
      for (const bool copy : {false, true}) {
        SCOPED_TRACE(family + " " + compute + (copy ? ", copied" : ""));
        ModelOptions options;
        options.model_name_or_path = kGoldenModels / family;
        options.adapter = kGoldenModels / family / "adapter";
        options.compute_dtype = compute;
        options.copy_weights = copy;
        EXPECT_EQ(Answers(BackendsOf(Device::kCpu), options), Answers(GuardedBackends(), options));
      }
    }
  }
}

TEST_F(GuardedConvertTest, ModelsWithDoraAndModules) {
  const std::string dora = TrainAdapter("dora", [](TrainOptions& o) { o.use_dora = true; });
  const std::string modules = TrainAdapter("modules", [](TrainOptions& o) {
    o.modules_to_save = {"lm_head", "embed_tokens"};
  });
  for (const std::string& adapter : {dora, modules}) {
    ModelOptions options;
    options.model_name_or_path = kGoldenModels / "llama-tiny";
    options.adapter = adapter;
    EXPECT_EQ(Answers(BackendsOf(Device::kCpu), options), Answers(GuardedBackends(), options));
    for (const char* format : {"gguf", "hf"}) {
      ExportOptions merge;
      merge.model_name_or_path = options.model_name_or_path;
      merge.adapter = adapter;
      merge.format = format;
      merge.outtype = "f32";
      ExpectSameExports(fs::path(adapter).filename().string() + format, merge);
    }
  }
}

TEST_F(GuardedConvertTest, ExportsOfEveryFamily) {
  for (const std::string& family : Families()) {
    for (const std::string format : {"gguf", "gguf-adapter", "hf"}) {
      ExportOptions options;
      options.model_name_or_path = kGoldenModels / family;
      options.adapter = kGoldenModels / family / "adapter";
      options.format = format;
      ExpectSameExports(family + "-" + format, options);
      options.merge_base = "nf4";
      options.outtype = "f32";
      ExpectSameExports(family + "-nf4-" + format, options);
    }
  }
}

TEST_F(GuardedConvertTest, QuantizesWithCalibration) {
  for (const char* family : {"llama-tiny", "mixtral-tiny"}) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = kGoldenModels / family;
    options.calibration_data = kData;
    options.calibration_tokens = 512;
    options.output_dir = root_ / (std::string(family) + "-cpu");
    QuantizeCheckpointOn(context_, BackendsOf(Device::kCpu), options);
    options.output_dir = root_ / (std::string(family) + "-guarded");
    QuantizeCheckpointOn(context_, GuardedBackends(), options);
    const auto weights = [&](const char* end) {
      return ReadTextFile(root_ / (std::string(family) + end) / "model.safetensors");
    };
    EXPECT_TRUE(weights("-cpu") == weights("-guarded")) << family;

    // The 4-bit checkpoint as it is stored.
    ModelOptions stored;
    stored.model_name_or_path = options.output_dir;
    for (const bool copy : {false, true}) {
      stored.copy_weights = copy;
      EXPECT_EQ(Answers(BackendsOf(Device::kCpu), stored), Answers(GuardedBackends(), stored));
    }
  }
}

}  // namespace
}  // namespace qlora
