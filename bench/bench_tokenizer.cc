#include "bench/bench_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"

namespace qlora::bench {
namespace {

// Encoding some megabytes takes long enough that few are needed.
constexpr int kRepetitions = 5;

// Lines with their line breaks, several of them together: texts of about this size.
constexpr std::size_t kTextBytes = 4096;

std::vector<std::string_view> Cut(std::string_view text) {
  std::vector<std::string_view> texts;
  while (!text.empty()) {
    // At line breaks: a cut within a word would give other tokens.
    std::size_t end = text.find('\n', std::min(kTextBytes, text.size()));
    end = end == std::string_view::npos ? text.size() : end + 1;
    texts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return texts;
}

}  // namespace

void TokenizerBenchOptions::Declare(OptionTable& table) {
  table.AddPath("model_name_or_path", &model_name_or_path,
                "tokenizer: folder with tokenizer.json, or org/name in the local cache",
                {"base_model", "model"});
  table.Add("text_file", &text_file, "tokenizer: text to encode, some megabytes of it");
}

std::vector<BenchRow> BenchTokenizer(Context& context, Clock clock,
                                     const std::filesystem::path& tokenizer_dir,
                                     const std::string& text_file) {
  const Tokenizer tokenizer = Tokenizer::Load(tokenizer_dir);
  const std::string text = ReadTextFile(text_file);
  // Zero bytes in zero seconds have no rate.
  if (text.empty()) ThrowInvalidInput("{}: the text is empty", text_file);
  const std::vector<std::string_view> texts = Cut(text);
  // One thread too: the figure by which tokenizers are usually compared.
  Context one(1);
  std::vector<std::vector<std::int32_t>> ids;
  const std::vector<std::function<void()>> runs = {
      [&] { ids = tokenizer.EncodeBatch(context, texts, /*add_special_tokens=*/false); },
      [&] { tokenizer.EncodeBatch(one, texts, /*add_special_tokens=*/false); },
      [&] {
        // The ids of the first function, which has run in the warm-up round.
        for (const auto& some : ids) tokenizer.Decode(some);
      },
  };
  const std::vector<double> seconds = BestSeconds(clock, kRepetitions, runs);
  const std::string shape = fmt::format("vocabulary {}", tokenizer.vocab_size());
  const auto row = [&](const char* op, int threads, double best) {
    BenchRow result;
    result.op = op;
    result.shape = shape;
    result.dtype = "utf-8";
    result.threads = threads;
    result.seconds = best;
    // Bytes of text, not tokens: vocabularies differ, texts do not.
    result.value = static_cast<double>(text.size()) / best / 1e6;
    result.unit = "MB/s";
    return result;
  };
  return {row("encode", context.threads(), seconds[0]), row("encode", 1, seconds[1]),
          row("decode", 1, seconds[2])};
}

}  // namespace qlora::bench
