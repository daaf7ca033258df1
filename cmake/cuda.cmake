# The CUDA toolkit: sets QLORA_HAS_CUDA. Included from the top file, whose directory the variables of
# a language belong to.
# OFF also leaves out the tests of the backend on a model of a GPU, which need no toolkit.
set(QLORA_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO: where the toolkit is found")
set(QLORA_HAS_CUDA OFF)
# Sanitizers do not know the code of a GPU; the host model of the tests does.
if(NOT QLORA_CUDA STREQUAL "OFF" AND NOT QLORA_SANITIZE)
  find_package(CUDAToolkit 12.4 QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    # nvcc is found also where it is not on the path.
    if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    # Cards of 8.6 and 8.9 run the machine code of 8.0; those of 10.x compile the PTX of 9.0, and later
    # ones than 12.0 that of 12.0, once, in the driver.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90 120)
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      if(QLORA_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${QLORA_CCACHE})
      endif()
      # CMake 3.25 does not know that nvcc 12 and later have C++20.
      if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
        list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
      endif()
      set(QLORA_HAS_CUDA ON)
    endif()
  endif()
endif()
if(QLORA_HAS_CUDA)
  message(STATUS "CUDA backend: built with nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
elseif(QLORA_CUDA STREQUAL "ON")
  message(FATAL_ERROR "QLORA_CUDA=ON needs the CUDA toolkit 12.4 or newer, and no sanitizers")
else()
  message(STATUS "CUDA backend: not built")
endif()
