// A run that is stopped and goes on ends in the same bits as one that never stopped, on any number
// of threads.
#include <cstring>
#include <limits>
#include <tuple>

#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/file_checksums.h"
#include "io/folder_lock.h"
#include "qlora/error.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using ResumeTest = TinyRunTest;

TEST_F(ResumeTest, AtEveryStep) {
  Run(Options("whole"));
  for (const std::int64_t stop : {1, 4, 7, 11}) {
    TrainOptions options = Options("parts" + std::to_string(stop));
    Run(options, stop);
    options.resume_from_checkpoint = "auto";
    Run(options);
    const std::string name = fs::path(options.output_dir).filename();
    EXPECT_EQ(Steps("whole"), Steps(name)) << "stopped after " << stop;
    EXPECT_TRUE(Adapter("whole") == Adapter(name)) << "stopped after " << stop;
  }
}

TEST_F(ResumeTest, WithOtherMicroBatchesOfTheSameSteps) {
  TrainOptions options = Options("parts");
  options.lora_dropout = 0;
  options.per_device_train_batch_size = 1;
  options.gradient_accumulation_steps = 4;
  TrainOptions whole = options;
  whole.output_dir = root_ / "whole";
  Run(whole);
  Run(options, 4);
  options.resume_from_checkpoint = "auto";
  options.per_device_train_batch_size = 2;
  ExpectRefused(options, "product stays");  // a step would have twice the samples
  options.gradient_accumulation_steps = 2;
  TrainOptions packed = options;
  packed.data.packing = true;
  ExpectRefused(packed, "packing");
  Context context(1);
  const std::vector<std::string> warnings = PlanTraining(context, options).warnings;
  EXPECT_TRUE(std::any_of(warnings.begin(), warnings.end(), [](const std::string& text) {
    return text.find("other micro-batches") != std::string::npos;
  }));
  Run(options);
  // The same samples in each step, whose sums are rounded in another order.
  const std::vector<std::string> one = Steps("whole");
  const std::vector<std::string> two = Steps("parts");
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    const Json left = Json::parse(one[i]);
    const Json right = Json::parse(two[i]);
    EXPECT_EQ(left["tokens"], right["tokens"]) << i;
    EXPECT_EQ(left["learning_rate"], right["learning_rate"]) << i;
    EXPECT_NEAR(left["loss"].get<double>(), right["loss"].get<double>(), 1e-3) << i;
  }
}

// A base whose values or bytes are others computes something else. What nobody reads may change.
TEST_F(ResumeTest, NoticesAChangedBase) {
  const fs::path model = root_ / "model";
  fs::copy(kGolden / "llama-tiny", model);
  const std::string config = ReadTextFile(model / "config.json");
  const std::string weights = ReadTextFile(model / "model.safetensors");
  TrainOptions options = Options("run");
  options.model_name_or_path = model;
  Run(options, 4);
  options.resume_from_checkpoint = "auto";
  const auto with = [&](const char* key, const Json& value) {
    Json changed = Json::parse(config);
    changed[key] = value;
    WriteTextFile(model / "config.json", changed.dump());
  };
  with("rope_theta", 20000.0);
  ExpectRefused(options, "the configuration of model_name_or_path (rope)");
  with("rms_norm_eps", 1e-3);
  ExpectRefused(options, "the configuration of model_name_or_path (rms_norm_eps ");
  with("rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}});
  ExpectRefused(options, "(rope)");
  with("transformers_version", "5.0");
  std::string changed = weights;
  changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 1);
  WriteTextFile(model / "model.safetensors", changed);
  ExpectRefused(options, "the weights of model_name_or_path");
  WriteTextFile(model / "model.safetensors", weights);
  Run(options);
}

// A record of an earlier release tells less, which a warning says.
TEST_F(ResumeTest, SaysWhatAnEarlierReleaseDidNotRecord) {
  TrainOptions options = Options("run");
  Run(options, 4);
  options.resume_from_checkpoint = "auto";
  const auto warns = [&] {
    Context context(1);
    const std::vector<std::string> warnings = PlanTraining(context, options).warnings;
    return std::any_of(warnings.begin(), warnings.end(), [](const std::string& text) {
      return text.find("of an earlier release") != std::string::npos;
    });
  };
  EXPECT_FALSE(warns());
  const fs::path state = root_ / "run" / "checkpoint-4" / "trainer_state.json";
  Json json = Json::parse(ReadTextFile(state));
  ASSERT_EQ(json["options"].erase("model_config"), 1u);
  ASSERT_EQ(json["options"].erase("model_hash"), 1u);
  json.erase(kStateChecksum);
  WriteTextFile(state, json.dump());
  EXPECT_TRUE(warns());
  Run(options);
}

TEST_F(ResumeTest, ACheckpointWithoutANewOptionHasItsDefault) {
  TrainOptions options = Options("run");
  Run(options, 4);
  const fs::path state = root_ / "run" / "checkpoint-4" / "trainer_state.json";
  Json json = Json::parse(ReadTextFile(state));
  ASSERT_EQ(json["options"].erase("min_lr"), 1u);
  json.erase(kStateChecksum);
  WriteTextFile(state, json.dump());
  options.resume_from_checkpoint = "auto";
  options.min_lr = 1e-4;
  ExpectRefused(options, "min_lr");
  options.min_lr = 0;
  Run(options);
}

TEST_F(ResumeTest, PlanningComparesTheOptions) {
  TrainOptions options = Options("run");
  Run(options, 4);
  options.resume_from_checkpoint = "auto";
  options.learning_rate *= 2;
  Context context(1);
  EXPECT_THROW(PlanTraining(context, options), Error);
}

TEST_F(ResumeTest, ALineThatWasCutIsWrittenAgain) {
  const auto log = [&](const std::string& name) {
    return ReadTextFile(fs::path(Options(name).output_dir) / "train_log.csv");
  };
  TrainOptions whole = Options("whole");
  whole.report_to = {"csv"};
  Run(whole);
  TrainOptions options = Options("parts");
  options.report_to = {"csv"};
  Run(options, 4);
  const std::string text = log("parts");
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  WriteTextFile(fs::path(options.output_dir) / "train_log.csv", text + text.substr(last, 1));
  options.resume_from_checkpoint = "auto";
  Run(options);
  const auto lines = [](const std::string& csv) {
    return std::count(csv.begin(), csv.end(), '\n');
  };
  EXPECT_EQ(lines(log("parts")), lines(log("whole")));
}

TEST_F(ResumeTest, WithPackingFromASavedStep) {
  const auto packed = [&](const std::string& name) {
    TrainOptions options = Options(name);
    options.data.packing = true;
    options.per_device_train_batch_size = 1;
    options.save_steps = 5;
    return options;
  };
  Run(packed("whole"));
  TrainOptions options = packed("parts");
  Run(options, 8);  // leaves checkpoint-5 and checkpoint-8
  options.resume_from_checkpoint = options.output_dir + "/checkpoint-5";
  Run(options);
  EXPECT_EQ(Steps("whole"), Steps("parts"));
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

TEST_F(ResumeTest, SameBitsOnAnyNumberOfThreads) {
  for (const char* compute : {"float32", "bfloat16", "int8"}) {
    std::string first;
    for (const int threads : {1, 2, 4}) {
      TrainOptions options = Options(std::string(compute) + std::to_string(threads));
      options.compute_dtype = compute;
      options.max_steps = 4;
      Run(options, -1, threads);
      const std::string adapter = Adapter(fs::path(options.output_dir).filename());
      if (first.empty()) first = adapter;
      EXPECT_TRUE(first == adapter) << compute << " on " << threads << " threads";
    }
  }
}

// Products in 8 bits learn, resume as a run that never stopped, and are products of their own.
TEST_F(ResumeTest, ProductsInEightBits) {
  for (const bool backward : {false, true}) {
    const std::string suffix = backward ? "-both" : "-forward";
    const auto coded = [&](const std::string& name) {
      TrainOptions options = Options(name + suffix);
      options.compute_dtype = "int8";
      options.int8_backward = backward;
      return options;
    };
    Run(coded("whole"));
    const std::vector<std::string> steps = Steps("whole" + suffix);
    const auto loss = [](const std::string& step) {
      return Json::parse(step)["loss"].get<double>();
    };
    EXPECT_LT(loss(steps.back()), loss(steps.front()));
    TrainOptions options = coded("parts");
    Run(options, 3);
    options.resume_from_checkpoint = "auto";
    options.compute_dtype = "bfloat16";
    options.int8_backward = false;
    ExpectRefused(options, R"(compute_dtype ("int8" in the checkpoint, "bfloat16" now)");
    options = coded("parts");
    options.resume_from_checkpoint = "auto";
    Run(options);
    EXPECT_TRUE(Adapter("whole" + suffix) == Adapter("parts" + suffix));
  }
  EXPECT_FALSE(Adapter("whole-forward") == Adapter("whole-both"));
}

TEST_F(ResumeTest, RefusesOtherOptions) {
  TrainOptions options = Options("run");
  Run(options, 3);
  options.resume_from_checkpoint = "auto";
  options.learning_rate = 5e-3;
  ExpectRefused(options, "learning_rate");
}

// Checkpoints of versions that did not record layouts resume with the same texts, or are refused.
TEST_F(ResumeTest, OlderCheckpointsResumeWithTheirTexts) {
  const fs::path data = root_ / "alpaca.jsonl";
  std::string lines;
  for (const char* name : {"Ann", "Ben", "Cid", "Dan"}) {
    lines += std::string("{\"instruction\": \"Greet ") + name + ".\", \"output\": \"Hi " + name +
             "\"}\n";
  }
  WriteTextFile(data, lines);
  TrainOptions options = Options("old");
  options.data.dataset = {data};
  options.data.reading.max_length = 256;
  options.data.reading.prompt_layout = "instruction_answer";
  Run(options, 3);
  const fs::path state = root_ / "old" / "checkpoint-3" / "trainer_state.json";
  Json json = ReadJsonFile(state);
  json["options"].erase("prompt_layout");
  json.erase(kStateChecksum);
  WriteTextFile(state, json.dump());

  options.resume_from_checkpoint = "auto";
  options.data.reading.prompt_layout = "auto";
  ExpectRefused(options, "Add --prompt-layout instruction_answer");
  options.data.reading.prompt_layout = "instruction_answer";
  Run(options);
}

TEST_F(ResumeTest, OlderCheckpointsOfOtherDataResume) {
  TrainOptions options = Options("old");
  Run(options, 3);
  const fs::path state = root_ / "old" / "checkpoint-3" / "trainer_state.json";
  Json json = ReadJsonFile(state);
  json["options"].erase("prompt_layout");
  json.erase(kStateChecksum);
  WriteTextFile(state, json.dump());
  options.resume_from_checkpoint = "auto";
  Run(options);
}

TEST_F(ResumeTest, TheLayoutIsRecordedAndContinues) {
  const fs::path data = root_ / "alpaca.jsonl";
  WriteTextFile(data, "{\"instruction\": \"Greet Ann.\", \"output\": \"Hi Ann\"}\n");
  TrainOptions options = Options("first");
  options.data.dataset = {data};
  options.data.reading.max_length = 256;
  options.data.reading.prompt_layout = "instruction_answer";
  options.max_steps = 1;
  Run(options);
  const Json first = ReadJsonFile(root_ / "first" / "qlora_base.json").at("prompt_layout");
  EXPECT_EQ(first.at("kind"), "text");
  EXPECT_EQ(first.at("format"), "alpaca");
  EXPECT_NE(ReadTextFile(root_ / "first" / "chat_template.jinja").find("Answer:"),
            std::string::npos);
  options.data.reading.prompt_layout = "auto";
  options.adapter = root_ / "first";
  options.output_dir = root_ / "second";
  Run(options);
  EXPECT_EQ(ReadJsonFile(root_ / "second" / "qlora_base.json").at("prompt_layout"), first);
}

TEST_F(ResumeTest, RefusesToWriteOverARun) {
  TrainOptions options = Options("run");
  options.max_steps = 1;
  Run(options);
  EXPECT_THROW(Run(options), Error);
  options.overwrite_output_dir = true;
  Run(options);
}

TEST_F(ResumeTest, KeepsTheNewestCheckpoints) {
  TrainOptions options = Options("run");
  options.save_steps = 2;
  options.save_total_limit = 2;
  Run(options);
  EXPECT_FALSE(fs::exists(root_ / "run" / "checkpoint-8"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "checkpoint-10"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "checkpoint-12"));
}

TEST_F(ResumeTest, FromAnOlderCheckpointKeepsWhatItSaves) {
  TrainOptions options = Options("run");
  options.save_steps = 4;
  Run(options, 11);  // leaves 4, 8 and 11
  options.resume_from_checkpoint = root_ / "run" / "checkpoint-4";
  options.save_steps = 1;
  options.save_total_limit = 1;
  Run(options, 5);
  EXPECT_EQ(ListCheckpoints(options.output_dir),
            std::vector<fs::path>{root_ / "run" / "checkpoint-5"});
}

TEST_F(ResumeTest, GoesOnInAnotherFolderUnlessItHoldsARun) {
  Run(Options("whole"));
  Run(Options("first"), 4);
  TrainOptions options = Options("second");
  options.resume_from_checkpoint = root_ / "first" / "checkpoint-4";
  Run(options);
  EXPECT_TRUE(Adapter("whole") == Adapter("second"));
  const std::string logged = ReadTextFile(root_ / "whole" / "train_log.jsonl");
  options.output_dir = root_ / "whole";
  ExpectRefused(options, "already holds a run");
  EXPECT_EQ(ReadTextFile(root_ / "whole" / "train_log.jsonl"), logged);
}

TEST_F(ResumeTest, RefusesTheFolderOfAModel) {
  const fs::path model = root_ / "model";
  fs::create_directories(model);
  for (const char* name : {"config.json", "model.safetensors", "chat_template.jinja"}) {
    WriteTextFile(model / name, "{}");
  }
  TrainOptions options = Options("model");
  options.overwrite_output_dir = true;
  ExpectRefused(options, "holds a model");
  options.resume_from_checkpoint = "auto";
  ExpectRefused(options, "holds a model");
  options.resume_from_checkpoint = "";
  options.output_dir = root_ / "missing" / ".." / "model";
  ExpectRefused(options, "holds a model");
  EXPECT_TRUE(fs::exists(model / "chat_template.jinja"));
}

TEST_F(ResumeTest, RefusesToRemoveTheAdapterItStartsFrom) {
  TrainOptions options = Options("run");
  options.max_steps = 1;
  options.save_steps = 1;
  Run(options);
  options.overwrite_output_dir = true;
  for (const char* adapter : {"run", "run/checkpoint-1", "run/../run/"}) {
    options.adapter = root_ / adapter;
    ExpectRefused(options, "starts from");
  }
  EXPECT_TRUE(fs::exists(root_ / "run" / "adapter_model.safetensors"));
  options.output_dir = "";
  ExpectRefused(options, "output_dir: expected a directory");
}

TEST_F(ResumeTest, AFinishedRunWithoutCheckpointsSaysSo) {
  TrainOptions options = Options("run");
  options.max_steps = 1;
  Run(options);
  fs::remove_all(root_ / "run" / "checkpoint-1");
  options.resume_from_checkpoint = "auto";
  ExpectRefused(options, "finished adapter");
}

TEST_F(ResumeTest, AFinishedRunIsLoggedOnce) {
  TrainOptions options = Options("run");
  options.save_steps = 4;
  options.sample_prompts = {"Once"};
  options.sample_steps = 4;
  options.sample_max_new_tokens = 4;
  options.data.val_set_size = 6;
  options.eval_steps = 6;
  Run(options);
  const std::string samples = ReadTextFile(root_ / "run" / "samples.jsonl");
  options.resume_from_checkpoint = "auto";
  Run(options);
  EXPECT_EQ(ReadTextFile(root_ / "run" / "samples.jsonl"), samples);
}

TEST_F(ResumeTest, AnAdapterGoesOnOverTheBaseThatItWasTrainedOn) {
  TrainOptions options = Options("first");
  options.load_in_4bit = false;
  options.max_steps = 2;
  Run(options);
  TrainOptions next = Options("second");
  next.adapter = root_ / "first";
  next.max_steps = 2;
  Run(next);
  const Json form = ReadJsonFile(root_ / "second" / "qlora_base.json");
  EXPECT_EQ(form.at("load_in_4bit"), false);
  next.output_dir = root_ / "third";
  next.quantization.bnb_4bit_quant_type =
      "fp4";  // of no meaning over 16 bits, and no contradiction
  Run(next);
}

TEST_F(ResumeTest, NeedsTheCheckpointOfTheBestEvaluation) {
  TrainOptions options = Options("run");
  options.data.val_set_size = 6;
  options.eval_steps = 3;
  options.load_best_model_at_end = true;
  Run(options, 4);  // evaluated and saved at 3, saved at 4
  fs::remove_all(root_ / "run" / "checkpoint-3");
  options.resume_from_checkpoint = "auto";
  ExpectRefused(options, "load_best_model_at_end");
}

TEST_F(ResumeTest, RefusesWhatDoesNotFit) {
  TrainOptions options = Options("run");
  options.max_memory = "1MB";
  try {
    Run(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

TEST_F(ResumeTest, AFolderInUseIsRefused) {
  TrainOptions options = Options("run");
  Run(options, 3);
  options.resume_from_checkpoint = "auto";
  {
    FolderLock other;
    ASSERT_TRUE(other.Take(options.output_dir));
    ExpectRefused(options, "is in use by another run");
  }
  Run(options);
}

// A run that another one overtook between its plan and its start.
TEST_F(ResumeTest, AFolderThatChangedSinceThePlanIsRefused) {
  TrainOptions options = Options("run");
  options.max_steps = 1;
  Context context(1);
  TrainObserver observer;
  const TrainPlan plan = PlanTraining(context, options);
  Run(options);
  const std::string adapter = Adapter("run");
  EXPECT_THROW(Train(context, plan, observer), Error);
  EXPECT_TRUE(Adapter("run") == adapter);
}

}  // namespace
}  // namespace qlora
