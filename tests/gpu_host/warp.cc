// Shuffles, ballots and the matrix unit, by the maps of the PTX instruction set.
#include "gpu_host/warp.h"

#include <bit>

#include "gpu_host/asan.h"
#include "gpu_host/shadow.h"

namespace gpu_host {
namespace {

using Lanes = std::array<Exchange, 32>;

float Low(std::uint32_t v) { return std::bit_cast<float>(v << 16); }
float High(std::uint32_t v) { return std::bit_cast<float>(v & 0xffff0000u); }

// mma.m16n8k16 with bfloat16; the maps are at MmaBf16 in gpu.h. Most of the time of a test with a
// matrix product goes into the loop, so it is not instrumented and its columns are innermost.
#if !defined(__clang__)
__attribute__((optimize("O3")))
#endif
__attribute__((no_sanitize("address", "undefined"))) void
Mma(Lanes& lanes) {
  float a[16][16], b[16][8], c[16][8] = {};
  for (int l = 0; l < 32; ++l) {
    const auto& in = lanes[l].in.mma;
    const int g = l / 4, t = l % 4;
    for (int r = 0; r < 4; ++r) {
      a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1)] = Low(in.a[r]);
      a[g + 8 * (r & 1)][2 * t + 8 * (r >> 1) + 1] = High(in.a[r]);
    }
    for (int r = 0; r < 2; ++r) {
      b[2 * t + 8 * r][g] = Low(in.b[r]);
      b[2 * t + 8 * r + 1][g] = High(in.b[r]);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4;
    float d[4];
    for (int r = 0; r < 4; ++r) {
      d[r] = lanes[l].in.mma.d[r] + c[g + 8 * (r >> 1)][2 * t + (r & 1)];
    }
    std::memcpy(lanes[l].out, d, sizeof(d));
  }
}

// Lane l gives the address of row l % 8 of matrix l / 8.
void LdMatrix(Lanes& lanes, bool transposed) {
  std::uint16_t matrix[4][8][8];
  for (int l = 0; l < 32; ++l) {
    const void* row = lanes[l].in.row;
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
      Fail("ldmatrix: a row that is not aligned to 16", lanes[l].at);
    }
    ShadowRead(row, 16);
    if (IsPoisoned(row, 16)) Fail("ldmatrix: a row that is not there", lanes[l].at);
    std::memcpy(matrix[l / 8][l % 8], row, 16);
  }
  for (int l = 0; l < 32; ++l) {
    const int i = l / 4, j = 2 * (l % 4);
    std::uint32_t r[4];
    for (int m = 0; m < 4; ++m) {
      const auto& x = matrix[m];
      r[m] = transposed ? x[j][i] | std::uint32_t{x[j + 1][i]} << 16
                        : x[i][j] | std::uint32_t{x[i][j + 1]} << 16;
    }
    std::memcpy(lanes[l].out, r, sizeof(r));
  }
}

void Ballot(Lanes& lanes, std::uint32_t mask) {
  std::uint64_t votes = 0;
  for (int l = 0; l < 32; ++l) {
    if ((mask >> l & 1) != 0 && lanes[l].in.word != 0) votes |= std::uint64_t{1} << l;
  }
  for (Exchange& lane : lanes) lane.out[0] = votes;
}

// The lane that lane l reads: its own where the other is outside of its segment of `width` lanes.
int Source(const Exchange& lane, int l) {
  const int first = l & ~(lane.width - 1);
  const int last = first + lane.width - 1;
  switch (lane.kind) {
    case Collective::kShuffle:
      return first + (lane.lane & (lane.width - 1));
    case Collective::kXor:
      return (l ^ lane.lane) <= last ? l ^ lane.lane : l;
    case Collective::kUp:
      return l - lane.lane >= first ? l - lane.lane : l;
    case Collective::kDown:
      return l + lane.lane <= last ? l + lane.lane : l;
    default:
      return l;
  }
}

void ShuffleLanes(Lanes& lanes, std::uint32_t mask) {
  for (int l = 0; l < 32; ++l) {
    if ((mask >> l & 1) == 0) continue;
    const int from = Source(lanes[l], l);
    if ((mask >> from & 1) == 0) {
      Fail("shuffle: reads a lane outside of the mask", lanes[l].at);
    }
    lanes[l].out[0] = lanes[from].in.word;
  }
}

}  // namespace

void Complete(Lanes& lanes, const Exchange& mine) {
  switch (mine.kind) {
    case Collective::kSync:
      return;
    case Collective::kBallot:
      return Ballot(lanes, mine.mask);
    case Collective::kMma:
      return Mma(lanes);
    case Collective::kLdMatrix:
      return LdMatrix(lanes, false);
    case Collective::kLdMatrixTrans:
      return LdMatrix(lanes, true);
    default:
      return ShuffleLanes(lanes, mine.mask);
  }
}

}  // namespace gpu_host
