// Optimizers, learning rates of groups, and schedules, as parts of a run.
#include "step/optimizer.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "io/peft/peft.h"
#include "model/checkpoint.h"
#include "qlora/error.h"
#include "quant/dynamic_map.h"
#include "step/schedule.h"
#include "test_build.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

// Bytes of the mapped files of paged moments by a field of /proc/self/smaps: "Size:", "Rss:". Not
// the memory of the whole process, which earlier tests, the allocator and sanitizers change too.
std::size_t MappedMoments(const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  bool is_paged = false;
  std::size_t kilobytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    const std::string word = line.substr(0, line.find(' '));
    if (word.find('-') != std::string::npos) {  // the line of addresses, which begins a mapping
      is_paged = line.find("/qlora-paged-") != std::string::npos;
    } else if (is_paged && word == field) {
      kilobytes += std::stoull(line.substr(word.size()));
    }
  }
  return kilobytes * 1024;
}

class OptimizerTest : public TinyRunTest {
 protected:
  // The mean loss of the last steps of a run.
  double LastLoss(const std::string& name) const {
    const std::vector<std::string> steps = Steps(name);
    double sum = 0;
    for (std::size_t i = steps.size() - 5; i < steps.size(); ++i) {
      sum += Json::parse(steps[i]).at("loss").get<double>() / 5;
    }
    return sum;
  }
  double FirstLoss(const std::string& name) const {
    return Json::parse(Steps(name).front()).at("loss").get<double>();
  }
  TrainOptions With(const std::string& name, const std::string& optim) const {
    TrainOptions options = Options(name);
    options.optim = optim;
    options.max_steps = 24;
    options.weight_decay = 0.01;
    if (optim == "sgd") options.learning_rate = 1;
    if (optim.starts_with("lion")) options.learning_rate = 1e-2;
    return options;
  }
};

// Long, because each of seven optimizers trains twice and resumes once.
TEST_F(OptimizerTest, EachLearnsAndResumesToTheSameBits) {
  for (const char* optim :
       {"adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "lion", "lion_8bit", "sgd"}) {
    SCOPED_TRACE(optim);
    const std::string whole = std::string(optim) + "-whole";
    Run(With(whole, optim));
    EXPECT_LT(LastLoss(whole), 0.9 * FirstLoss(whole));
    TrainOptions options = With(std::string(optim) + "-parts", optim);
    Run(options, 9);
    options.resume_from_checkpoint = "auto";
    Run(options, -1, 1);
    const std::string parts = std::string(optim) + "-parts";
    EXPECT_EQ(Steps(whole), Steps(parts));
    EXPECT_TRUE(Adapter(whole) == Adapter(parts));
  }
  EXPECT_TRUE(Adapter("adamw-whole") == Adapter("paged_adamw-whole"));
  EXPECT_TRUE(Adapter("adamw_8bit-whole") == Adapter("paged_adamw_8bit-whole"));
  EXPECT_NEAR(LastLoss("adamw-whole"), LastLoss("adamw_8bit-whole"), 0.05);
}

// B begins as 0, so that one step tells: A decays, and the magnitudes of DoRA do not.
TEST_F(OptimizerTest, MagnitudesDoNotDecay) {
  const auto saved = [&](const std::string& name, double decay) {
    TrainOptions options = Options(name);
    options.use_dora = true;
    options.max_steps = 1;
    options.lr_scheduler_type = "constant";
    options.weight_decay = decay;
    Run(options);
    return OpenAdapter(root_ / name);
  };
  const auto plain = saved("plain", 0);
  const auto decayed = saved("decayed", 0.5);
  const auto same = [&](const TensorInfo* a, const TensorInfo* b) {
    return std::ranges::equal(plain.tensors->Bytes(*a), decayed.tensors->Bytes(*b));
  };
  ASSERT_EQ(plain.modules.size(), decayed.modules.size());
  for (std::size_t i = 0; i < plain.modules.size(); ++i) {
    SCOPED_TRACE(plain.modules[i].path);
    EXPECT_FALSE(same(plain.modules[i].a, decayed.modules[i].a));
    EXPECT_TRUE(same(plain.modules[i].b, decayed.modules[i].b));
    EXPECT_TRUE(same(plain.modules[i].magnitude, decayed.modules[i].magnitude));
  }
}

TEST_F(OptimizerTest, MomentumOfSgdIsKept) {
  TrainOptions options = With("whole", "sgd");
  options.learning_rate = 0.2;
  options.sgd_momentum = 0.9;
  Run(options);
  EXPECT_LT(LastLoss("whole"), 0.9 * FirstLoss("whole"));
  options.output_dir = root_ / "parts";
  Run(options, 5);
  options.resume_from_checkpoint = "auto";
  Run(options);
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

// Runs in a child whose private writable memory may grow by `extra` bytes, and returns its exit
// code: that of the error, or 0.
int RunWithMemory(const TrainOptions& options, std::size_t extra) {
  const pid_t child = fork();
  if (child == 0) {
    // VmData of this process, in pages, is the sixth number of statm.
    std::ifstream statm("/proc/self/statm");
    std::size_t pages = 0;
    for (int i = 0; i < 6; ++i) statm >> pages;
    const rlim_t limit = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + extra;
    const rlimit both = {limit, limit};
    if (setrlimit(RLIMIT_DATA, &both) != 0) _exit(99);
    try {
      Context context(1);
      TrainObserver observer;
      PlanAndTrain(context, options, observer);
      _exit(0);
    } catch (const Error& error) {
      _exit(static_cast<int>(error.code()));
    } catch (const std::bad_alloc&) {
      _exit(static_cast<int>(ErrorCode::kOutOfMemory));
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(OptimizerTest, PagedStateTrainsUnderAMemoryLimitOfTheSystem) {
  if (Sanitized()) GTEST_SKIP() << "the limit would count the memory of the sanitizers";
  TrainOptions options = Options("plain");
  options.lora_r = 6144;
  options.max_steps = 3;
  options.save_steps = 2;
  const LoraAdapter adapter = [&] {
    AdapterConfig config;
    config.r = options.lora_r;
    config.target_modules = std::string("all-linear");
    return LoraAdapter::Create(config, LoadDecoderConfig(kGolden / "llama-tiny"), HostMemory(), 1);
  }();
  const std::size_t bytes = static_cast<std::size_t>(adapter.parameters().cols) * sizeof(float);
  ASSERT_GT(2 * bytes, std::size_t{64} << 20);  // above what is needed for a moment while loading
  // Parameters, gradients and all else fit, the moments (twice the parameters) do not. What else
  // there is, is found by trying.
  std::size_t extra = 2 * bytes;
  options.optim = "paged_adamw";
  while (RunWithMemory(options, extra) != 0) {
    extra += bytes / 2;
    options.overwrite_output_dir = true;
    ASSERT_LT(extra, 20 * bytes);
  }
  options.output_dir = root_ / "unpaged";
  options.optim = "adamw";
  EXPECT_EQ(RunWithMemory(options, extra), static_cast<int>(ErrorCode::kOutOfMemory));
  EXPECT_EQ(RunWithMemory(options, extra + 2 * bytes), 0);
  EXPECT_TRUE(Adapter("plain") == Adapter("unpaged"));
}

TEST_F(OptimizerTest, PlanCountsTheBytesOfTheMoments) {
  AdapterConfig config;
  config.r = 512;
  config.target_modules = std::string("all-linear");
  const LoraAdapter adapter =
      LoraAdapter::Create(config, LoadDecoderConfig(kGolden / "llama-tiny"), HostMemory(), 1);
  const auto parameters = static_cast<double>(adapter.parameters().cols);
  const auto bytes = [&](const char* optim) {
    return static_cast<double>(Optimizer::Bytes(ParseOptimizer(optim), adapter, HostMemory())) /
           parameters;
  };
  EXPECT_NEAR(bytes("adamw"), 8, 0.01);
  EXPECT_NEAR(bytes("lion"), 4, 0.01);
  EXPECT_NEAR(bytes("adamw_8bit"), 2 * (1 + 4.0 / 256), 0.01);
  EXPECT_NEAR(bytes("lion_8bit"), 1 + 4.0 / 256, 0.01);
}

// However many pieces they are filled in.
TEST_F(OptimizerTest, MomentsOfEightBitsBeginAsZero) {
  AdapterConfig config;
  config.r = 512;
  config.target_modules = std::string("all-linear");
  const LoraAdapter adapter =
      LoraAdapter::Create(config, LoadDecoderConfig(kGolden / "llama-tiny"), HostMemory(), 1);
  ASSERT_GT(adapter.parameters().cols, 1 << 18);
  const Optimizer optimizer(ParseOptimizer("lion_8bit"), adapter, "");
  const auto [name, codes] = optimizer.State().front();
  EXPECT_EQ(name, "exp_avg");
  const float zero = 0;
  std::uint8_t code = 0;
  DynamicMap::Signed().Encode(&zero, 1, &code);
  const std::uint8_t* begin = codes.Row<std::uint8_t>(0);
  EXPECT_EQ(std::count(begin, begin + codes.cols, code), codes.cols);
}

TEST_F(OptimizerTest, PagedMomentsAreNotResidentAtBirth) {
  AdapterConfig config;
  config.r = 16384;
  config.target_modules = std::string("all-linear");
  const LoraAdapter adapter(config, LoadDecoderConfig(kGolden / "llama-tiny"),
                            HostMemory());  // nothing is allocated
  const OptimizerType type = ParseOptimizer("paged_adamw_8bit");
  ASSERT_GT(Optimizer::StateBytes(type, adapter),
            4 * Optimizer::Bytes(type, adapter, HostMemory()));
  const Optimizer optimizer(type, adapter, root_.string());
  EXPECT_GE(MappedMoments("Size:"), Optimizer::StateBytes(type, adapter));
  EXPECT_LT(MappedMoments("Rss:"), Optimizer::Bytes(type, adapter, HostMemory()));
}

TEST_F(OptimizerTest, GroupsHaveTheirOwnRates) {
  // The first AdamW update of a value is its learning rate, whatever its gradient.
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  TrainOptions options = Options("still");
  options.max_steps = 1;
  options.lr_scheduler_type = "constant";
  options.modules_to_save = {"lm_head"};
  options.learning_rate = 0;
  Run(options);
  const LoraAdapter initial = LoraAdapter::Load(root_ / "still", decoder, HostMemory());
  options.output_dir = root_ / "run";
  options.learning_rate = 1e-2;
  options.loraplus_lr_ratio = 16;
  options.embedding_learning_rate = 1e-3;
  Run(options);
  const LoraAdapter trained = LoraAdapter::Load(root_ / "run", decoder, HostMemory());
  ASSERT_EQ(trained.groups().size(), 3u);
  const auto largest = [&](const ParameterGroup& group) {
    double most = 0;
    for (std::int64_t i = group.begin; i < group.begin + group.count; ++i) {
      most = std::max<double>(most, std::abs(trained.parameters().Row<float>(0)[i] -
                                             initial.parameters().Row<float>(0)[i]));
    }
    return most;
  };
  EXPECT_EQ(largest(trained.groups()[0]), 0);  // B is zero, so A has no gradient yet
  EXPECT_NEAR(largest(trained.groups()[1]), 16e-2, 1e-6);
  EXPECT_NEAR(largest(trained.groups()[2]), 1e-3, 1e-6);
}

TEST_F(OptimizerTest, SkippedStepsDoNotCountAsUpdates) {
  // The checkpoint of a run whose first step was skipped: nothing has moved.
  TrainOptions options = Options("run");
  options.max_steps = 2;
  options.warmup_steps = 1;  // the learning rate of the first step is 0
  Run(options, 1);
  const fs::path checkpoint = root_ / "run" / "checkpoint-1";
  Json state = ReadJsonFile(checkpoint / "trainer_state.json");
  state["skipped_steps"] = 1;
  state.erase("files");  // the checksums
  state.erase("state_crc32");
  WriteTextFile(checkpoint / "trainer_state.json", state.dump());
  std::string moments = ReadTextFile(checkpoint / "optimizer.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, moments.data(), sizeof(header));
  std::fill(moments.begin() + static_cast<std::ptrdiff_t>(sizeof(header) + header), moments.end(),
            '\0');
  WriteTextFile(checkpoint / "optimizer.safetensors", moments);

  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const LoraAdapter before = LoraAdapter::Load(checkpoint, decoder, HostMemory());
  options.resume_from_checkpoint = "auto";
  Run(options);
  const LoraAdapter after = LoraAdapter::Load(root_ / "run", decoder, HostMemory());
  double most = 0;
  for (std::int64_t i = 0; i < after.parameters().cols; ++i) {
    most = std::max<double>(
        most, std::abs(after.parameters().Row<float>(0)[i] - before.parameters().Row<float>(0)[i]));
  }
  // The first AdamW update of a value is its learning rate, whatever its gradient.
  const double rate = Json::parse(Steps("run").back()).at("learning_rate").get<double>();
  EXPECT_NEAR(most, rate, 1e-4 * rate);
}

TEST(Schedule, FollowsTransformers) {
  const auto at = [](const char* type, std::int64_t step, std::int64_t warmup = 10,
                     double cycles = 1) {
    return Schedule{ParseSchedulerType(type), 2.0, warmup, 110, cycles}.At(step);
  };
  for (const std::string& type : SchedulerNames()) {
    if (type == "constant" || type == "cosine_warmup_with_min_lr") continue;
    EXPECT_EQ(at(type.c_str(), 0), 0) << type;
    EXPECT_EQ(at(type.c_str(), 5), 1) << type;
    EXPECT_EQ(at(type.c_str(), 10), 2) << type;
  }
  // Begins with one step of its warm-up, not with none.
  EXPECT_DOUBLE_EQ(at("cosine_warmup_with_min_lr", 0), 0.2);
  EXPECT_DOUBLE_EQ(at("cosine_warmup_with_min_lr", 9), 2);
  EXPECT_EQ(at("constant", 0), 2);
  EXPECT_EQ(at("constant_with_warmup", 109), 2);
  EXPECT_DOUBLE_EQ(at("linear", 60), 1);
  EXPECT_DOUBLE_EQ(at("cosine", 35), 1 + std::cos(M_PI / 4));
  EXPECT_NEAR(at("cosine", 110), 0, 1e-12);
  EXPECT_DOUBLE_EQ(at("cosine_with_restarts", 35, 10, 2), 1 + std::cos(M_PI / 2));
  EXPECT_DOUBLE_EQ(at("cosine_with_restarts", 60, 10, 2), 2);
  EXPECT_EQ(at("cosine_with_restarts", 110, 10, 2), 0);
  EXPECT_DOUBLE_EQ(at("inverse_sqrt", 40), 2 / std::sqrt(4.0));
  EXPECT_DOUBLE_EQ(at("inverse_sqrt", 10000, 0), 2 / std::sqrt(2.0));
  EXPECT_THROW(ParseSchedulerType("linaer"), Error);
  EXPECT_THROW(ParseOptimizer("adamv"), Error);
}

}  // namespace
}  // namespace qlora
