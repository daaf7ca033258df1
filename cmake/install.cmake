# `cmake --install`: libraries, headers, the program, and the package that find_package(qlora) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qlora)
if(QLORA_PROGRAM)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/qlora DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
else()  # what qlora::nf4 and qlora::linear offer
  foreach(header context error linear nf4 nf4_compat tensor)
    install(FILES ${PROJECT_SOURCE_DIR}/include/qlora/${header}.h
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qlora)
  endforeach()
endif()
install(EXPORT qlora NAMESPACE qlora:: DESTINATION ${package_dir} FILE qlora-targets.cmake)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/qlora-config.cmake.in ${PROJECT_BINARY_DIR}/qlora-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/qlora-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/qlora-config.cmake
              ${PROJECT_BINARY_DIR}/qlora-config-version.cmake
        DESTINATION ${package_dir})
