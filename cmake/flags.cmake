# Flags that every target of the project compiles with. -Wno-restrict: g++ 12 warns of overlaps in
# std::string that cannot happen (GCC bug 105651). Messages of assertions name files below the root, so
# that ccache finds objects of a clone in another folder.
add_library(qlora_flags INTERFACE)
target_compile_options(qlora_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;\
-Werror;-Wshadow;-Wno-psabi;$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>;-fno-math-errno;\
-ffp-contract=off;$<$<NOT:$<CONFIG:Release>>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>>")
target_include_directories(qlora_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
set(QLORA_ARM OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(QLORA_ARM ON)
elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  message(FATAL_ERROR "qlora has kernels for x86-64 and aarch64, not for ${CMAKE_SYSTEM_PROCESSOR}")
endif()
if(QLORA_ARM)
  # Highway's choice at run time is among vectors that we have no use for, and wants AES for NEON. Characters
  # have a sign, as on x86-64.
  target_compile_definitions(qlora_flags INTERFACE HWY_COMPILE_ONLY_STATIC)
  target_compile_options(qlora_flags INTERFACE -fsigned-char)
endif()
# Libraries and programs of the product; tests only link what sanitizers need. Loops that a pragma
# unrolls stay loops, because each of their accesses is checked: unrolled, the kernels of products take
# four times as long to compile and run no faster. Of the checks of undefined behaviour, those of null
# pointers and of the arithmetic of pointers are left to the address sanitizer, which checks the accesses,
# and those of dynamic types are left out: together they take up to a fifth of a unit's time.
add_library(qlora_instrumented INTERFACE)
if(QLORA_SANITIZE)
  target_compile_options(qlora_instrumented INTERFACE
    -fsanitize=${QLORA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:Clang>:SHELL:-mllvm -pragma-unroll-threshold=0 -Wno-pass-failed>)
  if(QLORA_SANITIZE MATCHES "undefined")
    target_compile_options(qlora_instrumented INTERFACE -fno-sanitize=null,pointer-overflow,vptr)
  endif()
  target_link_options(qlora_flags INTERFACE -fsanitize=${QLORA_SANITIZE})
endif()

# What sources with code for several instruction sets have.
set(qlora_kernels "foreach_target.h|HWY_PUSH_ATTRIBUTES")

# qlora_unity(target [size]): with QLORA_UNITY, compiles the sources of a target in units of up to 24, or
# up to `size` without sanitizers: most of the time of a source goes into headers and templates, which a
# unit compiles once. In one unit anonymous namespaces are one namespace, so sources that declare the same
# name there are put into different units. Sources with code for several instruction sets stay alone.
function(qlora_unity target)
  if(NOT QLORA_UNITY)
    return()
  endif()
  set(size 24)
  if(ARGN AND NOT QLORA_SANITIZE)
    set(size ${ARGN})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    if(NOT path MATCHES "^${PROJECT_SOURCE_DIR}/[a-z].*[.]cc$" OR NOT EXISTS ${path})
      continue()
    endif()
    file(READ ${path} text)
    if(text MATCHES ${qlora_kernels})
      continue()
    endif()
    qlora_private_names(names "${text}" ${source})
    # The first unit that has room and none of the names in another meaning.
    set(place 0)
    while(TRUE)
      set(fits TRUE)
      list(LENGTH members_${place} count)
      if(count GREATER_EQUAL size)
        set(fits FALSE)
      endif()
      foreach(name ${names})
        if(DEFINED meaning_${place}_${name} AND NOT meaning_${place}_${name} STREQUAL meaning_${name})
          set(fits FALSE)
        endif()
      endforeach()
      if(fits)
        break()
      endif()
      math(EXPR place "${place} + 1")
    endwhile()
    list(APPEND members_${place} ${source})
    foreach(name ${names})
      set(meaning_${place}_${name} "${meaning_${name}}")
    endforeach()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${place})
  endforeach()
endfunction()

# The names that a source declares in anonymous namespaces: functions, types and constants, which begin a
# line there. meaning_<name> becomes the line of an alias or a using-declaration, which a unit may repeat,
# and the source for all other names, which it may not.
function(qlora_private_names out text source)
  string(REGEX REPLACE "[][;]" "," text "${text}")
  string(REPLACE "\nusing ::" "\nusing " text "${text}")
  set(names)
  if(text MATCHES "\nnamespace {(.*)\n}  // namespace\n")
    string(REGEX MATCHALL "\n[A-Za-z_][^\n]*" lines "${CMAKE_MATCH_1}")
    foreach(line ${lines})
      if(line MATCHES "^\n(using|namespace) ([A-Za-z0-9_]+) =")
        set(meaning "${line}")
      elseif(line MATCHES "^\n(using) .*::([A-Za-z0-9_]+),$")
        set(meaning "${line}")
      elseif(line MATCHES "^\n(class|struct|enum class|enum) ([A-Za-z0-9_]+)")
        set(meaning ${source})
      elseif(line MATCHES "([ *&])([A-Za-z0-9_]+)(\\(|{| =|,)")
        set(meaning ${source})
      else()
        continue()
      endif()
      list(APPEND names ${CMAKE_MATCH_2})
      set(meaning_${CMAKE_MATCH_2} "${meaning}" PARENT_SCOPE)
    endforeach()
  endif()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

# qlora_cold(target HOT_SOURCES...): most of the time of a build goes into optimising code that runs
# once per command, file or step. Without sanitizers the sources of such a target are compiled with -O1,
# in about three quarters of the time, except those that run once per byte, weight or token. In
# sanitized builds these are compiled with -O1, and the rest with -O0, in half the time.
function(qlora_cold target)
  set(cold $<$<NOT:$<CONFIG:Debug>>:-O1>)
  set(hot $<$<NOT:$<CONFIG:Debug>>:-O3>)
  if(QLORA_SANITIZE)
    set(cold -O0)
    set(hot -O1)
  endif()
  foreach(source ${ARGN})
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
      message(FATAL_ERROR "qlora_cold: ${CMAKE_CURRENT_SOURCE_DIR} has no ${source}")
    endif()
  endforeach()
  target_compile_options(${target} PRIVATE
    ${cold} $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<BOOL:${QLORA_FUZZERS}>:-fsanitize=fuzzer-no-link>)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS ${hot})
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
