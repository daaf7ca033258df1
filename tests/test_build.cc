#include "test_build.h"

#include <cstdlib>

namespace qlora {

std::filesystem::path SourceDir() {
  const char* moved = std::getenv("QLORA_SOURCE_DIR");
  return moved == nullptr ? QLORA_SOURCE_DIR : moved;
}

std::filesystem::path SharedFolder() {
  const char* name = std::getenv("QLORA_SHARED");
  return name != nullptr ? std::filesystem::path(name) : SourceDir() / ".." / "shared";
}

}  // namespace qlora
