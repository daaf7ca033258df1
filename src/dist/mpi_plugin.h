// The functions of libqlora_mpi.so, which alone is linked with an MPI library: the program starts
// where no MPI is installed, and a cluster rebuilds one small file against its own MPI
// (cmake --build BUILD --target qlora_mpi).
#ifndef QLORA_DIST_MPI_PLUGIN_H_
#define QLORA_DIST_MPI_PLUGIN_H_

#include <cstddef>

extern "C" {

// Raised with every change of this file.
inline constexpr int kQloraMpiAbi = 1;

// Counts are bytes of any size; arrays have one element per rank. Called by one thread. Errors of
// MPI end all ranks, with a message of MPI.
struct QloraMpi {
  int abi;
  int rank;
  int size;
  void (*exchange)(const void* const* send, const std::size_t* send_bytes, void* const* receive,
                   const std::size_t* receive_bytes);
  void (*gather)(const void* mine, std::size_t bytes, void* all);
  void (*broadcast)(void* data, std::size_t bytes, int root);
  void (*abort)(int code);
  void (*finish)();
};

// Starts MPI in this process. Returns null when that is not possible.
using QloraMpiStart = const QloraMpi*();
inline constexpr const char* kQloraMpiStart = "qlora_mpi_start";
// Returns the name and the release of the MPI library, without starting it.
using QloraMpiLibrary = const char*();
inline constexpr const char* kQloraMpiLibrary = "qlora_mpi_library";

}  // extern "C"

#endif  // QLORA_DIST_MPI_PLUGIN_H_
