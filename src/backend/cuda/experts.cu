// The routing of a mixture of experts.
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

// A logit and its expert. Falling order: larger logits first, of equal ones the lower expert.
struct Ranked {
  float logit;
  int expert;
};
// A total order, because no two experts have one index: equal logits are ranked as on the CPU, and
// in whichever order the lanes compare, all end with the same expert.
GPU_INLINE bool Precedes(const Ranked& a, const Ranked& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.expert < b.expert);
}

constexpr int kNoExpert = 1 << 30;

// The first of the row, in falling order, that comes after `last`. All lanes of the warp get it.
GPU_INLINE Ranked NextExpert(const ConstMatrixView& logits, std::int64_t n, const Ranked& last) {
  Ranked best = {-INFINITY, kNoExpert};
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < static_cast<int>(logits.cols);
       e += kWarp) {
    const float logit = Float(logits, n, e);
    const Ranked mine = {logit == logit ? logit : -INFINITY, e};  // NaN comes last
    if (Precedes(last, mine) && Precedes(mine, best)) best = mine;
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Ranked other = {__shfl_xor_sync(kAllLanes, best.logit, step),
                          __shfl_xor_sync(kAllLanes, best.expert, step)};
    if (Precedes(other, best)) best = other;
  }
  return best;
}

// log sum exp of the row; `largest` is its largest value.
GPU_INLINE float RowLogSumExp(const ConstMatrixView& logits, std::int64_t n, float largest) {
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < static_cast<int>(logits.cols);
       e += kWarp) {
    sum += expf(Float(logits, n, e) - largest);
  }
  return largest + logf(WarpJoin(sum, Plus()));
}

// A warp for each token.
__global__ void __launch_bounds__(kThreads) SelectExpertsKernel(ops::RouteExperts op) {
  const Team team = TeamOf(kWarp);
  if (team.row >= op.logits.rows) return;
  const auto k = static_cast<int>(op.weights.cols);
  Ranked last = {INFINITY, -1};
  float lse = 0;
  float sum = 0;
  // k passes over E logits instead of a sort: k is small, and a pass needs no memory. Each pass
  // finds the expert that comes after the expert of the pass before.
  for (int j = 0; j < k; ++j) {
    last = NextExpert(op.logits, team.row, last);
    if (j == 0) lse = RowLogSumExp(op.logits, team.row, last.logit);
    const float weight = expf(last.logit - lse);
    sum += weight;
    if (team.rank != 0) continue;
    op.routing.experts.data[team.row * k + j] = last.expert;
    Float(op.weights, team.row, j) = weight;
  }
  if (!op.normalize) return;
  __syncwarp();
  for (int j = team.rank; j < k; j += kWarp) Float(op.weights, team.row, j) /= sum;
}

// A block for each expert, and one more for begin(E). It counts the pairs of lower experts, and
// then gives the slots from there on to its own pairs in their order.
__global__ void __launch_bounds__(kThreads) FillSlotsKernel(RoutingView routing, int per_token) {
  GPU_SHARED(int, in_warp, [kThreads / kWarp]);
  const auto expert = static_cast<int>(blockIdx.x);
  const auto pairs = static_cast<int>(routing.experts.size);
  const int tid = static_cast<int>(threadIdx.x);
  int lower = 0;
  for (int pair = tid; pair < pairs; pair += kThreads) lower += routing.experts.data[pair] < expert;
  int next = BlockJoin<kThreads>(lower, Plus());
  if (tid == 0) routing.begin.data[expert] = next;
  if (expert + 1 == routing.begin.size) return;
  for (int pair0 = 0; pair0 < pairs; pair0 += kThreads) {
    const int pair = pair0 + tid;
    const bool mine = pair < pairs && routing.experts.data[pair] == expert;
    // slot = next + own pairs of earlier warps + own pairs of earlier lanes of this warp:
    //   votes   0 1 1 0 1 ...        lane 4: popc(votes & 0b01111) = 2
    // Slots in the order of pairs, which atomics would not give: sums over slots keep their order.
    const unsigned votes = __ballot_sync(kAllLanes, mine);
    if (tid % kWarp == 0) in_warp[tid / kWarp] = __popc(votes);
    __syncthreads();
    int slot = next + __popc(votes & ((1u << tid % kWarp) - 1));
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < tid / kWarp) slot += in_warp[w];
      next += in_warp[w];
    }
    if (mine) {
      routing.pairs.data[slot] = pair;
      routing.tokens.data[slot] = pair / per_token;
      routing.slots.data[pair] = slot;
    }
    __syncthreads();  // before in_warp is written again
  }
}

// A warp for each token, a lane for each of its logits.
__global__ void __launch_bounds__(kThreads) RouteBackwardKernel(ops::RouteExpertsBackward op) {
  const Team team = TeamOf(kWarp);
  if (team.row >= op.logits_inout.rows) return;
  const ConstMatrixView logits = {op.logits_inout.data, op.logits_inout.dtype, op.logits_inout.rows,
                                  op.logits_inout.cols, op.logits_inout.stride};
  const auto k = static_cast<int>(op.weights.cols);
  const std::int32_t* experts = op.experts.data + team.row * k;
  // With p = softmax(x) and the weights w of the chosen experts:
  //   normalized       w = p / sum of chosen p    dx_e = w_e (d_e - mean) if chosen, else 0
  //   not normalized   w = p                      dx_e = p_e ([chosen] d_e - mean)
  // where mean = sum over chosen of w d.
  float mean = 0;
  for (int j = 0; j < k; ++j) {
    mean += Float(op.weights, team.row, j) * Float(op.d_weights, team.row, j);
  }
  const float largest = NextExpert(logits, team.row, {INFINITY, -1}).logit;
  const float lse = RowLogSumExp(logits, team.row, largest);
  // Each lane has read the logits that it now writes, and no others.
  for (int e = team.rank; e < static_cast<int>(logits.cols); e += kWarp) {
    float& x = Float(op.logits_inout, team.row, e);
    float gradient = op.normalize ? 0.0f : -expf(x - lse) * mean;
    for (int j = 0; j < k; ++j) {
      if (experts[j] != e) continue;
      const float d = Float(op.d_weights, team.row, j);
      gradient += Float(op.weights, team.row, j) * (op.normalize ? d - mean : d);
    }
    x = gradient;
  }
}

}  // namespace

void Queue(Stream stream, const ops::RouteExperts& op) {
  Launch(op.kName, SelectExpertsKernel, TeamBlocks(op.logits.rows, kWarp), kThreads, 0, stream, op);
  Launch("FillSlots", FillSlotsKernel, static_cast<unsigned>(op.routing.begin.size), kThreads, 0,
         stream, op.routing, static_cast<int>(op.weights.cols));
}
void Queue(Stream stream, const ops::RouteExpertsBackward& op) {
  Launch(op.kName, RouteBackwardKernel, TeamBlocks(op.logits_inout.rows, kWarp), kThreads, 0,
         stream, op);
}

}  // namespace qlora::cuda
