#include "train/run_setup.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "data/open_data.h"
#include "data/sample_view.h"
#include "io/hub.h"
#include "model/evaluate.h"
#include "model/setup.h"
#include "tokenizer/tokenizer_config.h"
#include "train/disk_plan.h"
#include "train/lora_init.h"
#include "train/recipe.h"
#include "train/resume.h"

namespace qlora {
namespace {

// The share of free memory that a run leaves to others unless max_memory says what it may use.
constexpr double kSpareMemory = 0.1;

// The shortest sequences that a run which does not fit is advised to cut its samples to.
constexpr std::int64_t kShortest = 128;

TrainOptions Checked(const TrainOptions& options) {
  CheckOptions(options);
  return options.adapter.empty() ? options : WithAdapter(options);
}

std::filesystem::path CheckedModelDir(const TrainOptions& options,
                                      const std::optional<std::filesystem::path>& checkpoint) {
  CheckOutputDir(options, checkpoint);
  return ResolveModelDir(options.model_name_or_path);
}

}  // namespace

RunSetup::RunSetup(Context& the_context, const TrainOptions& the_options,
                   TrainObserver& the_observer)
    : context(the_context),
      options(Checked(the_options)),
      observer(the_observer),
      resume(FindCheckpoint(options, observer)),
      model_dir(CheckedModelDir(options, resume)),
      config(LoadDecoderConfig(model_dir)),
      tokenizer(Tokenizer::Load(model_dir, options.adapter)),
      precision(ParsePrecision(options.compute_dtype)),
      form{options.model_name_or_path, options.load_in_4bit, options.quantization},
      adapter(DescribeAdapter()) {
  OpenData();
  samples = Samples(options.sample_prompts, options.sample_max_new_tokens, tokenizer, config);
  backend = MakeCpuBackend(context, precision.activation);
  PlanMemoryAndReserve();
  PrepareSchedule();
  plan = {schedule.total_steps, schedule.warmup_steps,
          PlanDisk(options, adapter, schedule.total_steps, StepsOfEpoch(0))};
  CheckDisk(plan.disk);
  FillAdapter();
}

// Without memory: it is planned first.
LoraAdapter RunSetup::DescribeAdapter() const {
  const bool goes_on = !options.adapter.empty();
  LoraAdapter described(
      goes_on ? OpenAdapter(options.adapter).config : ToAdapterConfig(options, config), config);
  if (options.embedding_learning_rate > 0 && described.modules().empty()) {
    ThrowInvalidInput("embedding_learning_rate is that of modules_to_save, which names no module{}",
                      goes_on ? " in the adapter" : "");
  }
  if (DoublesRank(ParseLoraInit(options.init_lora_weights))) described.FreezeSecondHalf();
  return described;
}

void RunSetup::FillAdapter() {
  if (options.adapter.empty()) {
    adapter.Initialize(static_cast<std::uint64_t>(options.seed));
  } else {
    adapter.Read(options.adapter);
  }
  adapter.AllocateGradients();
}

void RunSetup::OpenData() {
  const DataFields& fields = options.data;
  chat = LoadChatTemplate(fields.chat, tokenizer, ChatClock::kFixed);
  form.chat_template_kwargs = fields.chat.chat_template_kwargs;
  const bool kept =
      std::filesystem::exists(std::filesystem::path(options.adapter) / kChatTemplateFile);
  if (!fields.chat.chat_template.empty() || (!options.adapter.empty() && kept)) {
    form.chat_template = chat->text();
  }
  const DataLimits limits{config.vocab_size, config.max_position_embeddings};
  const std::string warning = WarnOfLength(fields.reading, limits);
  if (!warning.empty()) observer.OnWarning(warning);
  TrainingData data = OpenTrainingData(fields, limits, static_cast<std::uint64_t>(options.seed),
                                       tokenizer, chat.get(), &context);
  stream_options.per_device_train_batch_size = options.per_device_train_batch_size;
  stream_options.max_length = ResolveMaxLength(fields.reading, limits);
  stream_options.packing = fields.packing;
  stream_options.shuffle = fields.shuffle;
  stream_options.seed = static_cast<std::uint64_t>(options.seed);
  observer.OnData(RenderTrainingData(data, stream_options));
  train = std::move(data.train);
  held_out = std::move(data.held_out);
}

std::int64_t RunSetup::Positions(std::int64_t max_length) const {
  const std::int64_t longest =
      std::max<std::int64_t>(train->report().longest, held_out ? held_out->report().longest : 0);
  return std::max(std::min(longest, max_length), samples.capacity());
}

std::int64_t RunSetup::RowsOfEvaluation(std::int64_t max_length) const {
  const std::int64_t held_out_rows =
      held_out ? EvalRows(std::min<std::int64_t>(held_out->report().longest, max_length)) : 0;
  return std::max(held_out_rows, samples.rows());
}

std::vector<Recompute> RunSetup::AllLayers(Recompute level) const {
  return std::vector<Recompute>(config.num_hidden_layers, level);
}

MemoryPlan RunSetup::PlanFor(const WeightSizes& sizes, const ActivationNeeds& needs,
                             std::int64_t max_length) const {
  MemoryPlan found = PlanMemory(*backend, config, adapter, precision, sizes, needs,
                                Optimizer::Bytes(OptimizerOf(options), adapter));
  found.Add({"rotary tables", Decoder::RopeBytes(config, precision, Positions(max_length))});
  if (!samples.empty()) {
    found.Add({"keys and values of samples", samples.CacheBytes(config, precision)});
  }
  return found;
}

void RunSetup::PlanMemoryAndReserve() {
  const std::int64_t max_length = stream_options.max_length;
  ActivationNeeds needs{.train_rows = BatchStream(*train, stream_options).MaxRows(),
                        .train_length = std::min<std::int64_t>(train->report().longest, max_length),
                        .eval_rows = RowsOfEvaluation(max_length),
                        .recompute = {}};
  load.load_in_4bit = form.load_in_4bit;
  load.quantize = ParseQuantizeOptions(form.quantization);
  load.progress = [this](std::int64_t done, std::int64_t total) { observer.OnLoad(done, total); };
  const WeightSizes sizes = PlanWeights(context, *backend, model_dir, config, load);
  AdoptStoredForm(form, sizes);
  CheckLoraInit(ParseLoraInit(options.init_lora_weights), adapter,
                load.load_in_4bit && !sizes.stored_4bit);
  const auto peak_with = [&](const std::vector<Recompute>& recompute) {
    needs.recompute = recompute;
    return PlanFor(sizes, needs, max_length).peak();
  };
  std::vector<MemoryPart> ladder;
  for (const Recompute level :
       {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
    ladder.push_back({NameOf(level), peak_with(AllLayers(level))});
  }
  if (!options.gradient_checkpointing) {
    step_options.recompute = AllLayers(Recompute::kNone);
  } else if (options.recompute != "auto") {
    step_options.recompute = AllLayers(ParseRecompute(options.recompute));
  } else {
    step_options.recompute = ChooseRecompute(
        config.num_hidden_layers, MemoryLimit(options.max_memory, kSpareMemory), peak_with);
  }
  needs.recompute = step_options.recompute;
  memory_plan = PlanFor(sizes, needs, max_length);
  memory_plan.recompute = DescribeRecompute(step_options.recompute);
  memory_plan.ladder = std::move(ladder);
  observer.OnPlan(memory_plan);
  CheckMemory(memory_plan, options.max_memory,
              [&](std::size_t limit) { return WhatFits(sizes, needs, limit); });
  backend->Reserve(LimitsOf(*backend, config, adapter, needs));
  activations =
      Arena(ActivationBytes(*backend, config, adapter, precision, needs), backend->memory());
}

// The first of some changes with which the run would fit: more recomputation, a smaller
// micro-batch, shorter sequences.
std::string RunSetup::WhatFits(const WeightSizes& sizes, ActivationNeeds needs,
                               std::size_t limit) const {
  needs.recompute = AllLayers(Recompute::kLayer);
  std::size_t needed = 0;
  const auto fits = [&](std::int64_t train_rows, std::int64_t max_length) {
    needs.train_rows = train_rows;
    needs.train_length = std::min(needs.train_length, max_length);
    needs.eval_rows = RowsOfEvaluation(max_length);
    needed = PlanFor(sizes, needs, max_length).peak();
    return needed <= limit;
  };
  const auto advice = [&](const std::string& change) {
    return fmt::format("{} would fit: {:.2f} GB", change, static_cast<double>(needed) / 1e9);
  };
  const bool recomputes = options.gradient_checkpointing && options.recompute == "auto";
  const std::string with = recomputes ? "" : ", gradient_checkpointing true and recompute auto";
  StreamOptions stream = stream_options;
  if (!recomputes && fits(needs.train_rows, stream.max_length)) return advice(with.substr(2));
  while (stream.per_device_train_batch_size > 1) {
    stream.per_device_train_batch_size /= 2;
    if (fits(BatchStream(*train, stream).MaxRows(), stream.max_length)) {
      return advice(fmt::format("per_device_train_batch_size {}{}",
                                stream.per_device_train_batch_size, with));
    }
  }
  for (std::int64_t length = stream.max_length / 2; length >= kShortest; length /= 2) {
    if (fits(std::min(length, needs.train_rows), length)) {
      return advice(fmt::format("per_device_train_batch_size 1, max_length {}{}", length, with));
    }
  }
  return fmt::format(
      "neither a smaller per_device_train_batch_size nor a max_length of {} would fit: {:.2f} GB; "
      "a smaller lora_r, a smaller model or more memory is needed",
      kShortest, static_cast<double>(needed) / 1e9);
}

void RunSetup::PrepareSchedule() {
  schedule.type = ParseSchedulerType(options.lr_scheduler_type);
  schedule.learning_rate = options.learning_rate;
  schedule.total_steps = options.max_steps > 0 ? options.max_steps : StepsOfEpochs();
  if (schedule.type != SchedulerType::kConstant) {
    schedule.warmup_steps =
        options.warmup_steps > 0
            ? options.warmup_steps
            : static_cast<std::int64_t>(
                  std::ceil(options.warmup_ratio * static_cast<double>(schedule.total_steps)));
  }
  schedule.cycles = options.lr_scheduler_cycles;
  step_options.update = UpdateArgsOf(options);
  step_options.rates = GroupRatesOf(options);
  step_options.neftune_alpha = options.neftune_noise_alpha;
  step_options.max_grad_norm = options.max_grad_norm;
  step_options.seed = static_cast<std::uint64_t>(options.seed);
}

std::int64_t RunSetup::StepsOfEpoch(std::int64_t epoch) const {
  const std::int64_t window = options.gradient_accumulation_steps;
  return (BatchStream(*train, stream_options).MicroBatchesIn(epoch) + window - 1) / window;
}

std::int64_t RunSetup::StepsOfEpochs() const {
  const auto whole = static_cast<std::int64_t>(options.num_train_epochs);
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; epoch < whole; ++epoch) steps += StepsOfEpoch(epoch);
  const double rest = options.num_train_epochs - static_cast<double>(whole);
  if (rest > 0) {
    steps += static_cast<std::int64_t>(std::ceil(rest * static_cast<double>(StepsOfEpoch(whole))));
  }
  return steps;
}

}  // namespace qlora
