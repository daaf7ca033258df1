# Flags that every target of the project compiles with. -Wno-restrict: g++ 12 warns of overlaps in
# std::string that cannot happen (GCC bug 105651).
add_library(qlora_options INTERFACE)
target_compile_options(qlora_options INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wno-psabi -Wno-restrict
  -fno-math-errno -ffp-contract=off)
target_include_directories(qlora_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
if(QLORA_SANITIZE)
  target_compile_options(qlora_options INTERFACE
    -fsanitize=${QLORA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(qlora_options INTERFACE -fsanitize=${QLORA_SANITIZE})
endif()

# qlora_floor(name DEPENDS ...): a static library of every .cc below the current folder. Installed, it
# is called qlora::<name without qlora_>, or qlora::EXPORT_NAME.
function(qlora_floor name)
  cmake_parse_arguments(ARG "" "EXPORT_NAME" "DEPENDS" ${ARGN})
  if(NOT ARG_EXPORT_NAME)
    string(REPLACE "qlora_" "" ARG_EXPORT_NAME ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_library(${name} STATIC ${sources})
  add_library(qlora::${ARG_EXPORT_NAME} ALIAS ${name})
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:qlora_options> ${ARG_DEPENDS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} INTERFACE $<INSTALL_INTERFACE:include>)
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${ARG_EXPORT_NAME})
  install(TARGETS ${name} EXPORT qlora ARCHIVE)
endfunction()
