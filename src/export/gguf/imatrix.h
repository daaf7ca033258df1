// Importance matrices: how much each column of each weight matters to a rounding, as the mean
// square of what it is multiplied with over a text. llama.cpp's tools exchange them in two layouts.
//
// GGUF: general.type "imatrix", imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size; of each
// weight two F32 tensors, NAME.in_sum2 (matrices, columns), sums of squares, and NAME.counts
// (matrices, 1), the tokens of each sum.
// .dat, the older one: i32 entries; each i32 length, name, i32 calls, i32 values, f32 values, which
// are means times calls; then, where they are there, i32 chunks, i32 length, name of the text.
#ifndef QLORA_EXPORT_GGUF_IMATRIX_H_
#define QLORA_EXPORT_GGUF_IMATRIX_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/file.h"
#include "config/config.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {

struct ImportanceMatrix {
  struct Entry {
    std::vector<float> mean_squares;  // (matrices, columns); 1 where a matrix saw no token
    std::vector<float> counts;        // tokens of each matrix; 1 where the file does not say
    bool operator==(const Entry&) const = default;
  };
  std::map<std::string, Entry> entries;  // by llama.cpp's name: "blk.0.attn_q.weight"
  std::string dataset;                   // the name of the text, without its folder
  std::int64_t chunks = 0;               // of the text
  std::int64_t chunk_size = 512;         // tokens

  // The mean squares of a tensor; nullptr where there are none, or nothing but zeros, which tell no
  // column from another.
  const std::vector<float>* Find(const std::string& name) const;
};

// Tells importance matrices of both layouts from texts.
bool IsImatrixFile(const std::filesystem::path& path);

// Errors: InvalidInput for damaged files, and for values that are negative or not finite.
ImportanceMatrix ReadImatrix(const std::filesystem::path& path);

// Writes the layout of GGUF.
void WriteImatrix(const ImportanceMatrix& matrix, const std::filesystem::path& path, OpenMode mode);

// Makes one from a text or data of the trainer (Calibrate), without the output head, as llama.cpp
// does. Experts share the statistics of their layer. weights: of the model, for the names.
ImportanceMatrix CollectImatrix(Context& context, Backend& backend,
                                const std::filesystem::path& model_dir, const DecoderConfig& config,
                                const DecoderWeights& weights, const std::string& data,
                                std::int64_t max_tokens, const ProgressFn& progress);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_IMATRIX_H_
