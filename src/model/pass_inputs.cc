#include "model/pass_inputs.h"

#include <numeric>

#include "base/check.h"
#include "base/matrix.h"
#include "model/decoder.h"
#include "model/neftune.h"

namespace qlora {
namespace {

IndexView UploadIndices(Memory& memory, std::span<const std::int32_t> values,
                        const MatrixView& buffer) {
  memory.Upload(values.data(), buffer.data, values.size_bytes());
  return {static_cast<const std::int32_t*>(buffer.data), std::ssize(values)};
}

// Fills the gaps between `adapters` with the base.
std::vector<AdapterRows> CoverRows(const std::vector<AdapterRows>& adapters, std::int64_t rows) {
  std::vector<AdapterRows> cover;
  std::int64_t end = 0;
  for (const AdapterRows& range : adapters) {
    if (range.begin > end) cover.push_back({nullptr, end, range.begin - end});
    cover.push_back(range);
    end = range.begin + range.rows;
  }
  if (end < rows) cover.push_back({nullptr, end, rows - end});
  return cover;
}

// The ranges of head rows with equal output heads. rows: head rows in rising order.
std::vector<AdapterRows> HeadsOf(const std::vector<AdapterRows>& adapters,
                                 std::span<const std::int32_t> rows) {
  std::vector<AdapterRows> heads;
  std::size_t range = 0;
  for (std::int64_t m = 0; m < std::ssize(rows); ++m) {
    while (rows[m] >= adapters[range].begin + adapters[range].rows) ++range;
    const LoraAdapter* adapter = adapters[range].adapter;
    if (adapter != nullptr && adapter->head() == nullptr) adapter = nullptr;
    if (heads.empty() || heads.back().adapter != adapter) heads.push_back({adapter, m, 0});
    ++heads.back().rows;
  }
  return heads;
}

// positions (N) of the sequences [begin[s], begin[s + 1]). Each sequence has its table: a long
// neighbour does not change longrope for short ones.
std::vector<IndexView> UploadRopeRows(const Decoder& decoder,
                                      std::span<const std::int32_t> positions,
                                      std::span<const std::int64_t> begin,
                                      const MatrixView& buffer) {
  std::vector<IndexView> views;
  for (std::int64_t rope = 0; rope < std::ssize(decoder.config().ropes); ++rope) {
    std::vector<std::int32_t> rows;
    for (std::size_t s = 0; s + 1 < begin.size(); ++s) {
      const auto sequence = positions.subspan(begin[s], begin[s + 1] - begin[s]);
      if (sequence.empty()) continue;
      const std::int32_t first = decoder.ropes().FirstRow(rope, sequence.back() + 1);
      for (const std::int32_t position : sequence) rows.push_back(first + position);
    }
    views.push_back(UploadIndices(decoder.backend().memory(), rows, Rows(buffer, rope, 1)));
  }
  return views;
}

}  // namespace

std::vector<AdapterRows> ForAllRows(const LoraAdapter* adapter, std::int64_t rows) {
  if (adapter == nullptr) return {};
  return {{adapter, 0, rows}};
}

PassInputs PrepareInputs(const Decoder& decoder, const Batch& batch, const PassOptions& options,
                         const Activations& activations) {
  const DecoderConfig& config = decoder.config();
  Memory& memory = decoder.backend().memory();
  const InputBuffers& buffers = activations.inputs;
  CheckIndices("ids", batch.ids, config.vocab_size);

  PassInputs inputs;
  inputs.rows = batch.rows();
  inputs.adapters = CoverRows(options.adapters, inputs.rows);
  if (inputs.adapters.size() > 1 && config.moe.num_experts > 0) {
    ThrowRuntime("a pass through experts takes one adapter, found {} ranges of rows",
                 inputs.adapters.size());
  }
  for (std::size_t s = 0; s + 1 < batch.sequence_begin.size(); ++s) {
    const std::int64_t begin = batch.sequence_begin[s];
    const std::int64_t rows = batch.sequence_begin[s + 1] - begin;
    inputs.spans.push_back({begin, rows, begin, rows});
  }
  inputs.dropout = options.dropout;
  inputs.ids = UploadIndices(memory, batch.ids, buffers.ids);
  inputs.rope_rows =
      UploadRopeRows(decoder, batch.positions, batch.sequence_begin, buffers.rope_rows);

  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> targets;
  for (std::int64_t n = 0; n < inputs.rows; ++n) {
    if (batch.targets[n] == kIgnoreLabel) continue;
    rows.push_back(static_cast<std::int32_t>(n));
    targets.push_back(batch.targets[n]);
  }
  CheckIndices("targets", targets, config.vocab_size);
  inputs.head_rows = UploadIndices(memory, rows, buffers.head_rows);
  inputs.heads = HeadsOf(inputs.adapters, rows);
  inputs.targets = UploadIndices(memory, targets, buffers.targets);

  if (!options.row_scale.empty()) {
    const MatrixView scale = Columns(buffers.row_scale, 0, std::ssize(rows));
    UploadWide(memory, options.row_scale, scale);
    inputs.row_scale = scale;
  }
  if (options.dropout.enabled && options.dropout.neftune_alpha != 0) {
    UploadWide(memory, NoiseMagnitudes(batch, options.dropout.neftune_alpha, config.hidden_size),
               buffers.noise);
    inputs.noise = buffers.noise;
  }
  return inputs;
}

PassInputs PrepareNextInputs(const Decoder& decoder, std::span<const std::int32_t> ids,
                             const KvCache& cache, const LoraAdapter* adapter,
                             const Activations& activations) {
  Memory& memory = decoder.backend().memory();
  const InputBuffers& buffers = activations.inputs;
  CheckIndices("ids", ids, decoder.config().vocab_size);
  PassInputs inputs;
  inputs.rows = std::ssize(ids);
  inputs.adapters = CoverRows(ForAllRows(adapter, inputs.rows), inputs.rows);
  inputs.spans = {{0, inputs.rows, 0, cache.length + inputs.rows}};
  inputs.ids = UploadIndices(memory, ids, buffers.ids);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(cache.length));
  const std::int64_t begin[] = {0, inputs.rows};
  inputs.rope_rows = UploadRopeRows(decoder, positions, begin, buffers.rope_rows);
  const auto last = static_cast<std::int32_t>(inputs.rows - 1);
  inputs.head_rows = UploadIndices(memory, {&last, 1}, buffers.head_rows);
  inputs.heads = HeadsOf(inputs.adapters, {&last, 1});
  return inputs;
}

}  // namespace qlora
