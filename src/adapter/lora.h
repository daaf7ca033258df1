// The trained part: LoRA matrices of the linears of a decoder (Hu et al., arXiv:2106.09685).
#ifndef QLORA_ADAPTER_LORA_H_
#define QLORA_ADAPTER_LORA_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/table_change.h"
#include "backend/backend.h"
#include "base/arena.h"
#include "config/config.h"
#include "io/peft/peft.h"
#include "model/replaced_tensors.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {

struct LinearRows;  // gguf_names.h

// The adapter of one linear; rank 0: no adapter. The update is scale * B A.
struct LoraLinear {
  std::string path;  // module path of the linear
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t rank = 0;
  std::int64_t trained_rank = 0;  // rows of A and columns of B beyond it never change
  float scale = 1;                // alpha / r, or alpha / sqrt(r)
  float dropout = 0;
  // A and its gradient are those of the linear before: PEFT has one parameter for both, gate and up
  // of an expert of gpt-oss (MoeConfig::is_joined).
  bool shares_a = false;
  MatrixView a;  // (R, I) wide
  MatrixView b;  // (O, R) wide
  // The values of a and b once more, as LoraView has them; empty until Pack.
  MatrixView packed_a;  // (R, I)
  MatrixView packed_b;  // (panels * R, kPackedRows)
  MatrixView da;        // (R, I) gradient of a; empty until AllocateGradients
  MatrixView db;        // (O, R)
  // DoRA (Liu et al., arXiv:2402.09353): row o of W + scale B A is brought to the length
  // magnitude(o). Empty without.
  MatrixView magnitude;     // (1, O) wide
  MatrixView d_magnitude;   // (1, O)
  MatrixView inverse_norm;  // (1, O) wide: 1 / length of each row, as of the last RefreshNorms

  // Where the model has rows or columns in another order than the checkpoint, in whose order
  // adapters are stored (DeltaRuleShape::tiled): the place in the checkpoint of each. null: one
  // order.
  std::shared_ptr<const LinearRows> order;

  bool is_dora() const { return !magnitude.empty(); }
};

// A whole module that is trained in addition to the adapters (modules_to_save): a table of
// embeddings or the output head.
struct TrainedModule {
  std::string name;       // of its weight: "lm_head.weight"
  std::int64_t rows = 0;  // V; another number where the adapter has a resized vocabulary
  MatrixView weight;      // (V, D) wide
  MatrixView gradient;    // (V, D); empty until AllocateGradients
};

// Parameters that are updated alike: a range of LoraAdapter::parameters().
enum class ParameterKind : std::uint8_t { kA, kB, kMagnitude, kModule };
struct ParameterGroup {
  ParameterKind kind = ParameterKind::kA;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::vector<std::int64_t> layers = {};  // (L + 1) where those of each layer begin; empty: kModule
};

// The adapters of a whole decoder. All matrices of one kind are in one arena, so that zeroing, the
// norm, the optimizer, an all-reduce and a checkpoint are one call over one range.
class LoraAdapter {
 public:
  // The adapter that `config` describes: ranks, scales and sizes are known, and the views of
  // parameters have no data until Allocate, Initialize or Read allocates them in `memory`, which
  // must outlive the adapter. Errors: InvalidInput when nothing matches, and for modules that
  // cannot be trained. changes: of tables, which FoldTables finishes.
  LoraAdapter(const AdapterConfig& config, const DecoderConfig& decoder, Memory& memory,
              DType wide = DType::kF32, std::vector<TableChange> changes = {});
  // Allocates the parameters, unless that is done.
  void Allocate();
  // Puts values in the order of the checkpoint into that of the model (LoraLinear::order).
  void ToModelOrder(LoraLinear& lora) const;
  // A Kaiming-uniform in +-1/sqrt(I) from the seed, B zero.
  void Initialize(std::uint64_t seed);

  // Constructs and initializes an adapter.
  static LoraAdapter Create(const AdapterConfig& config, const DecoderConfig& decoder,
                            Memory& memory, std::uint64_t seed, DType wide = DType::kF32);
  // Reads a PEFT directory, to compute with the adapter, not to train it: the embeddings and the
  // head may have adapters, rows of tokens or another number of rows; FoldTables finishes them.
  // Errors: InvalidInput when it does not belong to this decoder: a target without tensors, a
  // tensor without target, a shape that differs.
  static LoraAdapter Load(const std::filesystem::path& dir, const DecoderConfig& decoder,
                          Memory& memory, DType wide = DType::kF32,
                          const ProgressFn& progress = {});
  // The same before its values are read, from the heads of the files: parts and sizes are known,
  // and the views of linears have no data.
  static LoraAdapter Shape(const std::filesystem::path& dir, const DecoderConfig& decoder,
                           Memory& memory, DType wide = DType::kF32);
  // Sets all values to the values of a PEFT directory of the same configuration. Errors: as Load.
  void Read(const std::filesystem::path& dir);
  // Writes adapter_config.json and adapter_model.safetensors, float32 unless said.
  void Save(const std::filesystem::path& dir, DType dtype = DType::kF32) const;

  // Holds A and B once more as operands of products of this type, F32 or BF16, to write texts: from
  // now on they do not change.
  void Pack(DType operands);
  // The bytes that Pack takes.
  std::size_t PackedBytes(DType operands) const;

  void AllocateGradients();
  void ZeroGradients();
  // From now on only the first half of every rank is trained.
  void FreezeSecondHalf();
  // Sets the gradients of the second half to zero where it is frozen.
  void ZeroFrozenGradients(Backend& backend);

  const AdapterConfig& config() const { return config_; }
  AdapterConfig& config() { return config_; }
  // The memory of the parameters and gradients.
  Memory& memory() const { return *memory_; }
  std::vector<PerLinear<LoraLinear>>& layers() { return layers_; }
  const std::vector<PerLinear<LoraLinear>>& layers() const { return layers_; }

  // The trained table or head; nullptr where the base's is used.
  const TrainedModule* embedding() const;
  const TrainedModule* head() const;
  const std::vector<TrainedModule>& modules() const { return modules_; }
  // Copies the base's weights to the modules. The weights are in the same memory.
  void InitializeModules(const DecoderWeights& weights);
  // After Load, or with changes of tables: adds what the adapter changes in the tables to copies of
  // the base's. The weights are as for InitializeModules.
  void FoldTables(const DecoderWeights& weights);
  // The changes of tables that FoldTables is to make.
  const std::vector<TableChange>& changes() const { return changes_; }
  // Rows of the tables that passes with this adapter read: V, or those of a resized vocabulary.
  std::int64_t vocab_size() const { return modules_.empty() ? vocab_ : modules_.front().rows; }
  const DecoderConfig& decoder() const { return decoder_; }
  // What weights are to be loaded with; null: nothing.
  const std::shared_ptr<const ReplacedTensors>& replaced() const { return replaced_; }
  // Remarks for the user on what was left out or lost when the adapter was read.
  const std::vector<std::string>& notes() const { return notes_; }
  void set_notes(std::vector<std::string> notes) { notes_ = std::move(notes); }
  // All parameters (or gradients) as one (1, n) range; padding between matrices is zero.
  MatrixView parameters() { return {parameters_.data(), wide_, 1, count_, count_}; }
  ConstMatrixView parameters() const { return {parameters_.data(), wide_, 1, count_, count_}; }
  MatrixView gradients() { return {gradients_.data(), wide_, 1, count_, count_}; }
  ConstMatrixView gradients() const { return {gradients_.data(), wide_, 1, count_, count_}; }
  // (1, 1) float64: room for a sum over gradients, allocated with them.
  MatrixView gradient_sum() { return gradient_sum_; }
  // The kinds that the adapter has, in the order of parameters(); each begins at a multiple of 256.
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  // The parts of parameters() that belong to these layers, one for each kind. Modules are of none.
  std::vector<IndexRange> PartsOf(const IndexRange& layers) const;
  // The bytes of the adapter without gradients: parameters, the lengths of DoRA, what Pack made.
  std::size_t bytes() const { return BytesOf(wide_, count_) + norm_bytes_ + packed_.bytes(); }
  std::int64_t max_group_rank() const;  // largest sum of ranks over linears that share an input

 private:
  LoraAdapter(const AdapterConfig& config, const DecoderConfig& decoder, Memory& memory, DType wide,
              const Adapter* peft, std::vector<TableChange> changes);
  void Read(const std::filesystem::path& dir, const Adapter& peft, const ProgressFn& progress);
  // Returns A of each linear that was read, or of the stack of its experts.
  std::set<const TensorInfo*> ReadLinears(const std::filesystem::path& dir, const Adapter& peft,
                                          const ProgressFn& progress);
  void ReadModules(const std::filesystem::path& dir, const Adapter& peft);
  // Errors: InvalidInput for a tensor that no target has read.
  void CheckAllRead(const std::filesystem::path& dir, const Adapter& peft,
                    const std::set<const TensorInfo*>& read) const;
  // Adds the modules of modules_to_save. peft: null, or holds tensors that are replaced on loading.
  void AddWholeModules(const Adapter* peft);
  // Takes norms, vectors and changes of routers out of an adapter of PEFT.
  void AddReplaced(const Adapter& peft);
  // Adds the tables that an adapter of PEFT changes in a way that is not trained here.
  void AddTables(const Adapter& peft);
  // Errors: InvalidInput for tables that do not fit the model, or mean something else to PEFT.
  void CheckTables() const;
  void AddLinears();
  LoraLinear LoraOf(const std::string& path, const LinearShape& shape) const;
  // Errors: InvalidInput for targets that match nothing, or cannot be adapted as configured.
  void CheckLinears() const;
  // The matrices of one arena: the parameters, or their gradients.
  struct Slots {
    MatrixView LoraLinear::*a;
    MatrixView LoraLinear::*b;
    MatrixView LoraLinear::*magnitude;
    MatrixView TrainedModule::*module;
  };
  static constexpr Slots kParameterSlots = {&LoraLinear::a, &LoraLinear::b, &LoraLinear::magnitude,
                                            &TrainedModule::weight};
  static constexpr Slots kGradientSlots = {&LoraLinear::da, &LoraLinear::db,
                                           &LoraLinear::d_magnitude, &TrainedModule::gradient};
  // Carves memory into the matrices of every linear. Every matrix begins at a multiple
  // of 256 values, so that blocks of 8-bit moments do not reach over matrices.
  void Layout(Carver& carver, const Slots& slots);
  // Carves memory into the lengths of rows that DoRA keeps.
  void LayoutNorms(Carver& carver);
  void SetOrders(const DecoderConfig& decoder);
  const TrainedModule* Find(std::string_view name) const;
  TrainedModule* Find(std::string_view name);

  AdapterConfig config_;
  Memory* memory_;
  DType wide_ = DType::kF32;
  std::int64_t vocab_ = 0;   // V
  std::int64_t hidden_ = 0;  // D
  DecoderConfig decoder_;
  bool tied_ = false;                 // of the base
  bool tied_rows_ = false;            // the head is the changed embedding
  std::vector<TableChange> changes_;  // until FoldTables
  std::shared_ptr<const ReplacedTensors> replaced_;
  std::vector<std::string> notes_;
  std::vector<PerLinear<LoraLinear>> layers_;
  std::vector<TrainedModule> modules_;
  std::vector<ParameterGroup> groups_;
  std::int64_t count_ = 0;  // of parameters, padding included
  std::size_t norm_bytes_ = 0;
  Arena parameters_;
  Arena gradients_;
  MatrixView gradient_sum_;  // behind the gradients
  Arena norms_;
  Arena packed_;
};

// The adapters that a pass may use; never null.
using Adapters = std::vector<const LoraAdapter*>;
// {} for null.
Adapters AdaptersOf(const LoraAdapter* adapter);

// The tables that rows with `adapter` (or null) read: its trained tables, otherwise the tables of
// the base. A head that is tied to the embeddings stays the base's when the embeddings are trained.
WeightView EmbeddingOf(const DecoderWeights& weights, const LoraAdapter* adapter);
WeightView HeadOf(const DecoderWeights& weights, const LoraAdapter* adapter);

}  // namespace qlora

#endif  // QLORA_ADAPTER_LORA_H_
