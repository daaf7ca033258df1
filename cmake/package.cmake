# `cpack -G DEB` in the build directory: qlora_*.deb with the program, libqlora-dev_*.deb with the
# library, and, where MPI was found, qlora-openmpi_*.deb with the plugin. Dependencies are those that dpkg-shlibdeps finds.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME qlora)
set(CPACK_PACKAGE_CONTACT "qlora.cpp developers <developers@qlora.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fine-tuning of language models with QLoRA")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program library)
if(TARGET qlora_mpi)
  list(APPEND CPACK_COMPONENTS_ALL openmpi)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_QLORA_VERSION_FILE ${PROJECT_BINARY_DIR}/src/version.cc)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_version.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/debian_files.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
if(QLORA_SYSROOT)  # cross-compiled (aarch64.cmake), with libraries that are not installed
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS
      ${QLORA_SYSROOT}/usr/lib/aarch64-linux-gnu ${QLORA_SYSROOT}/lib/aarch64-linux-gnu)
endif()

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME qlora)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
# For `qlora pull`, which opens libcurl at run time.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "libcurl4 | libcurl3-gnutls, ca-certificates")
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
"Holds a Hugging Face checkpoint in 4 bits (NF4), trains LoRA adapters on it,
and writes adapters that PEFT loads and GGUF files that llama.cpp runs.")

# A package of its own, so that the program needs no MPI library.
set(CPACK_DEBIAN_OPENMPI_PACKAGE_NAME qlora-openmpi)
set(CPACK_DEBIAN_OPENMPI_PACKAGE_SECTION science)
set(CPACK_DEBIAN_OPENMPI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_OPENMPI_PACKAGE_DEPENDS qlora)
set(CPACK_DEBIAN_OPENMPI_PACKAGE_RECOMMENDS openmpi-bin)
set(CPACK_DEBIAN_OPENMPI_DESCRIPTION
"Lets qlora train on several processes and machines, started by mpirun of
Open MPI or by srun.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libqlora-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
  "libfmt-dev, libhwy-dev, libpcre2-dev, libsnappy-dev, libutf8proc-dev, libzstd-dev, libssl-dev, nlohmann-json3-dev, pkg-config, zlib1g-dev")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION
"The static libraries and headers of qlora: NF4, a QLoRA layer, and the library
behind the program, for find_package(qlora) in CMake.")

# Packages hold the components alone, so the tests need not be built first.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
