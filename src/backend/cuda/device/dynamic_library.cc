#include "backend/cuda/device/dynamic_library.h"

#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>

namespace qlora::cuda {
namespace {

constexpr const char* kToolkit = "/usr/local/cuda/lib64";

std::string FileOf(void* handle) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

}  // namespace

OpenedLibrary OpenLibrary(const std::string& name) {
  OpenedLibrary opened;
  opened.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  // The loader's words name a library that this one needs and that is missing.
  std::string refusal = opened.handle == nullptr ? dlerror() : "";
  const std::string in_toolkit = fmt::format("{}/{}", kToolkit, name);
  if (opened.handle == nullptr && std::filesystem::exists(in_toolkit)) {
    opened.handle = dlopen(in_toolkit.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened.handle == nullptr) refusal = dlerror();
  }
  if (opened.handle != nullptr) {
    opened.file = FileOf(opened.handle);
    return opened;
  }
  const char* folders = std::getenv("LD_LIBRARY_PATH");
  opened.problem = fmt::format(
      "{} was not loaded: looked for in LD_LIBRARY_PATH ({}), the system's folders and {}: {}",
      name, folders == nullptr || *folders == '\0' ? "not set" : folders, kToolkit, refusal);
  return opened;
}

}  // namespace qlora::cuda
