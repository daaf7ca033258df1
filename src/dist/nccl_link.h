// Slices of device memory between ranks through NCCL, whose library is opened when it is needed.
#ifndef QLORA_DIST_NCCL_LINK_H_
#define QLORA_DIST_NCCL_LINK_H_

#include <memory>
#include <string>

#include "qlora/communicator.h"

namespace qlora {

class Memory;

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// The release of NCCL, or why there is none; nothing is started.
std::string DescribeNccl(const char* library = kNcclLibrary);

// Called by every rank. Null where a rank has no NCCL, and `required` is false. The link is used by
// the communicator, which brings the ranks together, as long as it lives; both must outlive it, and
// so must `memory`, whose queue NCCL adds its copies to. Errors, of all ranks: InvalidInput where
// NCCL is required and missing, Runtime where it does not start, as with two ranks on one card.
std::unique_ptr<Communicator::DeviceLink> MakeNcclLink(Communicator& communicator, Memory& memory,
                                                       bool required,
                                                       const char* library = kNcclLibrary);

}  // namespace qlora

#endif  // QLORA_DIST_NCCL_LINK_H_
