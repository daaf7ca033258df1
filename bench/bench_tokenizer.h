// `qlora-bench tokenizer`: text to token ids and back, in bytes of text per second.
#ifndef QLORA_BENCH_BENCH_TOKENIZER_H_
#define QLORA_BENCH_BENCH_TOKENIZER_H_

#include <filesystem>
#include <string>
#include <vector>

#include "bench/bench_row.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora::bench {

struct TokenizerBenchOptions {
  std::string model_name_or_path;  // a folder with tokenizer.json
  std::string text_file;           // the text that is encoded, once a repetition

  void Declare(OptionTable& table);
};

// Rows: encoding the text line by line on all threads and on one, and decoding the ids on one. The
// shape is the size of the vocabulary. No limit of the machine applies: words that were
// seen before come from a table, so that the text decides. Errors: InvalidInput.
std::vector<BenchRow> BenchTokenizer(Context& context, Clock clock,
                                     const std::filesystem::path& tokenizer_dir,
                                     const std::string& text_file);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_TOKENIZER_H_
