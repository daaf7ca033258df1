#include "pass/pass_inputs.h"

#include <algorithm>

#include "base/check.h"
#include "base/matrix.h"
#include "pass/decoder.h"
#include "pass/neftune.h"

namespace qlora {
namespace {

// The indices of a pass, collected on the host row by row and uploaded at once: a copy of few
// values takes a device as long as a copy of many.
class Indices {
 public:
  // place: InputBuffers::indices.
  explicit Indices(const MatrixView& place) : place_(place) {}

  // The place of these values, at most N, in the memory of the backend.
  IndexView Add(std::span<const std::int32_t> values) {
    const MatrixView row = Rows(place_, std::ssize(host_) / place_.cols, 1);
    host_.insert(host_.end(), values.begin(), values.end());
    host_.resize(host_.size() + static_cast<std::size_t>(place_.cols - std::ssize(values)));
    return {static_cast<const std::int32_t*>(row.data), std::ssize(values)};
  }
  void Upload(Memory& memory) const {
    memory.Upload(host_.data(), place_.data, host_.size() * sizeof(std::int32_t));
  }

 private:
  MatrixView place_;
  std::vector<std::int32_t> host_;
};

// The rows of the tables of embeddings.
void AddIds(const Decoder& decoder, std::span<const std::int32_t> ids, Indices& indices,
            PassInputs& inputs) {
  inputs.ids = indices.Add(ids);
  if (decoder.config().per_layer_size == 0) return;
  CheckIndices("ids", ids, decoder.config().per_layer_vocab);
  inputs.per_layer_ids = indices.Add(ids);
}

// Fills the gaps between `adapters` with the base. Neighbours with the same adapter become one.
std::vector<AdapterRows> CoverRows(const std::vector<AdapterRows>& adapters, std::int64_t rows) {
  std::vector<AdapterRows> cover;
  const auto add = [&](const LoraAdapter* adapter, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    if (!cover.empty() && cover.back().adapter == adapter) {
      cover.back().rows += count;
    } else {
      cover.push_back({adapter, begin, count});
    }
  };
  std::int64_t end = 0;
  for (const AdapterRows& range : adapters) {
    if (range.begin < end || range.rows < 0 || range.begin + range.rows > rows) {
      ThrowRuntime("adapters: expected ranges in the order of {} rows, found {} rows from {} on",
                   rows, range.rows, range.begin);
    }
    add(nullptr, end, range.begin - end);
    add(range.adapter, range.begin, range.rows);
    end = range.begin + range.rows;
  }
  add(nullptr, end, rows - end);
  return cover;
}

// The activations must be laid out for exactly these rows: matrices of other sizes would not match.
void CheckLayout(std::int64_t rows, const InputBuffers& buffers) {
  if (rows >= 1 && rows == buffers.indices.cols) return;
  ThrowRuntime("a pass over {} rows: the activations are laid out for {}", rows,
               buffers.indices.cols);
}

void CheckSlot(const SlotRows& part, const StatePool& pool) {
  const std::int64_t end = part.first + std::ssize(part.ids);
  if (part.slot >= 0 && part.slot < pool.slots && part.first >= 0 && end <= pool.capacity) return;
  ThrowRuntime("a pool of {} slots of {} positions has no room for slot {} up to position {}",
               pool.slots, pool.capacity, part.slot, end);
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

// positions (N) of the sequences [begin[s], begin[s + 1]), which have lengths[s] tokens. Each
// sequence chooses its table: a long neighbour does not change longrope for short ones.
std::vector<IndexView> AddRopeRows(const Decoder& decoder, std::span<const std::int32_t> positions,
                                   std::span<const std::int64_t> begin,
                                   std::span<const std::int64_t> lengths, Indices& indices) {
  std::vector<IndexView> views;
  for (std::int64_t rope = 0; rope < std::ssize(decoder.config().ropes); ++rope) {
    std::vector<std::int32_t> rows;
    for (std::size_t s = 0; s + 1 < begin.size(); ++s) {
      // Row of position 0: in the long table for a long sequence of longrope, otherwise 0.
      const std::int32_t first = decoder.ropes().FirstRow(rope, lengths[s]);
      for (std::int64_t n = begin[s]; n < begin[s + 1]; ++n) rows.push_back(first + positions[n]);
    }
    views.push_back(indices.Add(rows));
  }
  return views;
}

// Every sequence attends to its prefix and itself. Returns the lengths of all sequences, a prefix
// as long as the longest sequence that goes on from it.
std::vector<std::int64_t> AddSequences(const Batch& batch, PassInputs& inputs) {
  std::vector<std::int64_t> lengths;
  std::int64_t first = 0;  // unfolded row
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const std::int64_t begin = batch.sequence_begin[s];
    const std::int64_t rows = batch.sequence_begin[s + 1] - begin;
    const std::int64_t all = batch.prefix_rows(s) + rows;
    inputs.spans.push_back({begin, rows, first, all});
    inputs.parts.push_back({first, all});
    first += all;
    lengths.push_back(all);
    if (batch.prefix_rows(s) == 0) continue;
    std::int64_t& shared = lengths[batch.prefix[s]];
    shared = std::max(shared, all);
  }
  return lengths;
}

// The rows of sequences with prefixes, each written whole.
void Unfold(Memory& memory, const Batch& batch, const InputBuffers& buffers, PassInputs& inputs) {
  const std::int64_t count = batch.unfolded_rows();
  if (buffers.unfolded.cols != count) {
    ThrowRuntime("a pass over {} unfolded rows: the activations are laid out for {}", count,
                 buffers.unfolded.cols);
  }
  std::vector<std::int32_t> unfolded;
  std::vector<std::int32_t> folded(batch.rows());
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const auto add = [&](std::int64_t sequence) {
      for (std::int64_t n = batch.sequence_begin[sequence]; n < batch.sequence_begin[sequence + 1];
           ++n) {
        if (sequence == s) folded[n] = static_cast<std::int32_t>(unfolded.size());
        unfolded.push_back(static_cast<std::int32_t>(n));
      }
    };
    if (batch.prefix_rows(s) > 0) add(batch.prefix[s]);
    add(s);
  }
  const auto upload = [&](const std::vector<std::int32_t>& values, std::int64_t row) {
    const MatrixView place = Rows(buffers.unfolded, row, 1);
    memory.Upload(values.data(), place.data, values.size() * sizeof(std::int32_t));
    return IndexView{static_cast<const std::int32_t*>(place.data), std::ssize(values)};
  };
  inputs.unfolded = upload(unfolded, 0);
  inputs.folded = upload(folded, 1);
}

}  // namespace

void CheckTrained(const PassInputs& inputs, const LoraAdapter& trained) {
  if (inputs.adapters.size() == 1 && inputs.adapters[0].adapter == &trained) return;
  ThrowRuntime("gradients: expected one adapter for all rows, the trained one; found {} ranges",
               inputs.adapters.size());
}

std::vector<AdapterRows> ForAllRows(const LoraAdapter* adapter, std::int64_t rows) {
  if (adapter == nullptr) return {};
  return {{adapter, 0, rows}};
}

PassInputs PrepareInputs(const Decoder& decoder, const Batch& batch, const PassOptions& options,
                         Activations& activations) {
  const DecoderConfig& config = decoder.config();
  Memory& memory = decoder.backend().memory();
  const InputBuffers& buffers = activations.inputs;
  CheckLayout(batch.rows(), buffers);
  CheckIndices("ids", batch.ids, config.vocab_size);

  PassInputs inputs;
  inputs.rows = batch.rows();
  inputs.adapters = CoverRows(options.adapters, inputs.rows);
  const std::vector<std::int64_t> lengths = AddSequences(batch, inputs);
  if (batch.unfolded_rows() > 0) Unfold(memory, batch, buffers, inputs);
  inputs.dropout = options.dropout;
  Indices indices(buffers.indices);
  AddIds(decoder, batch.ids, indices, inputs);
  inputs.rope_rows = AddRopeRows(decoder, batch.positions, batch.sequence_begin, lengths, indices);

  std::vector<std::int32_t> rows;
  // Only supervised rows go through the head.
  std::vector<std::int32_t> targets;
  for (std::int64_t n = 0; n < inputs.rows; ++n) {
    if (batch.targets[n] == kIgnoreLabel) continue;
    rows.push_back(static_cast<std::int32_t>(n));
    targets.push_back(batch.targets[n]);
  }
  CheckIndices("targets", targets, config.vocab_size);
  inputs.head_rows = indices.Add(rows);
  inputs.heads = HeadsOf(inputs.adapters, rows);
  inputs.targets = indices.Add(targets);
  indices.Upload(memory);

  if (!options.row_scale.empty()) {
    if (std::ssize(options.row_scale) != std::ssize(rows) || buffers.row_scale.empty()) {
      ThrowRuntime(
          "row_scale: expected one factor for each of {} supervised rows of a training "
          "pass, found {}",
          rows.size(), options.row_scale.size());
    }
    // One factor for each supervised row, not for each row of the pass.
    const MatrixView scale = Columns(buffers.row_scale, 0, std::ssize(rows));
    UploadWide(memory, options.row_scale, scale);
    inputs.row_scale = scale;
  }
  if (options.dropout.enabled && options.dropout.neftune_alpha != 0) {
    const double alpha = options.dropout.neftune_alpha * config.noise_scale / config.residual_scale;
    UploadWide(memory, NoiseMagnitudes(batch, alpha, config.hidden_size), buffers.noise);
    inputs.noise = buffers.noise;
  }
  return inputs;
}

void SetRowScale(const Decoder& decoder, std::span<const float> scale, const PassInputs& inputs,
                 Activations& activations) {
  if (std::ssize(scale) != inputs.row_scale.cols) {
    ThrowRuntime("row_scale: expected {} factors, found {}", inputs.row_scale.cols, scale.size());
  }
  UploadWide(decoder.backend().memory(), scale,
             Columns(activations.inputs.row_scale, 0, std::ssize(scale)));
}

PassInputs PrepareSlotInputs(const Decoder& decoder, std::span<const SlotRows> slots,
                             SumOrder order, const StatePool& pool, Activations& activations) {
  PassInputs inputs;
  inputs.order = order;
  std::vector<AdapterRows> adapters;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> begin = {0};
  std::vector<std::int64_t> lengths;
  std::vector<std::int32_t> head_rows;
  for (const SlotRows& part : slots) {
    const std::int64_t rows = std::ssize(part.ids);
    CheckSlot(part, pool);
    // The queries are the last positions; keys are those of the slot with the new ones behind.
    inputs.spans.push_back({inputs.rows, rows, part.slot * pool.capacity, part.first + rows});
    inputs.parts.push_back({inputs.rows, rows, part.slot});
    adapters.push_back({part.adapter, inputs.rows, rows});
    if (part.first == 0) inputs.new_slots.push_back(part.slot);
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    for (std::int64_t n = 0; n < rows; ++n) {
      positions.push_back(static_cast<std::int32_t>(part.first + n));
    }
    lengths.push_back(part.length);
    inputs.rows += rows;
    begin.push_back(inputs.rows);
    for (std::int64_t n = inputs.rows - part.logit_rows; n < inputs.rows; ++n) {
      head_rows.push_back(static_cast<std::int32_t>(n));
    }
  }
  CheckLayout(inputs.rows, activations.inputs);
  CheckIndices("ids", ids, decoder.config().vocab_size);
  inputs.adapters = CoverRows(adapters, inputs.rows);
  Indices indices(activations.inputs.indices);
  AddIds(decoder, ids, indices, inputs);
  inputs.rope_rows = AddRopeRows(decoder, positions, begin, lengths, indices);
  inputs.head_rows = indices.Add(head_rows);
  inputs.heads = HeadsOf(inputs.adapters, head_rows);
  indices.Upload(decoder.backend().memory());
  return inputs;
}

}  // namespace qlora
