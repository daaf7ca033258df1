#include "convert/verify.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/matrix.h"
#include "base/random.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"

namespace qlora {
namespace {

Batch RandomBatch(const DecoderConfig& config, std::int64_t context) {
  constexpr int kSequences = 4;
  constexpr std::int64_t kLength = 48;
  std::vector<Sample> samples(kSequences);
  std::uint64_t draw = 0;
  for (Sample& sample : samples) {
    for (std::int64_t t = 0; t < std::min(kLength, context); ++t) {
      // Random ids reach rare rows of the embedding, too.
      sample.ids.push_back(
          static_cast<std::int32_t>(RandomBelow(MakeKey(0, RandomPlace::kVerify), draw++,
                                                static_cast<std::uint64_t>(config.vocab_size))));
    }
    sample.labels = sample.ids;
  }
  return MakeBatch(samples);
}

// The text in sequences that fit both contexts, a batch each.
std::vector<Batch> TextBatches(std::span<const std::int32_t> ids, std::int64_t context) {
  constexpr std::size_t kBatches = 16;
  const auto length = static_cast<std::size_t>(std::min<std::int64_t>(256, context));
  std::vector<Batch> batches;
  for (std::size_t begin = 0; begin + 1 < ids.size() && batches.size() < kBatches;
       begin += length) {
    const auto part = ids.subspan(begin, std::min(length, ids.size() - begin));
    if (part.size() < 2) break;
    Sample sample{{part.begin(), part.end()}, {part.begin(), part.end()}};
    batches.push_back(MakeBatch(std::span<const Sample>(&sample, 1)));
  }
  return batches;
}

// One form, after its pass over a batch.
class Side {
 public:
  Side(const ModelForm& form, const Batch& batch)
      : form_(form),
        decoder_(form.backend, form.config, form.weights, {DType::kF32, DType::kF32}, batch.rows()),
        adapters_(AdaptersOf(form.adapter)),
        memory_(ReserveEvaluation(decoder_, adapters_, batch.rows())),
        passes_(decoder_, adapters_, memory_),
        activations_(passes_.ForRows(batch.rows())) {
    // DoRA: lengths of rows belong to these weights, not to the other side's.
    if (form.adapter != nullptr) RefreshNorms(form.backend, form.weights, *form.adapter);
    inputs_ =
        PrepareInputs(decoder_, batch, {ForAllRows(form.adapter, batch.rows())}, activations_);
    Forward(decoder_, inputs_, activations_);
  }

  std::int64_t chunk() const { return activations_.logits.rows; }

  // log p of every token (count, V) after the predicting rows [begin, begin + count).
  std::vector<double> LogProbs(std::int64_t begin, std::int64_t count) {
    const MatrixView logits = Logits(decoder_, inputs_, begin, count, activations_);
    std::vector<double> values = DownloadReal(form_.backend.memory(), logits);
    const std::int64_t size = logits.cols;
    for (std::int64_t r = 0; r < count; ++r) Normalize(std::span(values).subspan(r * size, size));
    return values;
  }

 private:
  void Normalize(std::span<double> row) const {
    const double cap = form_.config.final_softcap;
    if (cap > 0) {
      for (double& value : row) value = cap * std::tanh(value / cap);
    }
    const double most = *std::ranges::max_element(row);
    double sum = 0;
    for (const double value : row) sum += std::exp(value - most);
    for (double& value : row) value -= most + std::log(sum);
  }

  const ModelForm& form_;
  Decoder decoder_;
  Adapters adapters_;
  Arena memory_;
  EvalMemory passes_;
  Activations& activations_;
  PassInputs inputs_;
};

// Sums over rows.
struct Sums {
  std::int64_t rows = 0;
  std::int64_t agreeing = 0;  // rows with one most probable token
  double difference = 0;
  double max_difference = 0;
  double kl = 0;  // KL(source || written)
  double max_kl = 0;
  double loss = 0;  // of the source
  double written_loss = 0;

  void Add(std::span<const double> source, std::span<const double> written, std::int32_t target) {
    double divergence = 0;
    for (std::size_t i = 0; i < source.size(); ++i) {
      divergence += std::exp(source[i]) * (source[i] - written[i]);
    }
    const double apart = std::abs(source[target] - written[target]);
    ++rows;
    if (std::ranges::max_element(source) - source.begin() ==
        std::ranges::max_element(written) - written.begin()) {
      ++agreeing;
    }
    difference += apart;
    kl += divergence;
    // Written so that NaN is kept.
    if (!(apart <= max_difference)) max_difference = apart;
    if (!(divergence <= max_kl)) max_kl = divergence;
    loss -= source[target];
    written_loss -= written[target];
  }
};

void AddBatch(const ModelForm& source, const ModelForm& written, const Batch& batch,
              const std::function<void()>& tick, Sums& sums) {
  Side a(source, batch);
  Side b(written, batch);
  if (tick) tick();
  std::vector<std::int32_t> targets;
  for (const std::int32_t target : batch.targets) {
    if (target != kIgnoreLabel) targets.push_back(target);
  }
  const auto total = static_cast<std::int64_t>(targets.size());
  const std::int64_t chunk = std::min(a.chunk(), b.chunk());
  const std::int64_t vocabulary = source.config.vocab_size;
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const std::int64_t count = std::min(chunk, total - begin);
    const std::vector<double> p = a.LogProbs(begin, count);
    const std::vector<double> q = b.LogProbs(begin, count);
    for (std::int64_t r = 0; r < count; ++r) {
      sums.Add(std::span(p).subspan(r * vocabulary, vocabulary),
               std::span(q).subspan(r * vocabulary, vocabulary), targets[begin + r]);
    }
    if (tick) tick();
  }
}

}  // namespace

VerifyLimits LimitsOfType(const TensorType& outtype) {
  // float16 keeps 11 bits of a weight, bfloat16 8, Q8_0 about 7.
  if (outtype == DType::kF32) return {0.001, 1e-6};
  if (outtype == DType::kF16) return {0.02, 5e-4};
  if (outtype == DType::kBF16) return {0.2, 5e-3};
  // A bit less doubles the error of a weight, and a KL divergence grows with its square. From about
  // five bits on, small models are far from their source: of trained ones, in a text unlike that
  // which they have learned, the means are up to 0.75 and 0.3 at 4 bits, 1.5 and 1.2 at 2. A wrong
  // period of the rotary embedding gives 2.9 and 3.8.
  const BlockFormatInfo& info = InfoOf(outtype.format);
  const double bits = 8.0 * static_cast<double>(info.bytes) / static_cast<double>(info.values);
  const double doublings = std::max(0.0, 8.5 - bits);
  return {std::min(bits < 4 ? 2.5 : 2.0, 0.5 * std::pow(2.0, doublings)),
          std::min(bits < 4 ? 2.5 : 1.0, 0.02 * std::pow(4.0, doublings))};
}

std::string_view BuiltInText() {
  return "The old lighthouse stood at the end of a narrow road, and every evening at half past "
         "seven its keeper climbed the 214 steps to light the lamp. \"Some day,\" she told the "
         "children who came to visit, \"a machine will do this, and I shall read books instead.\" "
         "They did not believe her; who would want to read when there are ships to watch?\n\n"
         "Recipe for four people: 250 g of flour, 3 eggs, 1/2 litre of milk and a pinch of salt. "
         "Mix everything, wait 20 minutes, and fry thin pancakes in a hot pan.\n\n"
         "def mean(values):\n    if not values:\n        return 0.0\n"
         "    return sum(values) / len(values)\n\n"
         "Caf\u00e9, na\u00efve, Stra\u00dfe, \u041c\u043e\u0441\u043a\u0432\u0430, "
         "\u6771\u4eac, \u0627\u0644\u0633\u0644\u0627\u0645: words of many places. The price rose "
         "from $1,299.99 to $1,350.00 (a rise of 3.85 %) between 2019-04-01 and 2021-12-31.\n";
}

VerifyReport Compare(const ModelForm& source, const ModelForm& written,
                     std::span<const std::int32_t> text, const std::function<void()>& tick) {
  if (source.config.vocab_size != written.config.vocab_size) {
    ThrowRuntime("its vocabulary has {} tokens, and that of the source {}",
                 written.config.vocab_size, source.config.vocab_size);
  }
  // llama.cpp has no windows in most architectures: the written context is no longer than them.
  const std::int64_t context =
      std::min(source.config.max_position_embeddings, written.config.max_position_embeddings);
  Sums sums;
  AddBatch(source, written, RandomBatch(source.config, context), tick, sums);
  const Sums random = sums;
  for (const Batch& batch : TextBatches(text, context)) {
    AddBatch(source, written, batch, tick, sums);
  }
  VerifyReport report;
  const auto rows = static_cast<double>(sums.rows);
  report.mean_logprob_difference = sums.difference / rows;
  report.max_logprob_difference = sums.max_difference;
  // Rounding of sums gives a divergence just below 0.
  report.mean_kl_divergence = sums.kl < 0 ? 0 : sums.kl / rows;
  report.max_kl_divergence = sums.max_kl;
  report.top1_agreement = static_cast<double>(sums.agreeing) / rows;
  report.text_tokens = sums.rows - random.rows;
  if (report.text_tokens > 0) {
    const auto tokens = static_cast<double>(report.text_tokens);
    report.source_perplexity = std::exp((sums.loss - random.loss) / tokens);
    report.perplexity = std::exp((sums.written_loss - random.written_loss) / tokens);
  }
  return report;
}

}  // namespace qlora
