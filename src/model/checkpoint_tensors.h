// The tensors of a checkpoint as a loader asks for them: by name and shape, each in the form in
// which the file stores it. Counts what was asked for, for progress, sizes and remarks.
#ifndef QLORA_MODEL_CHECKPOINT_TENSORS_H_
#define QLORA_MODEL_CHECKPOINT_TENSORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/weight.h"
#include "config/config.h"
#include "io/bnb.h"
#include "io/tensor_file.h"

namespace qlora {

class CheckpointTensors {
 public:
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

  // reader: of OpenCheckpoint; must outlive this, as must config.
  CheckpointTensors(const TensorReader& reader, const DecoderConfig& config);
  // For plans without files: every tensor exists, in the shape that is asked for and in bfloat16,
  // the type of almost all checkpoints, but experts of gpt-oss in MXFP4.
  explicit CheckpointTensors(const DecoderConfig& config);

  // Starts a walk over all tensors. The count of the walk before is the total of `progress`.
  void Begin(Progress progress);

  // Returns the tensor of this name. Errors: InvalidInput when it is missing, has another shape, or
  // is not a matrix of numbers.
  const TensorInfo& Get(const std::string& name, const std::vector<std::int64_t>& shape);
  // Returns a tensor that HasQuantState. Errors: InvalidInput as ReadBnb, and for another shape.
  BnbMatrix GetFourBit(const std::string& name, std::int64_t rows, std::int64_t cols);

  const TensorReader& reader() const { return reader_; }
  // "model.", or what a multimodal checkpoint has instead.
  const std::string& prefix() const { return prefix_; }
  // True where the checkpoint is quantized: linears that it left dense stay dense.
  bool is_quantized() const { return is_quantized_; }
  // Values of all tensors since Begin.
  std::int64_t parameters() const { return parameters_; }
  // Remarks on tensors that were not asked for or cannot be read, and on a head that config.json
  // denies.
  // Errors: InvalidInput for such a tensor of a family whose names are uncertain: it may be one
  // that this program misses.
  std::vector<std::string> Notes() const;

 private:
  [[noreturn]] void ThrowMissing(const std::string& name,
                                 const std::vector<std::int64_t>& shape) const;
  // Names of the tensors in the same layer, or at the same place outside of layers; "" without.
  std::string Neighbours(const std::string& name) const;
  void Count(const std::string& name, std::int64_t values);

  const DecoderConfig& config_;
  std::unique_ptr<TensorReader> no_files_;
  const TensorReader& reader_;
  std::string prefix_;
  bool is_quantized_ = false;
  bool imagines_mxfp4_ = false;
  TensorInfo imagined_;         // the last requested tensor, without files
  std::set<std::string> used_;  // tensors that were asked for
  Progress progress_;
  std::int64_t parameters_ = 0;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

// "[2, 3]", for messages.
std::string ShapeText(const std::vector<std::int64_t>& shape);

}  // namespace qlora

#endif  // QLORA_MODEL_CHECKPOINT_TENSORS_H_
