// The kernels of attention, and how they cut it into blocks of threads.
//
// The query heads that share a key/value head are the rows of one problem: row r of a span is query
// r / group, head r % group of the group. So a tile of keys is read once for the whole group, a
// decoding step has `group` rows, and the gradient of a key sums over heads as it does over
// queries.
//
//   bfloat16   tiles in shared memory and the matrix unit, sums in float32 (kMatrixHeadDim)
//   float32    a warp for each row, for products in float32 and for longer heads
//
// No sum depends on the other spans of a call, nor on the order in which blocks run.
#ifndef QLORA_BACKEND_CUDA_ATTENTION_KERNELS_H_
#define QLORA_BACKEND_CUDA_ATTENTION_KERNELS_H_

#include "backend/cuda/stream.h"
#include "backend/ops.h"

namespace qlora::cuda {

// Spans are arguments of a launch, so that they need no memory of the device.
inline constexpr int kSpansPerLaunch = 64;

struct SpanItems {
  int q_begin, q_rows, kv_begin, kv_rows;  // as in AttentionSpan
  int first_item;                          // blocks of the launch before this span
  int splits;                              // parts of the keys, for decoding; otherwise 1
};
// Item i of a span is tile i / splits of its rows (or keys), part i % splits of its keys.
struct LaunchItems {
  int spans = 0;
  int items = 0;
  SpanItems span[kSpansPerLaunch];
};

// AttentionShape as kernels use it. Scores are in base 2: exp(s) = 2^(s log2(e)).
struct HeadsArgs {
  int kv_heads = 0;
  int group = 0;  // query heads of a key/value head
  int head_dim = 0;
  int window = 0;            // at least 1
  float scale = 0;           // of q . k
  float softcap = 0;         // 0: none
  float scale_log2 = 0;      // scale log2(e)
  float softcap_log2 = 0;    // softcap log2(e)
  float scale_over_cap = 0;  // scale / softcap
};

struct ForwardArgs {
  HeadsArgs heads;
  ConstMatrixView q, k, v;
  MatrixView o, lse;
  // Results of the parts of the keys, contiguous: row (item, key/value head, row of the tile).
  float* partial_o = nullptr;    // (rows, head_dim)
  float* partial_lse = nullptr;  // (rows), base 2
};

struct BackwardArgs {
  HeadsArgs heads;
  ConstMatrixView d_o, q, k, v, o, lse;
  MatrixView dq, dk, dv;
  MatrixView delta;  // (N, H) float32: d_o . o
};

// ---- Products in bfloat16.

inline constexpr int kMatrixHeadDim = 256;  // the largest
inline constexpr int kTileRows = 64;        // rows, and for dk and dv keys, of a block
inline constexpr int kFewRows = 16;         // rows of a block that decodes
inline constexpr int kPartKeys = 64;        // the least keys of a part
inline constexpr int kMostParts = 64;       // of the keys of a span

// Tiles of kTileRows rows, or of kFewRows with `few`, whose items then may be parts.
void QueueForward(Stream stream, const ForwardArgs& args, const LaunchItems& items, bool few);
// Joins the parts. The same items as of QueueForward; spans of one part have been stored already.
void QueueJoinParts(Stream stream, const ForwardArgs& args, const LaunchItems& items);
// Tiles of kTileRows rows.
void QueueQueryGradient(Stream stream, const BackwardArgs& args, const LaunchItems& items);
// Tiles of kTileRows keys.
void QueueKeyGradients(Stream stream, const BackwardArgs& args, const LaunchItems& items);

// delta of all rows, for both kinds of products.
void QueueDelta(Stream stream, const BackwardArgs& args);

// ---- Products in float32.

inline constexpr int kFloatRows = 4;  // rows or keys of a block

void QueueFloatForward(Stream stream, const ForwardArgs& args, const LaunchItems& items);
void QueueFloatQueryGradient(Stream stream, const BackwardArgs& args, const LaunchItems& items);
void QueueFloatKeyGradients(Stream stream, const BackwardArgs& args, const LaunchItems& items);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_KERNELS_H_
