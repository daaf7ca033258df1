// Several adapters as one: sums, ranks, configurations and refusals, against sums in double.
#include "adapter/combined_adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "adapter/lora_reduce.h"
#include "base/file.h"
#include "base/matrix.h"
#include "base/random.h"
#include "io/json.h"
#include "io/peft/peft.h"
#include "io/test_util.h"
#include "model/checkpoint.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

using Paths = std::vector<std::string>;
using Matrix = std::vector<double>;

const fs::path kModel = SourceDir() / "tests" / "golden" / "llama-tiny";

DecoderConfig TinyDecoder() { return LoadDecoderConfig(kModel); }

// An adapter of the tiny model whose A and B are both random.
void WriteRandom(const fs::path& folder, const AdapterConfig& config, std::uint64_t seed) {
  const LoraAdapter lora = LoraAdapter::Create(config, TinyDecoder(), HostMemory(), seed);
  std::vector<AdapterWeights> weights;
  std::vector<std::vector<float>> values;
  for (const PerLinear<LoraLinear>& layer : lora.layers()) {
    layer.ForEach([&](const LoraLinear& linear) {
      if (linear.rank == 0) return;
      const RandomKey key = MakeKey(seed, RandomPlace::kLoraInit, 1000 + values.size());
      values.push_back(KaimingUniform(key, linear.out, linear.rank));
    });
  }
  std::size_t i = 0;
  for (const PerLinear<LoraLinear>& layer : lora.layers()) {
    layer.ForEach([&](const LoraLinear& linear) {
      if (linear.rank == 0) return;
      AdapterWeights& module = weights.emplace_back();
      module = {linear.path,
                linear.a,
                MakeView(std::as_const(values[i++]).data(), linear.out, linear.rank),
                {}};
    });
  }
  WriteAdapter(folder, config, weights, DType::kF32);
}

AdapterConfig Targeting(const Paths& names, std::int64_t r, double alpha) {
  AdapterConfig config;
  config.target_modules = names;
  config.r = r;
  config.lora_alpha = alpha;
  return config;
}

// scale * B A of every module, in double.
std::map<std::string, Matrix> ChangesOf(const AdapterValues& adapter) {
  std::map<std::string, Matrix> changes;
  for (const LoraValues& m : adapter.modules) {
    Matrix& change = changes[m.path];
    change.resize(m.out * m.in);
    for (std::int64_t o = 0; o < m.out; ++o) {
      for (std::int64_t r = 0; r < m.rank; ++r) {
        const double b = m.scale * double{m.b[o * m.rank + r]};
        for (std::int64_t i = 0; i < m.in; ++i) {
          change[o * m.in + i] += b * double{m.a[r * m.in + i]};
        }
      }
    }
  }
  return changes;
}

double Largest(const Matrix& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

TEST(AdapterSourceTest, TheLastColonSeparatesANumberOfAPathThatDoesNotExist) {
  TemporaryFolder folder;
  const std::string colon = (folder / "a:0.5").string();
  fs::create_directories(colon);
  const std::tuple<std::string, std::string, double> cases[] = {
      {"a", "a", 1},           {"a:0.7", "a", 0.7},
      {"a:-2", "a", -2},       {"a:b", "a:b", 1},
      {"a:0.7x", "a:0.7x", 1}, {"a:", "a:", 1},
      {":1", ":1", 1},         {"o/n@v:1e-1", "o/n@v", 0.1},
      {colon, colon, 1},       {colon + ":0.25", colon, 0.25}};
  for (const auto& [text, path, weight] : cases) {
    const AdapterSource source = ParseAdapterSource(text);
    EXPECT_EQ(source.path, path);
    EXPECT_EQ(source.weight, weight) << text;
  }
  ExpectRefused([] { ParseAdapterSource("a:inf"); }, "a:inf: expected a finite weight");
}

TEST(CombinedAdapterTest, IsTheWeightedSumOverTheUnionOfModules) {
  TemporaryFolder folder;
  AdapterConfig a = Targeting({"q_proj", "down_proj"}, 4, 12);
  a.use_rslora = true;
  AdapterConfig b = Targeting({"q_proj", "v_proj"}, 3, 8);
  b.rank_pattern = {{"layers.1.self_attn.q_proj", 5}};
  b.alpha_pattern = {{"v_proj", 7}};
  WriteRandom(folder / "a", a, 1);
  WriteRandom(folder / "b", b, 2);
  const AdapterSet set = {.sources = {{folder / "a", 0.7}, {folder / "b", -0.3}}};
  const AdapterValues sum = LoadAdapterValues(set, TinyDecoder());
  const auto of_a = ChangesOf(ReadPeftValues(folder / "a", TinyDecoder()));
  const auto of_b = ChangesOf(ReadPeftValues(folder / "b", TinyDecoder()));
  const auto found = ChangesOf(sum);
  EXPECT_EQ(found.size(), 6u);
  for (const auto& [path, change] : found) {
    Matrix expected(change.size());
    double size = 0;
    for (const auto& [part, weight] : {std::pair(&of_a, 0.7), {&of_b, -0.3}}) {
      const auto at = part->find(path);
      if (at == part->end()) continue;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += weight * at->second[i];
      size += std::abs(weight) * Largest(at->second);
    }
    Matrix difference(change.size());
    for (std::size_t i = 0; i < change.size(); ++i) difference[i] = change[i] - expected[i];
    // B is rounded once: 2^-24 of each of at most nine products.
    EXPECT_LE(Largest(difference), 9 * 0x1p-24 * std::max(size, 1.0)) << path;
  }
  std::map<std::string, std::int64_t> ranks;
  for (const LoraValues& module : sum.modules) ranks[module.path] = module.rank;
  EXPECT_EQ(ranks["model.layers.0.self_attn.q_proj"], 7);
  EXPECT_EQ(ranks["model.layers.1.self_attn.q_proj"], 9);
  EXPECT_EQ(ranks["model.layers.1.self_attn.v_proj"], 3);
  EXPECT_EQ(ranks["model.layers.1.mlp.down_proj"], 4);

  // The configuration describes them, and the adapter for passes has the same values.
  const AdapterConfig config = ConfigOf(sum, TinyDecoder());
  const LoraAdapter lora = ToLoraAdapter(sum, TinyDecoder(), HostMemory());
  for (const LoraValues& module : sum.modules) {
    EXPECT_TRUE(IsTargetModule(config, module.path));
    EXPECT_EQ(RankOf(config, module.path), module.rank);
    EXPECT_EQ(ScaleOf(config, module.path), module.scale);
  }
  std::int64_t adapted = 0;
  for (const PerLinear<LoraLinear>& layer : lora.layers()) {
    layer.ForEach([&](const LoraLinear& linear) {
      if (linear.rank == 0) return;
      ++adapted;
      const auto module = std::ranges::find(sum.modules, linear.path, &LoraValues::path);
      EXPECT_TRUE(std::equal(module->b.begin(), module->b.end(), linear.b.Row<float>(0)));
      EXPECT_EQ(linear.scale, static_cast<float>(module->scale));
    });
  }
  EXPECT_EQ(adapted, 6);
}

TEST(CombinedAdapterTest, EqualScalesRoundNothingAndAWeightIsAScale) {
  TemporaryFolder folder;
  WriteRandom(folder / "a", Targeting({"q_proj"}, 4, 12), 1);
  WriteRandom(folder / "b", Targeting({"q_proj"}, 2, 6), 2);
  const auto a = ReadPeftValues(folder / "a", TinyDecoder());
  const AdapterSet both = {.sources = {{folder / "a", 0.5}, {folder / "b", 0.5}}};
  const AdapterValues sum = LoadAdapterValues(both, TinyDecoder());
  EXPECT_EQ(sum.modules[0].scale, 1.5);
  EXPECT_EQ(sum.modules[0].b[0], a.modules[0].b[0]);
  const AdapterSet half = {.sources = {{folder / "a", 0.5}}};
  const AdapterValues one = LoadAdapterValues(half, TinyDecoder());
  EXPECT_EQ(one.modules[0].scale, 1.5);
  EXPECT_EQ(one.modules[0].b, a.modules[0].b);
}

// The singular values of a matrix (rows, cols) by one-sided Jacobi rotations of its columns.
std::vector<double> SingularValues(Matrix m, std::int64_t rows, std::int64_t cols) {
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::int64_t p = 0; p < cols; ++p) {
      for (std::int64_t q = p + 1; q < cols; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (std::int64_t i = 0; i < rows; ++i) {
          const double x = m[i * cols + p], y = m[i * cols + q];
          pp += x * x, qq += y * y, pq += x * y;
        }
        if (std::abs(pq) <= 1e-16 * std::sqrt(pp * qq) || pq == 0) continue;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (std::int64_t i = 0; i < rows; ++i) {
          const double x = m[i * cols + p], y = m[i * cols + q];
          m[i * cols + p] = c * x - s * y;
          m[i * cols + q] = s * x + c * y;
        }
      }
    }
  }
  std::vector<double> values;
  for (std::int64_t c = 0; c < cols; ++c) {
    double squares = 0;
    for (std::int64_t i = 0; i < rows; ++i) squares += m[i * cols + c] * m[i * cols + c];
    values.push_back(std::sqrt(squares));
  }
  std::ranges::sort(values, std::greater());
  return values;
}

TEST(CombinedAdapterTest, TheReducedRankIsTheBestAndItsErrorIsReported) {
  TemporaryFolder folder;
  WriteRandom(folder / "a", Targeting({"q_proj", "down_proj"}, 4, 12), 1);
  WriteRandom(folder / "b", Targeting({"q_proj", "k_proj"}, 3, 5), 2);
  AdapterSet set = {.sources = {{folder / "a", 0.7}, {folder / "b", 1.3}}};
  AdapterValues values = LoadAdapterValues(set, TinyDecoder());
  const auto exact = ChangesOf(values);
  constexpr std::int64_t kRank = 3;
  const RankError error = ReduceRank(values, kRank);
  const auto reduced = ChangesOf(values);
  double all = 0, lost = 0, worst = 0;
  for (const LoraValues& module : values.modules) {
    EXPECT_EQ(module.rank, kRank);
    const std::vector<double> s = SingularValues(exact.at(module.path), module.out, module.in);
    double squares = 0, tail = 0, found = 0;
    for (std::int64_t i = 0; i < std::ssize(s); ++i) {
      squares += s[i] * s[i];
      if (i >= kRank) tail += s[i] * s[i];
    }
    for (std::size_t i = 0; i < exact.at(module.path).size(); ++i) {
      const double d = exact.at(module.path)[i] - reduced.at(module.path)[i];
      found += d * d;
    }
    // Eckart and Young: no matrix of this rank is nearer. A and B are rounded to float32.
    EXPECT_NEAR(std::sqrt(found / squares), std::sqrt(tail / squares), 1e-6) << module.path;
    all += squares, lost += tail;
    worst = std::max(worst, std::sqrt(tail / squares));
  }
  EXPECT_NEAR(error.all, std::sqrt(lost / all), 1e-10);
  EXPECT_NEAR(error.worst, worst, 1e-10);
  EXPECT_GT(error.worst, 0.1);
  EXPECT_NE(error.worst_path.find("q_proj"), std::string::npos) << error.worst_path;

  set.rank = kRank;
  const LoraAdapter lora = LoadAdapters(set, TinyDecoder(), HostMemory());
  ASSERT_EQ(lora.notes().size(), 1u);
  EXPECT_NE(lora.notes()[0].find("reduced to rank 3: the relative error"), std::string::npos);
  ExpectRefused([&] { ReduceRank(values, 0); }, "adapter_rank must be at least 1");
}

TEST(CombinedAdapterTest, ARankThatIsLargeEnoughChangesNothing) {
  TemporaryFolder folder;
  WriteRandom(folder / "a", Targeting({"q_proj"}, 4, 12), 1);
  AdapterValues values = ReadPeftValues(folder / "a", TinyDecoder());
  const std::vector<float> before = values.modules[0].b;
  const RankError error = ReduceRank(values, 4);
  EXPECT_EQ(error.all, 0);
  EXPECT_EQ(values.modules[0].b, before);
}

TEST(CombinedAdapterTest, ReportsEachPieceOfTheWorkAndCanBeEndedThere) {
  struct Stop {};
  TemporaryFolder folder;
  WriteRandom(folder / "a", Targeting({"q_proj", "down_proj"}, 4, 12), 1);
  WriteRandom(folder / "b", Targeting({"q_proj", "k_proj"}, 3, 5), 2);
  const AdapterSet set = {.sources = {{folder / "a", 0.7}, {folder / "b", 1.3}}, .rank = 2};
  const std::int64_t layers = TinyDecoder().num_hidden_layers;
  // Two files, the sum and its reduction.
  std::vector<std::pair<std::int64_t, std::int64_t>> expected;
  for (const std::int64_t total : {layers, layers, 3 * layers, 3 * layers}) {
    for (std::int64_t done = 1; done <= total; ++done) expected.emplace_back(done, total);
  }
  for (std::size_t last = 1; last <= expected.size() + 1; ++last) {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    const auto load = [&] {
      LoadAdapterValues(set, TinyDecoder(), [&](std::int64_t done, std::int64_t total) {
        found.emplace_back(done, total);
        if (found.size() == last) throw Stop();
      });
    };
    if (last > expected.size()) {
      load();
      EXPECT_EQ(found, expected);
    } else {
      EXPECT_THROW(load(), Stop) << last;
    }
  }
}

TEST(CombinedAdapterTest, RefusesWhatHasNoSumByName) {
  TemporaryFolder folder;
  WriteRandom(folder / "plain", Targeting({"q_proj"}, 2, 4), 1);
  const auto load = [&](const std::string& other, double weight, std::int64_t rank = 0) {
    AdapterSet set = {.sources = {{folder / "plain", 1}, {folder / other, weight}}, .rank = rank};
    LoadAdapters(set, TinyDecoder(), HostMemory());
  };
  const auto alone = [&](const std::string& name, double weight, std::int64_t rank) {
    LoadAdapters({.sources = {{folder / name, weight}}, .rank = rank}, TinyDecoder(), HostMemory());
  };
  AdapterConfig dora = Targeting({"q_proj"}, 2, 4);
  dora.use_dora = true;
  LoraAdapter with_dora = LoraAdapter::Create(dora, TinyDecoder(), HostMemory(), 3);
  with_dora.Save(folder / "dora");
  ExpectRefused([&] { load("dora", 1); }, "dora: is a DoRA adapter, which cannot be combined");
  ExpectRefused([&] { alone("dora", 0.5, 0); }, "dora: is a DoRA adapter, which cannot be given");
  ExpectRefused([&] { alone("dora", 1, 1); }, "dora: is a DoRA adapter, which cannot be reduced");
  alone("dora", 1, 0);

  AdapterConfig whole = Targeting({"q_proj"}, 2, 4);
  whole.modules_to_save = {"lm_head"};
  LoraAdapter::Create(whole, TinyDecoder(), HostMemory(), 3).Save(folder / "whole");
  ExpectRefused([&] { load("whole", 1); },
                "whole: the adapter has the whole of 'lm_head.weight' (modules_to_save");
  ExpectRefused([&] { alone("whole", 1, 1); }, "merge it first (qlora export MODEL NEW --adapter");
  alone("whole", 1, 0);
}

TEST(CombinedAdapterTest, NamesTheAdapterOfAnotherModel) {
  TemporaryFolder folder;
  WriteRandom(folder / "plain", Targeting({"q_proj"}, 2, 4), 1);
  const fs::path other = SourceDir() / "tests" / "golden" / "qwen3-tiny" / "adapter";
  const AdapterSet set = {.sources = {{folder / "plain", 1}, {other, 1}}};
  ExpectRefused([&] { LoadAdapters(set, TinyDecoder(), HostMemory()); }, other.string());
  // Where the names of the modules tell, too.
  WriteRandom(folder / "renamed", Targeting({"q_proj"}, 2, 4), 1);
  const DecoderConfig phi = LoadDecoderConfig(SourceDir() / "tests" / "golden" / "phi3-tiny");
  ExpectRefused(
      [&] {
        LoadAdapters({.sources = {{folder / "renamed", 0.5}}}, phi, HostMemory());
      },
      (folder / "renamed").string() +
          "/adapter_model.safetensors: the LoRA of 'model.layers.0.self_attn.q_proj' has 64 "
          "outputs");
}

TEST(CombinedAdapterTest, AKeyThatIsNotKnownIsNamedInANote) {
  TemporaryFolder folder;
  WriteRandom(folder / "a", Targeting({"q_proj"}, 2, 4), 1);
  Json config = ReadJsonFile(folder / "a" / kAdapterConfig);
  config["use_something"] = true;
  WriteTextFile(folder / "a" / kAdapterConfig, config.dump());
  for (const double weight : {1.0, 0.5}) {
    const LoraAdapter lora =
        LoadAdapters({.sources = {{folder / "a", weight}}}, TinyDecoder(), HostMemory());
    ASSERT_EQ(lora.notes().size(), 1u);
    EXPECT_NE(lora.notes()[0].find("not known here have no effect: use_something"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace qlora
