#include "backend/cuda/attention.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/workspace.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// Kernels count rows in 32 bits, with room for a window beyond the last.
int Narrowed(const char* what, std::int64_t value) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max() / 4;
  if (value > kMost) {
    ThrowRuntime("cuda backend: attention over {} {}, expected at most {}", value, what, kMost);
  }
  return static_cast<int>(value);
}

HeadsArgs HeadsOf(const AttentionShape& shape) {
  // No window is a window that reaches beyond every key. Half of the range: `last - window` and
  // `row + window` of kernels stay within 32 bits, because rows are at most a quarter of the range.
  constexpr std::int64_t kNoWindow = std::numeric_limits<int>::max() / 2;
  HeadsArgs heads;
  heads.kv_heads = Narrowed("key/value heads", shape.kv_heads);
  heads.group = Narrowed("heads", shape.heads / shape.kv_heads);
  heads.head_dim = Narrowed("values of a head", shape.head_dim);
  heads.window = static_cast<int>(shape.window > 0 ? std::min(shape.window, kNoWindow) : kNoWindow);
  heads.scale = shape.scale;
  heads.softcap = shape.softcap;
  // Products of constants are rounded once, from float64.
  heads.scale_log2 = static_cast<float>(shape.scale * kLog2E);
  heads.softcap_log2 = static_cast<float>(shape.softcap * kLog2E);
  heads.scale_over_cap = shape.softcap > 0 ? shape.scale / shape.softcap : 0;
  return heads;
}

bool UsesMatrixUnit(const Machine& machine, const AttentionShape& shape) {
  return machine.compute() == DType::kBF16 && shape.head_dim <= kMatrixHeadDim;
}

// Spans of one launch.
class Items {
 public:
  const LaunchItems& launch() const { return launch_; }
  bool empty() const { return launch_.items == 0; }
  bool full() const { return launch_.spans == kSpansPerLaunch; }
  void Add(const AttentionSpan& span, std::int64_t tiles, std::int64_t splits) {
    // A block finds its span by the largest first_item that is not beyond its index (ItemOf).
    launch_.span[launch_.spans++] = {.q_begin = Narrowed("rows", span.q_begin),
                                     .q_rows = Narrowed("rows", span.q_rows),
                                     .kv_begin = Narrowed("keys", span.kv_begin),
                                     .kv_rows = Narrowed("keys", span.kv_rows),
                                     .first_item = launch_.items,
                                     .splits = static_cast<int>(splits)};
    launch_.items = Narrowed("tiles", launch_.items + tiles * splits);
  }

 private:
  LaunchItems launch_ = {};
};

using QueueItems = std::function<void(const LaunchItems& items)>;

// queue(items) for the spans that have tiles.
void ForTiles(std::span<const AttentionSpan> spans,
              const std::function<std::int64_t(const AttentionSpan& span)>& tiles,
              const QueueItems& queue) {
  Items items;
  for (const AttentionSpan& span : spans) {
    if (tiles(span) == 0) continue;
    items.Add(span, tiles(span), 1);
    if (!items.full()) continue;
    queue(items.launch());
    items = {};
  }
  if (!items.empty()) queue(items.launch());
}

// ---- Decoding: spans of few rows, whose keys are cut into parts.

std::int64_t RowsOf(const AttentionShape& shape, const AttentionSpan& span) {
  return span.q_rows * (shape.heads / shape.kv_heads);
}
bool IsFew(const AttentionShape& shape, const AttentionSpan& span) {
  return span.q_rows == 1 || RowsOf(shape, span) <= kFewRows;
}
// Depends on the span alone, and so do the bits of its result.
std::int64_t PartsOf(const AttentionShape& shape, const AttentionSpan& span) {
  std::int64_t keys = span.kv_rows;
  // The first query sees `window` keys, and each further query one more: parts beyond these keys
  // would have nothing to do.
  if (shape.window > 0) keys = std::min(keys, shape.window + span.q_rows - 1);
  return std::min<std::int64_t>(kMostParts, CeilDiv(keys, kPartKeys));
}
// Rows of partial results for an item.
std::int64_t PartialRows(const AttentionShape& shape) { return kFewRows * shape.kv_heads; }

void Decode(const Machine& machine, const ops::Attention& op, ForwardArgs args) {
  const MatrixView& piece = machine.pieces().attention;
  const std::int64_t row_elements = op.shape.head_dim + 1;
  // Room of a launch: | lse of all rows | o of all rows (rows, K) |, float32, K + 1 floats per row.
  const std::int64_t room = piece.cols / row_elements / PartialRows(op.shape);  // in items
  Items items;
  bool parts = false;
  const auto flush = [&] {
    if (items.empty()) return;
    if (parts) {
      const std::int64_t rows = items.launch().items * PartialRows(op.shape);
      args.partial_lse = PlaceIn(piece, 1, rows).Row<float>(0);
      args.partial_o = PlaceIn(piece, 1, rows * op.shape.head_dim, PaddedCols(rows)).Row<float>(0);
    }
    QueueForward(machine.stream, args, items.launch(), true);
    if (parts) QueueJoinParts(machine.stream, args, items.launch());
    items = {};
    parts = false;
  };
  for (const AttentionSpan& span : op.spans) {
    // A decoding step has few rows, hence few blocks: without parts most multiprocessors would idle
    // while one block walks over all keys.
    if (span.q_rows == 0 || !IsFew(op.shape, span)) continue;
    const std::int64_t tiles = CeilDiv(RowsOf(op.shape, span), kFewRows);
    const std::int64_t splits = PartsOf(op.shape, span);
    if (items.full() || items.launch().items + tiles * splits > room) flush();
    items.Add(span, tiles, splits);
    parts |= splits > 1;
  }
  flush();
}

// ---- The library.

// True for the ops that AttentionLibrary computes. A workspace without room for gradients belongs
// to generation, whose passes are few and would wait for plans of the library.
bool IsForLibrary(const Machine& machine, const AttentionShape& shape,
                  std::span<const AttentionSpan> spans,
                  std::initializer_list<ConstMatrixView> operands) {
  if (machine.compute() != DType::kBF16 || shape.softcap != 0) return false;
  if (machine.pieces().gradients.cols == 0) return false;
  for (const ConstMatrixView& m : operands) {
    // Without rows there is no memory whose address the library could receive.
    if (m.empty() || m.dtype != DType::kBF16 || !IsBlasOperand(m)) return false;
  }
  std::int64_t end = 0;
  for (const AttentionSpan& s : spans) {
    // The library is given one packed batch: offsets of sequences, the same for queries and keys.
    // Spans of a cache have more keys than queries and gaps between sequences.
    if (s.q_begin != end || s.kv_begin != end || s.q_rows != s.kv_rows) return false;
    end += s.q_rows;
  }
  const ConstMatrixView& q = *operands.begin();
  return end == q.rows;
}

}  // namespace

void AttentionForward(const Machine& machine, AttentionLibrary* library, const ops::Attention& op) {
  if (library != nullptr && IsForLibrary(machine, op.shape, op.spans, {op.q, op.k, op.v, op.o}) &&
      library->Run(machine.stream, op, machine.workspace.room())) {
    return;
  }
  const ForwardArgs args = {
      .heads = HeadsOf(op.shape), .q = op.q, .k = op.k, .v = op.v, .o = op.o, .lse = op.lse};
  if (!UsesMatrixUnit(machine, op.shape)) {
    ForTiles(
        op.spans, [&](const AttentionSpan& s) { return CeilDiv(RowsOf(op.shape, s), kFloatRows); },
        [&](const LaunchItems& items) { QueueFloatForward(machine.stream, args, items); });
    return;
  }
  Decode(machine, op, args);
  ForTiles(
      op.spans,
      [&](const AttentionSpan& s) {
        return IsFew(op.shape, s) ? 0 : CeilDiv(RowsOf(op.shape, s), kTileRows);
      },
      [&](const LaunchItems& items) { QueueForward(machine.stream, args, items, false); });
}

void AttentionBackward(const Machine& machine, AttentionLibrary* library,
                       const ops::AttentionBackward& op) {
  // Keys without queries are not nothing to do: their gradients are 0 and must be stored.
  if (op.q.rows == 0 && op.k.rows == 0) return;
  if (library != nullptr &&
      IsForLibrary(machine, op.shape, op.spans,
                   {op.q, op.k, op.v, op.o, op.d_o, op.dq, op.dk, op.dv}) &&
      library->Run(machine.stream, op, machine.workspace.room())) {
    return;
  }
  const BackwardArgs args = {
      .heads = HeadsOf(op.shape),
      .d_o = op.d_o,
      .q = op.q,
      .k = op.k,
      .v = op.v,
      .o = op.o,
      .lse = op.lse,
      .dq = op.dq,
      .dk = op.dk,
      .dv = op.dv,
      .delta = PlaceIn(machine.pieces().attention, op.q.rows, op.shape.heads)};
  const bool matrix_unit = UsesMatrixUnit(machine, op.shape);
  const std::int64_t tile = matrix_unit ? kTileRows : kFloatRows;
  // The gradient of softmax, ds = p (dp - sum_j p_j dp_j), needs a sum over all keys. With dp_j =
  // d_o . v_j the sum is d_o . o, which is known before any key is read: one pass suffices.
  QueueDelta(machine.stream, args);
  ForTiles(
      op.spans, [&](const AttentionSpan& s) { return CeilDiv(RowsOf(op.shape, s), tile); },
      [&](const LaunchItems& items) {
        (matrix_unit ? QueueQueryGradient : QueueFloatQueryGradient)(machine.stream, args, items);
      });
  ForTiles(
      op.spans, [&](const AttentionSpan& s) { return CeilDiv(s.kv_rows, tile); },
      [&](const LaunchItems& items) {
        (matrix_unit ? QueueKeyGradients : QueueFloatKeyGradients)(machine.stream, args, items);
      });
}

}  // namespace qlora::cuda
