// The causal depthwise convolution and its gradient. Weights are (C, K), but vectors run over
// channels, so a task turns the weights of a tile of channels around first:
//
//             channels c ... c + tile
//   tap 0     w(c, 0)  w(c + 1, 0) ...
//   tap 1     w(c, 1)  w(c + 1, 1) ...
//
// and y(t) = act(the sum over taps i of w(c, i) x(t - K + 1 + i)), a vector of channels at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/causal_conv.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <cstring>

#include "backend/cpu/activation-inl.h"
#include "backend/cpu/causal_conv.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Floats of a tile of weights: 1024 channels of 4 taps, half of a first-level cache.
constexpr std::int64_t kTileFloats = 4096;
static_assert(kTileFloats / kMostTaps % kLanes == 0);

// The weights of a tile of channels, tap by tap.
class Taps {
 public:
  Taps(const ConstMatrixView& weight, std::int64_t channel, std::int64_t channels)
      : count_(weight.cols), stride_(channels) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const float* row = weight.Row<float>(channel + c);
      for (std::int64_t i = 0; i < count_; ++i) values_[i * stride_ + c] = row[i];
    }
  }
  // Channels of a tile, at most.
  static std::int64_t Room(std::int64_t taps) { return kTileFloats / taps / kLanes * kLanes; }

  const float* At(std::int64_t tap) const { return values_ + tap * stride_; }
  std::int64_t count() const { return count_; }

 private:
  std::int64_t count_;
  std::int64_t stride_;
  HWY_ALIGN float values_[kTileFloats];
};

// The rows of x that a span reads: its own and, before them, those of its window or none.
template <typename Op>
struct Inputs {
  const Op& op;
  const SequenceSpan& span;
  ConstMatrixView window;  // (states * (K - 1), C), or empty

  // Row t, counted from the start of the span; null before a span without a window.
  const void* Row(std::int64_t t) const {
    if (t >= 0) return RowOf(op.x, span.begin + t);
    const std::int64_t kept = op.weight.cols - 1;
    return window.empty() ? nullptr : RowOf(window, (span.state + 1) * kept + t);
  }
};

// body(d, c, i, h) with the sums h of row t, for the channels of a tile from `channel` on.
template <typename Op, typename Body>
HWY_INLINE void Convolve(const Inputs<Op>& in, const Taps& taps, std::int64_t t,
                         std::int64_t channel, std::int64_t channels, const Body& body) {
  const void* rows[kMostTaps];
  std::int64_t first = 0;  // taps before it meet nothing
  for (std::int64_t i = 0; i < taps.count(); ++i) {
    rows[i] = in.Row(t - taps.count() + 1 + i);
    if (rows[i] == nullptr) first = i + 1;
  }
  const float* bias = in.op.bias.empty() ? nullptr : in.op.bias.template Row<float>(0) + channel;
  const DType dtype = in.op.x.dtype;
  ForEachVector(channels, [&](auto d, std::int64_t c) HWY_ATTR {
    auto h = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + c);
    for (std::int64_t i = first; i < taps.count(); ++i) {
      h = hn::MulAdd(hn::LoadU(d, taps.At(i) + c), LoadAs(d, rows[i], dtype, channel + c), h);
    }
    body(d, c, h);
  });
}

// fn(taps, channel, channels) for tiles of the channels.
template <typename Fn>
void ForEachTileOfChannels(const ConstMatrixView& weight, const Fn& fn) {
  const std::int64_t room = Taps::Room(weight.cols);
  for (std::int64_t channel = 0; channel < weight.rows; channel += room) {
    const std::int64_t channels = std::min(room, weight.rows - channel);
    fn(Taps(weight, channel, channels), channel, channels);
  }
}

}  // namespace

void Conv(const ops::CausalConv& op, const SequenceSpan& span, Range rows) {
  const Inputs<ops::CausalConv> in{op, span, op.window_inout};
  ForEachTileOfChannels(
      op.weight, [&](const Taps& taps, std::int64_t channel, std::int64_t channels) HWY_ATTR {
        for (std::int64_t t = rows.begin; t < rows.end; ++t) {
          const Row y(op.y, span.begin + t);
          Convolve(in, taps, t, channel, channels, [&](auto d, std::int64_t c, auto h) HWY_ATTR {
            y.Store(d, Activate(d, op.activation, h).value, channel + c);
          });
        }
      });
}

// dx(t) needs dh(t) ... dh(t + K - 1), of which one is new: the last K are kept in a ring.
void ConvBackward(const ops::CausalConvBackward& op, const SequenceSpan& span, Range rows) {
  const Inputs<ops::CausalConvBackward> in{op, span, {}};
  ForEachTileOfChannels(op.weight, [&](const Taps& taps, std::int64_t channel,
                                       std::int64_t channels) HWY_ATTR {
    const std::int64_t K = taps.count();
    HWY_ALIGN float ring[kTileFloats];
    std::int64_t next = rows.begin;
    for (std::int64_t t = rows.begin; t < rows.end; ++t) {
      const std::int64_t end = std::min(t + K, span.rows);
      for (; next < end; ++next) {
        const ConstRow dy(op.dy, span.begin + next);
        float* dh = ring + next % K * channels;
        Convolve(in, taps, next, channel, channels, [&](auto d, std::int64_t c, auto h) HWY_ATTR {
          const auto slope = Activate(d, op.activation, h).slope;
          hn::StoreU(hn::Mul(dy.Load(d, channel + c), slope), d, dh + c);
        });
      }
      const Row dx(op.dx, span.begin + t);
      ForEachVector(channels, [&](auto d, std::int64_t c) HWY_ATTR {
        auto sum = hn::Zero(d);
        for (std::int64_t s = t; s < end; ++s) {
          const float* dh = ring + s % K * channels;
          sum = hn::MulAdd(hn::LoadU(d, taps.At(t - s + K - 1) + c), hn::LoadU(d, dh + c), sum);
        }
        dx.Store(d, sum, channel + c);
      });
    }
  });
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Conv);
void CausalConvRows(const ops::CausalConv& op, const SequenceSpan& span, Range rows) {
  HWY_DYNAMIC_DISPATCH(Conv)(op, span, rows);
}

void ShiftWindow(const ops::CausalConv& op, const SequenceSpan& span) {
  const std::int64_t kept = op.weight.cols - 1;
  const std::size_t bytes = BytesOf(op.x.dtype, op.x.cols);
  const auto row = [](const ConstMatrixView& m, std::int64_t n) {
    return static_cast<const std::byte*>(m.data) + BytesOf(m.dtype, n * m.stride);
  };
  const std::int64_t first = span.state * kept;
  for (std::int64_t j = 0; j < kept; ++j) {
    const std::int64_t t = span.rows - kept + j;
    const std::byte* from =
        t >= 0 ? row(op.x, span.begin + t) : row(op.window_inout, first + kept + t);
    std::memcpy(const_cast<std::byte*>(row(op.window_inout, first + j)), from, bytes);
  }
}

HWY_EXPORT(ConvBackward);
void CausalConvBackwardRows(const ops::CausalConvBackward& op, const SequenceSpan& span,
                            Range rows) {
  HWY_DYNAMIC_DISPATCH(ConvBackward)(op, span, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
