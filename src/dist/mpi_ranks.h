// Ranks over MPI, whose library is opened when it is needed.
#ifndef QLORA_DIST_MPI_RANKS_H_
#define QLORA_DIST_MPI_RANKS_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "qlora/communicator.h"

namespace qlora {

// The plugin beside the program or in the folder lib/qlora/plugins beside the program's; nothing
// where there is none.
std::optional<std::filesystem::path> FindMpiPlugin();

// The name and the release of the MPI library, or why there is none; nothing is started.
std::string DescribeMpi();

// Starts MPI in this process, once. The result ends MPI when it is destroyed. Errors: InvalidInput
// when the plugin, or the MPI library that it is linked with, cannot be opened or started.
std::unique_ptr<Communicator> StartMpi();

}  // namespace qlora

#endif  // QLORA_DIST_MPI_RANKS_H_
