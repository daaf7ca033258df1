// libqlora_mpi.so: moves bytes between ranks through MPI.
#include "dist/mpi_plugin.h"

#define OMPI_SKIP_MPICXX 1  // the C++ interface that MPI removed long ago
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace {

QloraMpi mpi;
std::string library;
MPI_Comm ranks = MPI_COMM_NULL;

// Messages of MPI count bytes as an int.
constexpr std::size_t kPiece = std::size_t{1} << 30;

// Calls post(begin, count) for the pieces of a message of `bytes`.
template <typename Post>
void ForPieces(std::size_t bytes, const Post& post) {
  for (std::size_t begin = 0; begin < bytes; begin += kPiece) {
    post(begin, static_cast<int>(std::min(kPiece, bytes - begin)));
  }
}

const std::byte* At(const void* data, std::size_t begin) {
  return static_cast<const std::byte*>(data) + begin;
}
std::byte* At(void* data, std::size_t begin) { return static_cast<std::byte*>(data) + begin; }

// Everything is sent at once, so that no rank waits for another in an order.
void Exchange(const void* const* send, const std::size_t* send_bytes, void* const* receive,
              const std::size_t* receive_bytes) {
  std::vector<MPI_Request> requests;
  for (int i = 1; i < mpi.size; ++i) {
    const int from = (mpi.rank + mpi.size - i) % mpi.size;
    ForPieces(receive_bytes[from], [&](std::size_t begin, int count) {
      MPI_Irecv(At(receive[from], begin), count, MPI_BYTE, from, 0, ranks,
                &requests.emplace_back());
    });
  }
  for (int i = 1; i < mpi.size; ++i) {
    const int to = (mpi.rank + i) % mpi.size;
    ForPieces(send_bytes[to], [&](std::size_t begin, int count) {
      MPI_Isend(At(send[to], begin), count, MPI_BYTE, to, 0, ranks, &requests.emplace_back());
    });
  }
  if (receive_bytes[mpi.rank] > 0) {
    std::memcpy(receive[mpi.rank], send[mpi.rank], receive_bytes[mpi.rank]);
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

void Gather(const void* mine, std::size_t bytes, void* all) {
  const int count = static_cast<int>(bytes);
  MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, ranks);
}

void Broadcast(void* data, std::size_t bytes, int root) {
  ForPieces(bytes, [&](std::size_t begin, int count) {
    MPI_Bcast(At(data, begin), count, MPI_BYTE, root, ranks);
  });
}

void Abort(int code) { MPI_Abort(ranks, code); }

void Finish() { MPI_Finalize(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* qlora_mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  library.assign(text, static_cast<std::size_t>(length));
  library.resize(std::min(library.size(), library.find_first_of(",\n")));
  return library.c_str();
}

extern "C" __attribute__((visibility("default"))) const QloraMpi* qlora_mpi_start() {
  int level = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return nullptr;
  MPI_Comm_dup(MPI_COMM_WORLD, &ranks);
  mpi = {kQloraMpiAbi, 0, 0, Exchange, Gather, Broadcast, Abort, Finish};
  MPI_Comm_rank(ranks, &mpi.rank);
  MPI_Comm_size(ranks, &mpi.size);
  return &mpi;
}
