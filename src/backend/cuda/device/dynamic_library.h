// Libraries of NVIDIA that are loaded when they are asked for: they are large, and a program that
// runs on the CPU does without them.
#ifndef QLORA_BACKEND_CUDA_DEVICE_DYNAMIC_LIBRARY_H_
#define QLORA_BACKEND_CUDA_DEVICE_DYNAMIC_LIBRARY_H_

#include <dlfcn.h>

#include <array>
#include <string>

namespace qlora::cuda {

// The handle of the library `name`, looked for where the loader does and in the toolkit's folder;
// it stays loaded. Null where the library is not found.
inline void* OpenLibrary(const std::string& name) {
  const std::array<std::string, 2> places = {name, "/usr/local/cuda/lib64/" + name};
  void* handle = nullptr;
  for (const std::string& place : places) {
    if (handle == nullptr) handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  return handle;
}

// False where the library has no function of that name.
template <typename Function>
bool Resolve(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_DYNAMIC_LIBRARY_H_
