#include "backend/cuda/cuda_backend.h"

#include <utility>

#include "backend/cuda/attention.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/planned_backend.h"
#include "backend/cuda/quantizer.h"
#include "backend/expert_ranges.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

class CudaBackend final : public PlannedBackend {
 public:
  CudaBackend(Context& context, std::shared_ptr<Device> device, DType compute,
              const WorkspaceBudget& budget)
      : PlannedBackend(compute, budget),
        context_(context),
        device_(std::move(device)),
        tables_(device_->memory()),
        workspace_(device_->memory(), compute),
        machine_{device_->runtime().stream(), device_->blas(), workspace_,
                 device_->runtime().Multiprocessors()} {}

  Memory& memory() const override { return device_->memory(); }

  // Captures in a separate stream, so that work that other backends of the device queue meanwhile
  // runs.
  OpGraph Capture(const std::function<void()>& give, OpGraph last) override {
    const Stream stream = machine_.stream;
    const auto queue = [&](Stream captured) {
      machine_.stream = captured;
      give();
    };
    OpGraph graph;
    try {
      graph = device_->runtime().Capture(queue, std::move(last));
    } catch (const Error&) {
      // Ops that cannot be captured can be run. A wrong op then fails again.
    } catch (...) {
      machine_.stream = stream;
      throw;
    }
    machine_.stream = stream;
    return graph;
  }
  void Replay(const OpGraph& graph) override { device_->runtime().Launch(graph); }

  void Reserve(const BackendLimits& limits) override {
    workspace_.Reserve(limits, BudgetOf(limits.work_size));
  }

  void SetDeterministic(bool on) override { machine_.deterministic = on; }

 private:
  QuantizedView DoQuantize(const ConstMatrixView& host, const QuantizeOptions& options,
                           const MatrixView& storage) override {
    return QuantizeOn(context_, *device_, tables_, host, options, storage);
  }

  void DoRun(const Op& op) override {
    std::visit([this](const auto& any) { this->Call(any); }, op);
  }

  // Ops without a kernel.
  [[noreturn]] static void Refuse(const char* op, const char* kind = "") {
    ThrowInvalidInput(
        "device cuda: expected ops that have a kernel, found {}{}; run this model with --device "
        "cpu",
        op, kind);
  }
  void Call(const ops::CausalConv& op) { Refuse(op.kName); }
  void Call(const ops::CausalConvBackward& op) { Refuse(op.kName); }
  void Call(const ops::GatedDeltaRule& op) { Refuse(op.kName); }
  void Call(const ops::GatedDeltaRuleBackward& op) { Refuse(op.kName); }
  void Call(const ops::GateRows& op) { Refuse(op.kName); }
  void Call(const ops::GateRowsBackward& op) { Refuse(op.kName); }
  void Call(const ops::RouteExperts& op) {
    if (!op.bias.empty()) Refuse(op.kName, " with a bias");
    CallRouter(op);
  }
  void Call(const ops::RouteExpertsBackward& op) { CallRouter(op); }
  template <typename Router>
  void CallRouter(const Router& op) {
    if (op.score != RouterScore::kSoftmax) Refuse(op.kName, " with sigmoids");
    if (op.scale != 1) Refuse(op.kName, " with a scale");
    Queue(machine_.stream, op);
  }
  void Call(const ops::AttentionSinks& op) { Refuse(op.kName); }
  // The kernels know the activations of feed-forward layers.
  template <typename Gated>
  void CallGated(const Gated& op) {
    if (op.activation == Activation::kSigmoid) Refuse(op.kName, " with a sigmoid");
    if (op.activation == Activation::kIdentity) Refuse(op.kName, " with no activation");
    if (op.activation == Activation::kClampedSwiglu) Refuse(op.kName, " with clamps");
    Queue(machine_.stream, op);
  }
  void Call(const ops::GatedActivation& op) { CallGated(op); }
  void Call(const ops::GatedActivationBackward& op) { CallGated(op); }

  // Ops of one kernel.
  template <typename OneKernel>
  void Call(const OneKernel& op) {
    Queue(machine_.stream, op);
  }

  void Call(const ops::Update& op) {
    Queue(machine_.stream, op, {tables_.signed_map(), tables_.unsigned_map()});
  }
  void Call(const ops::SumOfSquares& op) { Queue(machine_.stream, op, tables_.partial_sums()); }

  void Call(const ops::Linear& op) { LinearForward(machine_, op); }
  void Call(const ops::LinearBackward& op) { LinearBackward(machine_, op); }
  void Call(const ops::WeightGradient& op) { WeightGradient(machine_, op); }

  void Call(const ops::ExpertLinear& op) {
    ForEachExpert(op, [this](const ops::Linear& linear) { this->Call(linear); });
  }
  void Call(const ops::ExpertLinearBackward& op) {
    ForEachExpert(op, [this](const ops::LinearBackward& linear) { this->Call(linear); });
  }

  void Call(const ops::Attention& op) { AttentionForward(machine_, device_->attention(), op); }
  // The gradients of the library are sums in an order that changes.
  void Call(const ops::AttentionBackward& op) {
    AttentionBackward(machine_, machine_.deterministic ? nullptr : device_->attention(), op);
  }

  Context& context_;
  // Before tables_ and workspace_, whose memory it owns: members end in reverse order.
  const std::shared_ptr<Device> device_;
  const Tables tables_;
  Workspace workspace_;
  Machine machine_;
};

}  // namespace

std::unique_ptr<Backend> MakeBackendOn(Context& context, std::shared_ptr<Device> device,
                                       DType compute, const WorkspaceBudget& budget) {
  return std::make_unique<CudaBackend>(context, std::move(device), compute, budget);
}

}  // namespace qlora::cuda
