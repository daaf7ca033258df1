// Libraries of NVIDIA that are loaded when they are asked for: they are large, and a program that
// runs on the CPU does without them.
#ifndef QLORA_BACKEND_CUDA_DEVICE_DYNAMIC_LIBRARY_H_
#define QLORA_BACKEND_CUDA_DEVICE_DYNAMIC_LIBRARY_H_

#include <dlfcn.h>

#include <string>

namespace qlora::cuda {

struct OpenedLibrary {
  void* handle = nullptr;  // null: not found, or not loaded
  std::string file;        // that was loaded, with its folder
  std::string problem;     // where it was looked for and which step failed, or empty
};

// Opens the library `name`, looked for where the loader does and in the toolkit's folder; it stays
// loaded.
OpenedLibrary OpenLibrary(const std::string& name);

// False where the library has no function of that name.
template <typename Function>
bool Resolve(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_DYNAMIC_LIBRARY_H_
