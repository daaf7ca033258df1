// The one interface of all tensor file formats, so that quantize and export know no format.
//
// safetensors.h and gguf/gguf.h read, safetensors_writer.h and gguf/gguf_writer.h write. bnb.h
// finds the 4-bit weights of bitsandbytes in a reader, peft/peft.h the matrices of an adapter.
// float_encoding.h converts numbers. Other headers pass JSON values on with json_fwd.h, which
// compiles fast.
#ifndef QLORA_IO_TENSOR_FILE_H_
#define QLORA_IO_TENSOR_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tensor_type.h"

namespace qlora {

struct TensorInfo {
  std::string name;
  TensorType dtype;
  std::vector<std::int64_t> shape;  // row-major, outermost first; {} is a scalar
  // Writers only: the shape is {most}; TensorWriter::Shrink sets the true size.
  bool upper_bound = false;

  // Both stay at the largest number when the product of a malicious shape does not fit.
  std::int64_t elements() const;  // product of shape
  std::size_t bytes() const;      // BytesOf(dtype, elements())
};

// False where reading values of this type in place is undefined: files may put a tensor at any
// byte. Blocks are read from any byte.
bool IsAligned(const void* data, DType dtype);
// The same values where they are aligned: in place, or copied to `copy`.
const std::byte* AlignedValues(std::span<const std::byte> bytes, DType dtype,
                               std::vector<std::byte>& copy);

using StringMap = std::map<std::string, std::string>;

// A tensor that a file or an index names and that cannot be read, with the reason.
struct UnreadTensor {
  std::string name;
  std::string reason;
};

// A value of a tensor as a file stores it, for error messages.
struct StoredValue {
  const TensorInfo* tensor;
  std::int64_t element;

  // "row 3, column 5", or "index 5" of a vector.
  std::string Place() const;
};

// A file, or the shards of a checkpoint, whose header has been read and checked in full: every
// tensor is inside its file and no two overlap.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // Returns nullptr when there is no such tensor.
  virtual const TensorInfo* Find(std::string_view name) const = 0;
  // Returns the tensor's bytes, mapped from the file; valid as long as the reader. Not necessarily
  // aligned.
  virtual std::span<const std::byte> Bytes(const TensorInfo& tensor) const = 0;
  // True where the file has the values in another order: Bytes makes a copy, which Release frees.
  virtual bool IsCopied(const TensorInfo& /*tensor*/) const { return false; }
  // Tensors that are named and cannot be read, of a reader that tolerates them.
  virtual const std::vector<UnreadTensor>& unread() const;
  // Releases a tensor that will not be read soon: its pages no longer count against memory, and
  // come back from the file when they are read after all.
  virtual void Release(const TensorInfo& tensor) const = 0;
  // True where weights that files have in 4 bits are shown as dense ones.
  virtual bool shows_decoded_4bit() const { return false; }
  // Frees memory that is kept for the copy of the next tensor.
  virtual void Trim() const {}
  // Returns the path of the file that holds the tensor, for error messages.
  virtual std::string FileOf(const TensorInfo& tensor) const = 0;
  // Returns where the file has this element of the tensor. A reader may show its tensors under
  // other names, in other pieces and with rows in another order.
  virtual StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const {
    return {&tensor, element};
  }
  // Returns the text that the file stores with its tensors. Several shards have the text of the
  // first shard.
  virtual const StringMap& metadata() const = 0;
};

// Shows the tensors of another reader, some of them changed, left out or made: a class that derives
// from it adds what is shown, and gives the bytes of what is not as stored.
class ForwardingReader : public TensorReader {
 public:
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view name) const override;
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override;
  bool IsCopied(const TensorInfo& tensor) const override;
  const std::vector<UnreadTensor>& unread() const override { return unread_; }
  void Release(const TensorInfo& tensor) const override;
  bool shows_decoded_4bit() const override { return stored_->shows_decoded_4bit(); }
  void Trim() const override { stored_->Trim(); }
  std::string FileOf(const TensorInfo& tensor) const override;
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override;
  const StringMap& metadata() const override { return stored_->metadata(); }

 protected:
  explicit ForwardingReader(std::unique_ptr<TensorReader> stored);
  ForwardingReader(std::unique_ptr<TensorReader> stored, std::vector<UnreadTensor> unread)
      : stored_(std::move(stored)), unread_(std::move(unread)) {}
  const TensorReader& stored() const { return *stored_; }
  // The tensor that a shown one is made of: that of the same name.
  virtual const TensorInfo& Stored(const TensorInfo& tensor) const;
  // Shows a tensor. The reference is valid until the next.
  TensorInfo& Add(TensorInfo tensor);
  void AddUnread(UnreadTensor tensor) { unread_.push_back(std::move(tensor)); }

 private:
  std::unique_ptr<TensorReader> stored_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
  std::vector<UnreadTensor> unread_;
};

// Declares all tensors up front and then takes their bytes one by one in the declared order, so
// that memory stays at one tensor. The file appears under its name only with Finish(); without it
// nothing is left. Errors: Runtime when it cannot be written, or when too few or too many bytes
// came for a tensor.
class TensorWriter {
 public:
  virtual ~TensorWriter() = default;
  // Writes bytes of a tensor; call several times until its bytes are complete.
  virtual void Write(std::span<const std::byte> bytes) = 0;
  // Sets the shape {elements} of a tensor declared with upper_bound, before its first Write.
  virtual void Shrink(std::int64_t elements) = 0;
  virtual void Finish() = 0;
};

}  // namespace qlora

#endif  // QLORA_IO_TENSOR_FILE_H_
