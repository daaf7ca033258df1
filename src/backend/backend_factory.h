// Where jobs get their backends: from the Context that they are called with, otherwise from the
// device that their option `device` names.
#ifndef QLORA_BACKEND_BACKEND_FACTORY_H_
#define QLORA_BACKEND_BACKEND_FACTORY_H_

#include <memory>
#include <string>

#include "backend/backend.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora {

// device: the CPU, by the names "auto" and "cpu".
void DeclareDevice(OptionTable& table, std::string* device);

// Makes the backends of one device. A job may need several, one for each operand type.
class BackendFactory {
 public:
  using Ptr = std::shared_ptr<const BackendFactory>;

  // The factory of a device by its name; "auto" is the CPU. Errors: InvalidInput for another name,
  // as the option.
  static Ptr Of(const std::string& device);
  // The factory that `context` was given, otherwise the factory of the device. Errors: as Of.
  static Ptr ForJob(const Context& context, const std::string& device);
  // All later jobs with `context` compute on backends of `factory`, whatever device they name.
  static void GiveTo(Context& context, Ptr factory);

  virtual ~BackendFactory() = default;

  // The activation type that the device computes fastest in, kF32 or kBF16.
  virtual DType PreferredActivation() const = 0;
  // compute: what products are computed in, which needs no special hardware to be correct, only to
  // be fast. The context must outlive the backend. Errors: InvalidInput for a type without a
  // backend.
  virtual std::unique_ptr<Backend> Make(Context& context, const Compute& compute) const = 0;
};

}  // namespace qlora

#endif  // QLORA_BACKEND_BACKEND_FACTORY_H_
