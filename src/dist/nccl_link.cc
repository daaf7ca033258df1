#include "dist/nccl_link.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <exception>
#include <string>

#include "base/check.h"
#include "base/memory.h"
#include "dist/together.h"

namespace qlora {
namespace {

// The part of nccl.h that is used; it has been the same since NCCL 2.7.
struct UniqueId {
  std::array<char, 128> internal = {};
};
using Comm = void*;
using Result = int;        // 0: success
constexpr int kBytes = 0;  // ncclInt8

class NcclLibrary {
 public:
  explicit NcclLibrary(const char* name) {
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      problem_ = dlerror();
      return;
    }
    Resolve("ncclGetVersion", get_version);
    Resolve("ncclGetErrorString", get_error_string);
    Resolve("ncclGetUniqueId", get_unique_id);
    Resolve("ncclCommInitRank", comm_init_rank);
    Resolve("ncclCommDestroy", comm_destroy);
    Resolve("ncclCommAbort", comm_abort);
    Resolve("ncclGroupStart", group_start);
    Resolve("ncclGroupEnd", group_end);
    Resolve("ncclSend", send);
    Resolve("ncclRecv", recv);
  }

  // Why there is no NCCL, or empty.
  const std::string& problem() const { return problem_; }
  void Check(const char* what, Result result) const {
    if (result == 0) return;
    ThrowRuntime("nccl: {}: {} ({}); NCCL_DEBUG=WARN says more, --ddp_backend host does without",
                 what, get_error_string(result), result);
  }

  Result (*get_version)(int*) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init_rank)(Comm*, int ranks, UniqueId, int rank) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void*, std::size_t, int type, int peer, Comm, void* stream) = nullptr;
  Result (*recv)(void*, std::size_t, int type, int peer, Comm, void* stream) = nullptr;

 private:
  template <typename Function>
  void Resolve(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) problem_ = fmt::format("no function {}: older than NCCL 2.7", name);
  }

  void* handle_ = nullptr;  // stays open until the program ends
  std::string problem_;
};

class NcclLink final : public Communicator::DeviceLink {
 public:
  NcclLink(Communicator& communicator, Memory& memory, const NcclLibrary& nccl, const UniqueId& id)
      : communicator_(communicator), memory_(memory), nccl_(nccl) {
    communicator.TimeCall("start of NCCL", [&] {
      nccl_.Check("start",
                  nccl_.comm_init_rank(&comm_, communicator.size(), id, communicator.rank()));
    });
    communicator_.SetDeviceLink(this);
  }
  ~NcclLink() override {
    communicator_.SetDeviceLink(nullptr);
    // After a failure the others may not get here, and nothing is waited for.
    std::uncaught_exceptions() > 0 ? nccl_.comm_abort(comm_) : nccl_.comm_destroy(comm_);
  }
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  void Exchange(std::span<const Communicator::Bytes> to_each,
                std::span<const Communicator::MutableBytes> from_each) override {
    nccl_.Check("begin", nccl_.group_start());
    for (int peer = 0; peer < communicator_.size(); ++peer) {
      const Communicator::Bytes leaves = to_each[peer];
      const Communicator::MutableBytes arrives = from_each[peer];
      if (!leaves.empty()) {
        nccl_.Check("send",
                    nccl_.send(leaves.data(), leaves.size(), kBytes, peer, comm_, memory_.queue()));
      }
      if (!arrives.empty()) {
        nccl_.Check("receive", nccl_.recv(arrives.data(), arrives.size(), kBytes, peer, comm_,
                                          memory_.queue()));
      }
    }
    nccl_.Check("exchange", nccl_.group_end());
    memory_.Synchronize();
  }

 private:
  Communicator& communicator_;
  Memory& memory_;
  const NcclLibrary nccl_;
  Comm comm_ = nullptr;
};

}  // namespace

std::string DescribeNccl(const char* library) {
  const NcclLibrary nccl(library);
  if (!nccl.problem().empty()) return fmt::format("none: {}", nccl.problem());
  int version = 0;  // 22005 for 2.20.5
  if (nccl.get_version(&version) != 0) return "none: its version cannot be read";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Communicator::DeviceLink> MakeNcclLink(Communicator& communicator, Memory& memory,
                                                       bool required, const char* library) {
  const NcclLibrary nccl(library);
  Together(communicator, [&] {
    if (required && !nccl.problem().empty()) {
      ThrowInvalidInput("ddp_backend nccl: {}; install NCCL (libnccl2), or use ddp_backend auto",
                        nccl.problem());
    }
  });
  if (AnyRank(communicator, !nccl.problem().empty())) return nullptr;
  UniqueId id;
  Together(communicator, [&] {
    if (communicator.is_root()) nccl.Check("make an id", nccl.get_unique_id(&id));
  });
  communicator.Broadcast(std::as_writable_bytes(std::span(id.internal)), 0);
  return MakeTogether(communicator, [&] {
    return std::unique_ptr<Communicator::DeviceLink>(
        std::make_unique<NcclLink>(communicator, memory, nccl, id));
  });
}

}  // namespace qlora
