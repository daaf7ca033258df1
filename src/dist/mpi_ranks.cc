#include "dist/mpi_ranks.h"

#include <dlfcn.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "dist/mpi_plugin.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlugin = "libqlora_mpi.so";

class MpiRanks : public Communicator {
 public:
  explicit MpiRanks(const QloraMpi& mpi) : Communicator(mpi.rank, mpi.size, "mpi"), mpi_(mpi) {
    SetHost(HostName());
  }
  ~MpiRanks() override { mpi_.finish(); }

  [[noreturn]] void Abort(int code) override {
    mpi_.abort(code);
    _exit(code);
  }

 private:
  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    std::vector<const void*> send;
    std::vector<std::size_t> send_bytes;
    for (const Bytes& slice : to_each) {
      send.push_back(slice.data());
      send_bytes.push_back(slice.size());
    }
    std::vector<void*> receive;
    std::vector<std::size_t> receive_bytes;
    for (const MutableBytes& slice : from_each) {
      receive.push_back(slice.data());
      receive_bytes.push_back(slice.size());
    }
    mpi_.exchange(send.data(), send_bytes.data(), receive.data(), receive_bytes.data());
  }
  void DoGather(Bytes mine, MutableBytes all) override {
    mpi_.gather(mine.data(), mine.size(), all.data());
  }
  void DoBroadcast(MutableBytes data, int root) override {
    mpi_.broadcast(data.data(), data.size(), root);
  }

  const QloraMpi& mpi_;
};

// The plugin stays open until the program ends.
void* OpenPlugin() {
  const std::optional<fs::path> plugin = FindMpiPlugin();
  if (!plugin) {
    ThrowInvalidInput(
        "several ranks were started, and this program was built without MPI: {} is not beside it; "
        "install libopenmpi-dev and build again",
        kPlugin);
  }
  // The MPI library opens parts of its own, which look for its symbols.
  void* handle = dlopen(plugin->c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    ThrowInvalidInput(
        "{} cannot be opened: {}; install the MPI library that it was built with "
        "(Debian: openmpi-bin), or build the target qlora_mpi again",
        plugin->string(), dlerror());
  }
  return handle;
}

}  // namespace

std::optional<fs::path> FindMpiPlugin() {
  std::error_code error;
  const fs::path program = ProgramFolder();
  for (const fs::path& folder : {program, program.parent_path() / "lib" / "qlora" / "plugins"}) {
    if (fs::exists(folder / kPlugin, error)) return folder / kPlugin;
  }
  return std::nullopt;
}

std::string DescribeMpi() {
  if (!FindMpiPlugin()) return fmt::format("none: {} is not beside the program", kPlugin);
  try {
    auto* library = reinterpret_cast<QloraMpiLibrary*>(dlsym(OpenPlugin(), kQloraMpiLibrary));
    return library != nullptr ? library() : "none: the plugin is of another release";
  } catch (const Error& error) {
    return fmt::format("none: {}", error.what());
  }
}

std::unique_ptr<Communicator> StartMpi() {
  auto* start = reinterpret_cast<QloraMpiStart*>(dlsym(OpenPlugin(), kQloraMpiStart));
  const QloraMpi* mpi = start != nullptr ? start() : nullptr;
  if (mpi == nullptr) ThrowInvalidInput("{}: MPI does not start", kPlugin);
  if (mpi->abi != kQloraMpiAbi) {
    ThrowInvalidInput("{} is of another release of qlora; build the target qlora_mpi again",
                      kPlugin);
  }
  return std::make_unique<MpiRanks>(*mpi);
}

}  // namespace qlora
