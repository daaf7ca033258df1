#include "model/lora.h"

#include <algorithm>

#include "base/check.h"
#include "base/matrix.h"
#include "base/random.h"
#include "quant/dynamic8.h"

namespace qlora {
namespace {

// The whole arena as one (1, n) range.
MatrixView Flat(const Arena& arena, DType dtype) {
  const auto count = static_cast<std::int64_t>(arena.bytes() / BytesOf(dtype, 1));
  return {arena.data(), dtype, 1, count, count};
}

}  // namespace

LoraAdapter::LoraAdapter(const AdapterConfig& config, const DecoderConfig& decoder, DType wide)
    : config_(config), wide_(wide) {
  const PerLinear<LinearShape> shapes = ShapeLinears(decoder);
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    layers_.push_back(Combine(LinearPaths(decoder, l), shapes,
                              [&](const std::string& path, const LinearShape& shape) {
                                LoraLinear lora;
                                lora.path = path;
                                lora.in = shape.in;
                                lora.out = shape.out;
                                if (!Targets(config, path)) return lora;
                                lora.rank = lora.trained_rank = RankOf(config, path);
                                lora.scale = static_cast<float>(ScaleOf(config, path));
                                lora.dropout = static_cast<float>(config.lora_dropout);
                                return lora;
                              }));
  }
  parameters_ = Allocate({&LoraLinear::a, &LoraLinear::b, &LoraLinear::magnitude});
  if (config.use_dora && decoder.moe.num_experts > 0) {
    ThrowInvalidInput("use_dora is not supported for models with experts");
  }
  if (config.use_dora) AllocateNorms();
  if (trainable() == 0) {
    std::string names;
    LinearPaths(decoder, 0).ForEach([&](const std::string& path) { names += "\n  " + path; });
    ThrowInvalidInput("target_modules match no linear of this model; its first layer has{}", names);
  }
}

Arena LoraAdapter::Allocate(const Slots& slots) {
  const std::size_t element = BytesOf(wide_, 1);
  const auto layout = [&](Carver& carver) {
    groups_.clear();
    const auto group = [&](ParameterKind kind, auto&& place) {
      const auto begin = static_cast<std::int64_t>(carver.bytes() / element);
      for (PerLinear<LoraLinear>& layer : layers_) {
        layer.ForEach([&](LoraLinear& lora) {
          if (lora.rank == 0) return;
          place(lora);
          carver.Align(kDynamicBlock * element);
        });
      }
      const auto end = static_cast<std::int64_t>(carver.bytes() / element);
      if (end > begin) groups_.push_back({kind, begin, end - begin});
    };
    group(ParameterKind::kA,
          [&](LoraLinear& lora) { lora.*slots.a = carver.Matrix(wide_, lora.rank, lora.in); });
    group(ParameterKind::kB,
          [&](LoraLinear& lora) { lora.*slots.b = carver.Matrix(wide_, lora.out, lora.rank); });
    if (config_.use_dora) {
      group(ParameterKind::kMagnitude,
            [&](LoraLinear& lora) { lora.*slots.magnitude = carver.Matrix(wide_, 1, lora.out); });
    }
  };
  Carver plan;
  layout(plan);
  Arena arena(plan.bytes());
  Carver carver(arena);
  layout(carver);
  return arena;
}

LoraAdapter LoraAdapter::Create(const AdapterConfig& config, const DecoderConfig& decoder,
                                std::uint64_t seed, DType wide) {
  LoraAdapter adapter(config, decoder, wide);
  std::uint64_t place = 0;
  for (PerLinear<LoraLinear>& layer : adapter.layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      const RandomKey key = MakeKey(seed, RandomPlace::kLoraInit, place++);
      if (lora.rank > 0) FillKaiming(key, lora.a);  // b is zero already
    });
  }
  return adapter;
}

void LoraAdapter::AllocateNorms() {
  const auto layout = [&](Carver& carver) {
    for (PerLinear<LoraLinear>& layer : layers_) {
      layer.ForEach([&](LoraLinear& lora) {
        if (lora.rank == 0) return;
        lora.norm = carver.Matrix(wide_, 1, lora.out);
        lora.inverse_norm = carver.Matrix(wide_, 1, lora.out);
      });
    }
  };
  Carver plan;
  layout(plan);
  norms_ = Arena(plan.bytes());
  Carver carver(norms_);
  layout(carver);
}

void LoraAdapter::AllocateGradients() {
  gradients_ = Allocate({&LoraLinear::da, &LoraLinear::db, &LoraLinear::d_magnitude});
}

void LoraAdapter::FreezeSecondHalf() {
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([](LoraLinear& lora) { lora.trained_rank = lora.rank / 2; });
  }
}

void LoraAdapter::ZeroFrozenGradients() {
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([](LoraLinear& lora) {
      const std::int64_t frozen = lora.rank - lora.trained_rank;
      if (frozen == 0) return;
      FillZero(Rows(lora.da, lora.trained_rank, frozen));
      for (std::int64_t o = 0; o < lora.out; ++o) {
        MatrixView row = Rows(lora.db, o, 1);
        row.data = static_cast<std::byte*>(row.data) +
                   BytesOf(row.dtype, static_cast<std::size_t>(lora.trained_rank));
        row.cols = row.stride = frozen;
        FillZero(row);
      }
    });
  }
}

void LoraAdapter::ZeroGradients() { FillZero(gradients()); }

MatrixView LoraAdapter::parameters() const { return Flat(parameters_, wide_); }
MatrixView LoraAdapter::gradients() const { return Flat(gradients_, wide_); }

std::int64_t LoraAdapter::trainable() const {
  std::int64_t count = 0;
  for (const PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](const LoraLinear& lora) {
      count += lora.trained_rank * (lora.in + lora.out) + (lora.is_dora() ? lora.out : 0);
    });
  }
  return count;
}

std::int64_t LoraAdapter::max_group_rank() const {
  std::int64_t most = 0;
  // Groups of `size` linears each.
  const auto visit = [&](const std::vector<LoraLinear>& linears, std::size_t size) {
    for (std::size_t begin = 0; begin < linears.size(); begin += size) {
      std::int64_t rank = 0;
      for (std::size_t i = begin; i < begin + size; ++i) rank += linears[i].rank;
      most = std::max(most, rank);
    }
  };
  for (const PerLinear<LoraLinear>& layer : layers_) {
    visit(layer.qkv, layer.qkv.size());
    visit({layer.o}, 1);
    visit(layer.gate_up, std::min<std::size_t>(layer.gate_up.size(), 2));
    visit(layer.down, 1);
  }
  return most;
}

}  // namespace qlora
