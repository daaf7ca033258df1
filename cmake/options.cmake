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

# qlora_floor(name SOURCES... DEPENDS ...): a static library of every .cc below the current folder.
function(qlora_floor name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ARG_EXCLUDE}")
  endif()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC qlora_options ${ARG_DEPENDS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE qlora_options ${ARG_DEPENDS})
  endif()
endfunction()
