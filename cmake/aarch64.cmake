# Toolchain file: builds for aarch64 on another processor, with Debian's cross compiler
# (g++-aarch64-linux-gnu). Libraries are those of QLORA_SYSROOT, which scripts/aarch64_sysroot.sh makes;
# without it, those of Debian's foreign architecture arm64. What a build runs of its own programs, and
# CTest, runs in qemu-user where that is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(QLORA_SYSROOT "" CACHE PATH "A folder with Debian's libraries for aarch64; empty: they are installed")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QLORA_SYSROOT)
set(CMAKE_SYSROOT "${QLORA_SYSROOT}")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${QLORA_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
    "${QLORA_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${QLORA_SYSROOT}/usr/share/pkgconfig")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
if(QLORA_SYSROOT)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
endif()

find_program(QLORA_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
if(QLORA_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${QLORA_QEMU})
  if(QLORA_SYSROOT)
    list(APPEND CMAKE_CROSSCOMPILING_EMULATOR -L ${QLORA_SYSROOT})
  endif()
endif()
