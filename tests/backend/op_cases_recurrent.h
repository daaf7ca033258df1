// CausalConv, GatedDeltaRule, their gradients, and gates: ops of backends that run layers with a
// state, as op_cases.h has those of all backends.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_RECURRENT_H_
#define QLORA_TESTS_BACKEND_OP_CASES_RECURRENT_H_

#include <vector>

#include "backend/delta_rule_errors.h"
#include "backend/op_cases.h"
#include "backend/test_recurrent.h"
#include "backend/test_rows.h"
#include "base/matrix.h"

namespace qlora::testing_util {

class RecurrentTest : public OpTest {};

inline std::vector<ConvCase> ConvCases() {
  using enum Activation;
  return {
      {"one_value", 1, 1, SpansOf({1}), kIdentity},
      {"shorter_than_the_taps", 7, 4, SpansOf({1, 2, 3, 4, 1})},
      {"bias", 33, 3, SpansOf({9}), kIdentity, true},
      {"packed", 40, 4, SpansOf({5, 1, 30, 2}), kSilu, true},
      {"many_taps", 20, 9, SpansOf({5, 12})},
      {"tiles_of_channels", 2500, 4, SpansOf({3, 17})},
      {"many_tasks", 300, 4, SpansOf({1000})},
      {"out_of_order", 18, 3, {{4, 3, 1}, {0, 4, 0}}, kIdentity},
  };
}

// h is a sum of taps; the slope of an activation is at most 1.1, that of the slope at most 1/2.
TEST_P(RecurrentTest, CausalConv) {
  std::uint64_t seed = 2000;
  const double unit = UnitRoundoff(wide());
  const double g = 2 * kMathRoundings * unit;
  for (const ConvCase& c : ConvCases()) {
    for (const bool windowed : {false, true}) {
      if (windowed && c.taps == 1) continue;
      SCOPED_TRACE(c.name);
      ConvData data = MakeConvData(c, GetParam().precision, ++seed);
      ConvData expected = data.In(DType::kF64);
      // h of absolute values.
      ConvCase plain = c;
      plain.activation = Activation::kIdentity;
      ConvData sizes = expected;
      for (Matrix* m : {&sizes.x, &sizes.weight, &sizes.bias, &sizes.window}) *m = Abs(*m);
      sizes.Forward(reference(), plain, windowed);
      const double error = Gamma(c.taps + 1, unit);

      data.Forward(backend(), c, windowed);
      expected.Forward(reference(), c, windowed);
      ExpectWithin(data.y, expected.y, Scaled(1.1 * error + g, sizes.y), "y");
      if (windowed) {
        ExpectEqual(data.window, expected.window, "window");
        continue;
      }
      data.Backward(backend(), c);
      expected.Backward(reference(), c);
      // dx is a sum of |w| times the errors of dh = dy act'(h).
      sizes.dy = Bound(sizes.y, [&](std::int64_t r, std::int64_t i) {
        const double h = sizes.y(r, i);
        return std::abs(expected.dy(r, i)) * (0.5 * error * h + g * (1 + h) + 1.1 * error);
      });
      sizes.Backward(reference(), plain);
      ExpectWithin(data.dx, expected.dx, sizes.dx, "dx");
    }
  }
}

inline std::vector<DeltaCase> DeltaCases() {
  return {
      {"one_value", {1, 1, 1, 1}, SpansOf({1})},
      {"few_tokens", {3, 1, 8, 6}, SpansOf({7, 1, 2, 3, 4})},
      {"one_chunk", {2, 1, 16, 16}, SpansOf({40})},
      {"ends_of_chunks", {3, 3, 10, 7}, SpansOf({63, 64, 65, 1, 8})},
      {"grouped", {6, 2, 24, 20}, SpansOf({130, 9})},
      {"tiled", {6, 2, 24, 20, true}, SpansOf({130, 9})},
      {"narrow_values", {3, 1, 128, 5}, SpansOf({70})},
      {"narrow_keys", {2, 1, 3, 128}, SpansOf({200})},
      {"model", {4, 2, 128, 128}, SpansOf({150})},
      {"out_of_order", {3, 1, 16, 32}, {{70, 20, 1}, {0, 70, 0}}},
      {"aligned", {3, 1, 16, 8}, SpansOf({200}), true},
  };
}

TEST_P(RecurrentTest, GatedDeltaRule) {
  std::uint64_t seed = 2100;
  for (const DeltaCase& c : DeltaCases()) {
    for (const bool stateful : {false, true}) {
      SCOPED_TRACE(c.name);
      DeltaData data = MakeDeltaData(c, GetParam().precision, ++seed);
      DeltaData expected = data.In(DType::kF64);
      DeltaRuleErrors errors(c, UnitRoundoff(wide()));
      errors.Forward(expected, stateful);
      backend().Reserve(LimitsOf(c));
      data.Forward(backend(), c, stateful);
      expected.Forward(reference(), c, stateful);
      ExpectWithin(data.o, expected.o, errors.o(), "o");
      if (stateful) ExpectWithin(data.state, expected.state, errors.state(), "state");
    }
  }
}

TEST_P(RecurrentTest, GatedDeltaRuleBackward) {
  std::uint64_t seed = 2200;
  for (const DeltaCase& c : DeltaCases()) {
    SCOPED_TRACE(c.name);
    DeltaData data = MakeDeltaData(c, GetParam().precision, ++seed);
    DeltaData expected = data.In(DType::kF64);
    DeltaRuleErrors errors(c, UnitRoundoff(wide()));
    errors.Forward(expected, false);
    errors.Backward(expected);
    backend().Reserve(LimitsOf(c));
    data.Backward(backend(), c);
    expected.Backward(reference(), c);
    ExpectWithin(data.dq, expected.dq, errors.dq(), "dq");
    ExpectWithin(data.dk, expected.dk, errors.dk(), "dk");
    ExpectWithin(data.dv, expected.dv, errors.dv(), "dv");
    ExpectWithin(data.da, expected.da, errors.da(), "da");
    ExpectWithin(data.db, expected.db, errors.db(), "db");
  }
}

// Sequences packed into one call do not see each other: the bits are those of separate calls.
TEST_P(RecurrentTest, PackedSequencesEqualSeparateCalls) {
  for (const ConvCase& c : ConvCases()) {
    SCOPED_TRACE(c.name);
    ConvData packed = MakeConvData(c, GetParam().precision, 2300);
    ConvData alone = packed;
    packed.Forward(backend(), c, false);
    packed.Backward(backend(), c);
    const auto part = [](Matrix& m, const SequenceSpan& s) {
      return Rows(m.view(), s.begin, s.rows);
    };
    for (const SequenceSpan& s : c.spans) {
      const SequenceSpan whole = {0, s.rows, 0};
      backend().Run(ops::CausalConv{c.activation,
                                    {&whole, 1},
                                    part(alone.x, s),
                                    alone.weight.view(),
                                    alone.bias.view(),
                                    part(alone.y, s)});
      backend().Run(ops::CausalConvBackward{c.activation,
                                            {&whole, 1},
                                            part(alone.dy, s),
                                            part(alone.x, s),
                                            alone.weight.view(),
                                            alone.bias.view(),
                                            part(alone.dx, s)});
    }
    ExpectEqual(packed.y, alone.y, "y");
    ExpectEqual(packed.dx, alone.dx, "dx");
  }
  for (const DeltaCase& c : DeltaCases()) {
    SCOPED_TRACE(c.name);
    DeltaData packed = MakeDeltaData(c, GetParam().precision, 2301);
    DeltaData alone = packed;
    backend().Reserve(LimitsOf(c));
    packed.Forward(backend(), c, false);
    packed.Backward(backend(), c);
    const auto part = [](Matrix& m, const SequenceSpan& s) {
      return Rows(m.view(), s.begin, s.rows);
    };
    for (const SequenceSpan& s : c.spans) {
      const SequenceSpan whole = {0, s.rows, 0};
      backend().Run(ops::GatedDeltaRule{c.shape,
                                        {&whole, 1},
                                        part(alone.q, s),
                                        part(alone.k, s),
                                        part(alone.v, s),
                                        part(alone.a, s),
                                        part(alone.b, s),
                                        alone.rate.view(),
                                        alone.dt_bias.view(),
                                        part(alone.o, s)});
      backend().Run(ops::GatedDeltaRuleBackward{c.shape,
                                                {&whole, 1},
                                                part(alone.d_o, s),
                                                part(alone.q, s),
                                                part(alone.k, s),
                                                part(alone.v, s),
                                                part(alone.a, s),
                                                part(alone.b, s),
                                                alone.rate.view(),
                                                alone.dt_bias.view(),
                                                part(alone.dq, s),
                                                part(alone.dk, s),
                                                part(alone.dv, s),
                                                part(alone.da, s),
                                                part(alone.db, s)});
    }
    ExpectEqual(packed.o, alone.o, "o");
    ExpectEqual(packed.dq, alone.dq, "dq");
    ExpectEqual(packed.dk, alone.dk, "dk");
    ExpectEqual(packed.dv, alone.dv, "dv");
    ExpectEqual(packed.da, alone.da, "da");
    ExpectEqual(packed.db, alone.db, "db");
  }
}

// A sequence that is given in parts goes on from its states: token by token, in parts that end
// within chunks, and a prompt with tokens after it.
TEST_P(RecurrentTest, PartsEqualTheWhole) {
  const std::vector<std::vector<std::int64_t>> cuts = {
      std::vector<std::int64_t>(150, 1), {7, 70, 3, 70}, {64, 86}, {147, 1, 2}};
  const ConvCase conv = {"conv", 50, 4, SpansOf({150})};
  const DeltaCase delta = {"delta", {6, 2, 40, 24}, SpansOf({150})};
  ConvData conv_whole = MakeConvData(conv, GetParam().precision, 2400);
  DeltaData delta_whole = MakeDeltaData(delta, GetParam().precision, 2401);
  DeltaRuleErrors errors(delta, UnitRoundoff(wide()));
  errors.Forward(delta_whole.In(DType::kF64), true);
  backend().Reserve(LimitsOf(delta));
  for (const std::vector<std::int64_t>& lengths : cuts) {
    ConvData conv_one = conv_whole;
    DeltaData delta_one = delta_whole;
    conv_one.Forward(backend(), conv, true);
    delta_one.Forward(backend(), delta, true);
    ConvData conv_parts = conv_whole;
    DeltaData delta_parts = delta_whole;
    for (const SequenceSpan& s : SpansOf(lengths)) {
      const auto part = [&](Matrix& m) { return Rows(m.view(), s.begin, s.rows); };
      const SequenceSpan span = {0, s.rows, 0};
      backend().Run(ops::CausalConv{conv.activation,
                                    {&span, 1},
                                    part(conv_parts.x),
                                    conv_parts.weight.view(),
                                    conv_parts.bias.view(),
                                    part(conv_parts.y),
                                    conv_parts.window.view()});
      backend().Run(ops::GatedDeltaRule{delta.shape,
                                        {&span, 1},
                                        part(delta_parts.q),
                                        part(delta_parts.k),
                                        part(delta_parts.v),
                                        part(delta_parts.a),
                                        part(delta_parts.b),
                                        delta_parts.rate.view(),
                                        delta_parts.dt_bias.view(),
                                        part(delta_parts.o),
                                        delta_parts.state.view()});
    }
    ExpectEqual(conv_parts.y, conv_one.y, "y");
    ExpectEqual(conv_parts.window, conv_one.window, "window");
    // Two results that are each off by no more than the bound, and each rounded.
    const Matrix bound = Bound(errors.o(), [&](std::int64_t r, std::int64_t c) {
      return (2 + UnitRoundoff(activation())) * errors.o()(r, c) +
             UnitRoundoff(activation()) * std::abs(delta_one.o(r, c));
    });
    ExpectWithin(delta_parts.o, delta_one.o, bound, "o");
    ExpectWithin(delta_parts.state, delta_one.state, Scaled(2, errors.state()), "state");
  }
}

// In parts that begin at multiples of kRecurrentPart, a sequence has the bits of the whole; 131
// tokens end in fewer than a chunk is worth.
TEST_P(RecurrentTest, PartsOfWholeChunksHaveTheBitsOfTheWhole) {
  for (const std::int64_t length : {131, 150}) {
    const DeltaCase c = {"delta", {6, 2, 40, 24}, SpansOf({length})};
    const DeltaData data = MakeDeltaData(c, GetParam().precision, 2402);
    backend().Reserve(LimitsOf(c));
    const auto run = [&](const std::vector<std::int64_t>& lengths) {
      DeltaData parts = data;
      for (const SequenceSpan& s : SpansOf(lengths)) {
        const auto part = [&](Matrix& m) { return Rows(m.view(), s.begin, s.rows); };
        const SequenceSpan span = {0, s.rows, 0};
        backend().Run(ops::GatedDeltaRule{c.shape,
                                          {&span, 1},
                                          part(parts.q),
                                          part(parts.k),
                                          part(parts.v),
                                          part(parts.a),
                                          part(parts.b),
                                          parts.rate.view(),
                                          parts.dt_bias.view(),
                                          part(parts.o),
                                          parts.state.view()});
      }
      return parts;
    };
    const DeltaData whole = run({length});
    for (const std::int64_t first : {kRecurrentPart, 2 * kRecurrentPart}) {
      const DeltaData parts = run({first, length - first});
      ExpectEqual(parts.o, whole.o, "o");
      ExpectEqual(parts.state, whole.state, "state");
    }
  }
}

// The output gate of attention: a head of q_proj has K columns of query, then K of gate, so that
// all gates are the odd rows of a matrix of K columns. Products are gates without an activation.
TEST_P(RecurrentTest, Gates) {
  constexpr std::int64_t kTokens = 5, kHeads = 3;
  const double g = 2 * kMathRoundings * UnitRoundoff(wide());
  std::uint64_t seed = 2600;
  for (const std::int64_t K : {1, 7, 64}) {
    for (const Activation act : {Activation::kSigmoid, Activation::kIdentity}) {
      Random random(++seed);
      const std::int64_t rows = kTokens * kHeads;
      Matrix both = Map(Matrix(activation(), kTokens, kHeads * 2 * K, 0), activation(),
                        [&](Complex) { return 4 * random.Normal(); });
      Matrix d_both = Poisoned(both);
      const auto gates = [&](Matrix& m) {
        return Columns(MatrixView{m.view().data, m.dtype(), rows, 2 * K, 2 * K}, K, K);
      };
      Matrix gate = Map(Matrix(DType::kF64, rows, K), DType::kF64, [](Complex) { return 0.0; });
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < K; ++c) {
          gate.Set(r, c, both(r / kHeads, r % kHeads * 2 * K + K + c));
        }
      }
      const Matrix o = random.Normal(activation(), rows, K, 1);
      const Matrix dy = random.Normal(activation(), rows, K, 1);
      const Matrix o64 = Convert(o, DType::kF64);
      const Matrix dy64 = Convert(dy, DType::kF64);
      Matrix y = Poisoned(o), d_o = Poisoned(o);
      Matrix y64 = Poisoned(o64), d_o64 = Poisoned(o64), d_gate64 = Poisoned(o64);
      backend().Run(ops::GatedActivation{act, gates(both), o.view(), y.view()});
      backend().Run(ops::GatedActivationBackward{act, dy.view(), gates(both), o.view(),
                                                 gates(d_both), d_o.view()});
      reference().Run(ops::GatedActivation{act, gate.view(), o64.view(), y64.view()});
      reference().Run(ops::GatedActivationBackward{act, dy64.view(), gate.view(), o64.view(),
                                                   d_gate64.view(), d_o64.view()});
      ExpectWithin(y, y64, Scaled(g, Abs(y64)), "y");
      ExpectWithin(d_o, d_o64, Scaled(g, Abs(d_o64)), "d_o");
      Matrix d_gate = Convert(o, activation());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < K; ++c) {
          const std::int64_t query = r % kHeads * 2 * K + c;
          EXPECT_TRUE(std::isnan(d_both(r / kHeads, query))) << "a column of the query is written";
          d_gate.Set(r, c, d_both(r / kHeads, query + K));
        }
      }
      ExpectWithin(d_gate, d_gate64,
                   Bound(o64, [&](std::int64_t r,
                                  std::int64_t c) { return g * std::abs(dy64(r, c) * o64(r, c)); }),
                   "d_gate");
    }
  }
}

// One token of each of several sequences, whose states are in another order than their rows.
TEST_P(RecurrentTest, StatesAreThoseThatSpansName) {
  const std::vector<SequenceSpan> spans = {{0, 1, 2}, {1, 1, 0}, {2, 1, 1}};
  const ConvCase conv = {"conv", 20, 3, spans};
  const DeltaCase delta = {"delta", {2, 1, 12, 16}, spans};
  ConvData conv_data = MakeConvData(conv, GetParam().precision, 2500);
  DeltaData delta_data = MakeDeltaData(delta, GetParam().precision, 2501);
  ConvData conv_expected = conv_data.In(DType::kF64);
  DeltaData delta_expected = delta_data.In(DType::kF64);
  DeltaRuleErrors errors(delta, UnitRoundoff(wide()));
  errors.Forward(delta_expected, true);
  backend().Reserve(LimitsOf(delta));
  conv_data.Forward(backend(), conv, true);
  delta_data.Forward(backend(), delta, true);
  conv_expected.Forward(reference(), conv, true);
  delta_expected.Forward(reference(), delta, true);
  ExpectEqual(conv_data.window, conv_expected.window, "window");
  ExpectWithin(delta_data.o, delta_expected.o, errors.o(), "o");
  ExpectWithin(delta_data.state, delta_expected.state, errors.state(), "state");
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_RECURRENT_H_
