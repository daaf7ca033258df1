# Flags that every target of the project compiles with. -Wno-restrict: g++ 12 warns of overlaps in
# std::string that cannot happen (GCC bug 105651).
add_library(qlora_flags INTERFACE)
target_compile_options(qlora_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;\
-Werror;-Wshadow;-Wno-psabi;$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>;-fno-math-errno;\
-ffp-contract=off>")
target_include_directories(qlora_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
# Libraries and programs of the product; tests only link what sanitizers need. Loops that a pragma
# unrolls stay loops, because each of their accesses is checked: unrolled, the kernels of products take
# four times as long to compile and run no faster.
add_library(qlora_instrumented INTERFACE)
if(QLORA_SANITIZE)
  target_compile_options(qlora_instrumented INTERFACE
    -fsanitize=${QLORA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:Clang>:SHELL:-mllvm -pragma-unroll-threshold=0 -Wno-pass-failed>)
  target_link_options(qlora_flags INTERFACE -fsanitize=${QLORA_SANITIZE})
endif()

# qlora_unit_size(target size): compiles `size` sources of a target as one unit, or 24 in sanitized
# builds: a unit compiles the templates that its sources share once, and sanitizers make them large.
function(qlora_unit_size target size)
  if(QLORA_SANITIZE)
    set(size 24)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${QLORA_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# qlora_unity(target): compiles the sources of a target in units of eight, because most of the time of
# a source goes into its headers. Sources with code for several instruction sets stay alone.
# -DQLORA_UNITY=OFF compiles every source alone and without precompiled headers, which finds missing
# includes.
function(qlora_unity target)
  qlora_unit_size(${target} 8)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    if(NOT source MATCHES "^${PROJECT_BINARY_DIR}")
      file(STRINGS ${source} targets REGEX "foreach_target.h|HWY_PUSH_ATTRIBUTES" LIMIT_COUNT 1)
      if(targets)
        set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
    endif()
  endforeach()
endfunction()

# qlora_cold(target HOT_SOURCES...): most of the time of a build goes into optimising code that runs
# once per command, file or step. In a release the sources of such a target are compiled with -O1,
# in about three quarters of the time, except those that run once per byte, weight or token. In
# sanitized builds the floors above the parsers are compiled with -O0, in half the time; the parsers
# stay at -O1, because the fuzzers try as many inputs as there is time for. Targets with the same
# flags share one precompiled header.
set(qlora_parsers qlora_io qlora_gguf qlora_jinja qlora_parquet qlora_records qlora_prompt qlora_data)
function(qlora_cold target)
  set(cold $<$<CONFIG:Release>:-O1>)
  set(hot $<$<CONFIG:Release>:-O3>)
  set(header_of qlora_io)  # the first target with these flags
  if(QLORA_SANITIZE AND NOT target IN_LIST qlora_parsers)
    set(cold -O0)
    set(hot -O1)
    set(header_of qlora_hub)
  endif()
  target_compile_options(${target} PRIVATE
    ${cold} $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<BOOL:${QLORA_FUZZERS}>:-fsanitize=fuzzer-no-link>)
  set_source_files_properties(${ARGN} PROPERTIES
    SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS ${hot})
  if(QLORA_UNITY AND target STREQUAL header_of)
    target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/pch.h)
  elseif(QLORA_UNITY)
    target_precompile_headers(${target} REUSE_FROM ${header_of})
  endif()
endfunction()

# `cmake --install` installs the program, and the library with `--component library`; without the
# program, the library.
set(qlora_library_component COMPONENT library)
if(QLORA_PROGRAM)
  list(APPEND qlora_library_component EXCLUDE_FROM_ALL)
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
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:qlora_flags> ${ARG_DEPENDS}
                                PRIVATE $<BUILD_INTERFACE:qlora_instrumented>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} INTERFACE $<INSTALL_INTERFACE:include>)
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${ARG_EXPORT_NAME})
  qlora_unity(${name})
  install(TARGETS ${name} EXPORT qlora ARCHIVE ${qlora_library_component})
endfunction()
