// Models, exports and calibration on a backend whose memory the host cannot touch: the same results
// as on the CPU backend.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "backend/guarded_backend.h"
#include "backend/prepacking_backend.h"
#include "base/file.h"
#include "io/json.h"
#include "qlora/context.h"
#include "qlora/export.h"
#include "qlora/model.h"
#include "qlora/model_options.h"
#include "qlora/prompt.h"
#include "qlora/quantize.h"
#include "qlora/train.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldenModels = SourceDir() / "tests" / "golden";
const fs::path kData = kGoldenModels / "train-20" / "data.jsonl";

class GuardedConvertTest : public testing::Test {
 protected:
  static std::set<std::string> Families() {
    std::set<std::string> families;
    for (const auto& entry : fs::directory_iterator(kGoldenModels)) {
      const std::string name = entry.path().filename();
      if (name.ends_with("-tiny")) families.insert(name);
    }
    EXPECT_GE(families.size(), 12u);
    return families;
  }

  // What the model says about a text, and how it goes on.
  static std::string Answers(const BackendFactory::Ptr& backends, const ModelOptions& options,
                             const std::string& prompt = "Once upon") {
    ContextOn context(backends, 2);
    Model model = Model::Load(context, options);
    EvalOptions eval;
    eval.dataset = {kData};
    eval.per_token = true;
    const EvalResult result = model.Evaluate(eval);
    std::string text = fmt::format("{} {}\n", result.loss, result.token_accuracy);
    for (const double logprob : result.logprobs) text += fmt::format("{} ", logprob);
    GenerateOptions generate;
    generate.max_new_tokens = 12;
    text += model.Generate(prompt, generate).text;
    generate.do_sample = true;
    generate.top_k = 20;
    generate.repetition_penalty = 1.1;
    return text + model.Generate(prompt, generate).text;
  }

  // An adapter of a few steps with `change`.
  std::string TrainAdapter(const std::string& name,
                           const std::function<void(TrainOptions&)>& change,
                           const BackendFactory::Ptr& backends = BackendFactory::Of("cpu")) {
    TrainOptions options;
    options.model_name_or_path = kGoldenModels / "llama-tiny";
    options.output_dir = root_ / name;
    options.data.dataset = {kData};
    options.lora_r = 4;
    options.learning_rate = 1e-2;
    options.compute_dtype = "float32";
    options.max_steps = 2;
    change(options);
    ContextOn context(backends, 2);
    TrainObserver observer;
    Train(context, PlanTraining(context, options), observer);
    return options.output_dir;
  }

  // Three turns, each of which finds the turns before it in the cache.
  static std::string Talk(const BackendFactory::Ptr& backends, const ModelOptions& options) {
    ContextOn context(backends, 2);
    Model model = Model::Load(context, options);
    GenerateOptions generate;
    generate.max_new_tokens = 8;
    OrderedJson messages = OrderedJson::array();
    for (const char* text : {"Hi", "And then?", "Why?"}) {
      messages.push_back({{"role", "user"}, {"content", text}});
      const PromptText prompt = model.PromptOfChat(FormatJson(messages));
      const std::string answer = model.Generate(prompt, generate).text;
      messages.push_back({{"role", "assistant"}, {"content", answer}});
    }
    return FormatJson(messages);
  }

  // The files of a folder with their contents.
  static std::map<std::string, std::string> Files(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files[entry.path().filename()] = ReadTextFile(entry.path());
    }
    return files;
  }

  // Quantizes, or the inverse, on both backends. Returns the folder of the result.
  std::string ExpectSameQuantized(const std::string& name, QuantizeCheckpointOptions options) {
    Context host(2);
    options.output_dir = root_ / (name + "-cpu");
    QuantizeCheckpoint(host, options);
    const auto expected = Files(options.output_dir);
    options.output_dir = root_ / (name + "-guarded");
    ContextOn device(GuardedBackends(), 2);
    QuantizeCheckpoint(device, options);
    EXPECT_TRUE(expected.contains("model.safetensors")) << name;
    EXPECT_TRUE(Files(options.output_dir) == expected) << name;
    return options.output_dir;
  }

  void ExpectSameExports(const std::string& name, ExportOptions options) {
    SCOPED_TRACE(name);
    options.verify = "true";
    Context host(2);
    options.output = root_ / (name + "-cpu");
    const ExportReport cpu = Export(host, options);
    ContextOn device(GuardedBackends(), 2);
    options.output = root_ / (name + "-guarded");
    const ExportReport guarded = Export(device, options);
    EXPECT_EQ(cpu.mean_logprob_difference, guarded.mean_logprob_difference);
    EXPECT_EQ(cpu.max_logprob_difference, guarded.max_logprob_difference);
    ASSERT_EQ(cpu.files.size(), guarded.files.size());
    for (std::size_t i = 0; i < cpu.files.size(); ++i) {
      EXPECT_TRUE(ReadTextFile(cpu.files[i]) == ReadTextFile(guarded.files[i])) << cpu.files[i];
    }
  }

  TemporaryFolder folder_;
  fs::path root_ = folder_.path();
};

TEST_F(GuardedConvertTest, ModelsOfEveryFamily) {
  for (const std::string& family : Families()) {
    for (const char* compute : {"float32", "bfloat16"}) {
      for (const bool copy : {false, true}) {
        SCOPED_TRACE(family + " " + compute + (copy ? ", copied" : ""));
        ModelOptions options;
        options.model_name_or_path = kGoldenModels / family;
        options.adapter = {kGoldenModels / family / "adapter"};
        options.compute_dtype = compute;
        options.copy_weights = copy;
        EXPECT_EQ(Answers(BackendFactory::Of("cpu"), options), Answers(GuardedBackends(), options));
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
    options.adapter = {adapter};
    EXPECT_EQ(Answers(BackendFactory::Of("cpu"), options), Answers(GuardedBackends(), options));
    for (const char* format : {"gguf", "hf"}) {
      ExportOptions merge;
      merge.model_name_or_path = options.model_name_or_path;
      merge.adapter = {adapter};
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
      options.adapter = {kGoldenModels / family / "adapter"};
      options.format = format;
      ExpectSameExports(family + "-" + format, options);
      options.merge_base = "nf4";
      options.outtype = "f32";
      ExpectSameExports(family + "-nf4-" + format, options);
    }
  }
}

TEST_F(GuardedConvertTest, Conversations) {
  for (const char* family : {"llama-tiny", "gemma3-tiny", "mixtral-tiny"}) {
    SCOPED_TRACE(family);
    ModelOptions options;
    options.model_name_or_path = kGoldenModels / family;
    options.chat.chat_template = "plain";
    options.copy_weights = true;
    EXPECT_EQ(Talk(BackendFactory::Of("cpu"), options), Talk(GuardedBackends(), options));
  }
}

// The order of a backend for weights that generate, also where the processor has none. The prompt
// is short: only of longer ones does the order decide how they are multiplied (kShortPrompt).
TEST_F(GuardedConvertTest, PrepackedWeights) {
  for (const char* family : {"llama-tiny", "phi3-tiny", "mixtral-tiny"}) {
    for (const char* compute : {"float32", "bfloat16"}) {
      SCOPED_TRACE(std::string(family) + " " + compute);
      ModelOptions options;
      options.model_name_or_path = kGoldenModels / family;
      options.adapter = {kGoldenModels / family / "adapter"};
      options.compute_dtype = compute;
      options.copy_weights = true;
      PrepackCounts counts;
      EXPECT_EQ(Answers(StoredOrderBackends(), options, "Once"),
                Answers(PrepackingBackends(counts), options, "Once"));
      EXPECT_GT(counts.packed, 0);
      EXPECT_GT(counts.read, counts.packed);
    }
  }
}

TEST_F(GuardedConvertTest, QuantizesEveryFamilyAndBack) {
  for (const std::string& family : Families()) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = kGoldenModels / family;
    QuantizeCheckpointOptions back;
    back.model_name_or_path = ExpectSameQuantized(family, options);
    back.dequantize = true;
    ExpectSameQuantized(family + "-back", back);
    options.bnb_rule = "cuda";
    options.quantization.bnb_4bit_quant_type = "fp4";
    options.quantization.bnb_4bit_use_double_quant = false;
    ExpectSameQuantized(family + "-cuda-rule", options);
  }
}

TEST_F(GuardedConvertTest, QuantizesWithCalibration) {
  for (const char* family : {"llama-tiny", "mixtral-tiny"}) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = kGoldenModels / family;
    options.calibration_data = kData;
    options.calibration_tokens = 512;
    const std::string stored = ExpectSameQuantized(family, options);

    // The 4-bit checkpoint as it is stored: answers, and training on it.
    ModelOptions model;
    model.model_name_or_path = stored;
    for (const bool copy : {false, true}) {
      model.copy_weights = copy;
      EXPECT_EQ(Answers(BackendFactory::Of("cpu"), model), Answers(GuardedBackends(), model));
    }
    const auto train = [&](const char* name, const BackendFactory::Ptr& backends) {
      const auto on_stored = [&](TrainOptions& o) { o.model_name_or_path = stored; };
      return ReadTextFile(TrainAdapter(std::string(family) + name, on_stored, backends) +
                          "/adapter_model.safetensors");
    };
    EXPECT_TRUE(train("-adapter-cpu", BackendFactory::Of("cpu")) ==
                train("-adapter-guarded", GuardedBackends()));
  }
}

}  // namespace
}  // namespace qlora
