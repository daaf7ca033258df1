# Writes version.cc, which says the release and the commit that a build is made from.
#   cmake -DROOT=SOURCE_DIR -DOUTPUT=version.cc -P version.cmake
# In a checkout git knows both; in a file made by `git archive`, cmake/archive.txt does. Elsewhere the
# number of project() is all that is known. The file is written only when its text changes.
cmake_policy(VERSION 3.25)

set(text "")
if(EXISTS ${ROOT}/.git)
  execute_process(
    COMMAND git -C ${ROOT} describe --tags --match v[0-9]* --always --long --abbrev=12 --dirty
    OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT text)
  file(STRINGS ${ROOT}/cmake/archive.txt text REGEX "^(v[0-9.]+.*|[0-9a-f]+)$" LIMIT_COUNT 1)
endif()

file(STRINGS ${ROOT}/CMakeLists.txt project REGEX "^project\\(qlora VERSION " LIMIT_COUNT 1)
string(REGEX MATCH "[0-9][0-9.]*" version "${project}")
if(text MATCHES "^v([0-9.]+)-([0-9]+)-g([0-9a-f]+)(-dirty)?$")
  set(version ${CMAKE_MATCH_1})
  if(CMAKE_MATCH_2 GREATER 0)
    string(APPEND version "+${CMAKE_MATCH_2}")  # commits since the release
  endif()
  set(commit ${CMAKE_MATCH_3}${CMAKE_MATCH_4})
elseif(text MATCHES "^v([0-9.]+)$")
  set(version ${CMAKE_MATCH_1})
  set(commit "")
else()
  set(commit "${text}")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "base/version.h"

namespace qlora {

const char* Version() { return "@version@"; }
const char* Commit() { return "@commit@"; }

}  // namespace qlora
]])
