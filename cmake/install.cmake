# What `cmake --install` installs beside the libraries: headers and the package that
# find_package(qlora) reads (component library), and the texts of the program (component program).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qlora)
if(QLORA_PROGRAM OR QLORA_PYTHON)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/qlora DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          ${qlora_library_component})
else()  # what qlora::nf4 and qlora::linear offer
  set(headers context error nf4 nf4_compat tensor)
  if(QLORA_HAS_BACKEND)
    list(APPEND headers linear)
  endif()
  foreach(header ${headers})
    install(FILES ${PROJECT_SOURCE_DIR}/include/qlora/${header}.h
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qlora ${qlora_library_component})
  endforeach()
endif()
install(EXPORT qlora NAMESPACE qlora:: DESTINATION ${package_dir} FILE qlora-targets.cmake
        ${qlora_library_component})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/qlora-config.cmake.in ${PROJECT_BINARY_DIR}/qlora-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/qlora-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/qlora-config.cmake
              ${PROJECT_BINARY_DIR}/qlora-config-version.cmake
        DESTINATION ${package_dir} ${qlora_library_component})

if(QLORA_PROGRAM)
  # What the program does not link: with it, all components can be installed after a build of the
  # program.
  add_dependencies(qlora qlora_linear)
  if(TARGET qlora_mpi)
    add_dependencies(qlora qlora_mpi)
  endif()
endif()

if(QLORA_PROGRAM)  # definitions of tasks, pages, and completions that the build printed beside the program
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/tasks DESTINATION ${CMAKE_INSTALL_DATADIR}/qlora
          COMPONENT program)
  set(texts ${PROJECT_BINARY_DIR}/share)
  install(DIRECTORY ${texts}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  install(FILES ${texts}/qlora.bash RENAME qlora COMPONENT program
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${texts}/_qlora COMPONENT program
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${texts}/qlora.fish COMPONENT program
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
