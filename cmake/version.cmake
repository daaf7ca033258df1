# Writes version.cc, which says the release and the commit that a build is made from.
#   cmake -DROOT=SOURCE_DIR -DOUTPUT=version.cc -P version.cmake
# In a checkout git knows both; in a file made by `git archive`, cmake/archive.txt does. Elsewhere the
# number of project() is all that is known. The file is written only when its text changes.
# A release is a tag v1.2.3; 1.2.3+4 is 4 commits later. Debian, pip and `sort -V` sort these numbers
# by time. Other tags, such as v1.2.3-rc1, name no release.
cmake_policy(VERSION 3.25)

set(text "")
if(EXISTS ${ROOT}/.git)
  execute_process(
    # The same tags as in archive.txt and scripts/check_release.sh.
    COMMAND git -C ${ROOT} describe --tags --match "v[0-9]*" --exclude "v*[!0-9.]*" --always --long
            --abbrev=12 --dirty
    OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT text)
  file(STRINGS ${ROOT}/cmake/archive.txt lines REGEX "^(v[0-9.]+.*|[0-9a-f]+)$")
  list(JOIN lines "-0-g" text)  # v1.2.3 and the commit, as git describes it
endif()

file(STRINGS ${ROOT}/CMakeLists.txt project REGEX "^project\\(qlora VERSION " LIMIT_COUNT 1)
string(REGEX MATCH "[0-9][0-9.]*" version "${project}")
set(commit "")
if(text MATCHES "^v([0-9.]+)-([0-9]+)-g([0-9a-f]+)(-dirty)?")
  set(version ${CMAKE_MATCH_1})
  if(CMAKE_MATCH_2 GREATER 0)
    string(APPEND version "+${CMAKE_MATCH_2}")
  endif()
  set(commit ${CMAKE_MATCH_3})
  set(dirty ${CMAKE_MATCH_4})
elseif(text MATCHES "^v([0-9.]+)$")
  set(version ${CMAKE_MATCH_1})
elseif(text MATCHES "^([0-9a-f]+)(-dirty)?$")
  set(commit ${CMAKE_MATCH_1})
  set(dirty ${CMAKE_MATCH_2})
endif()
string(SUBSTRING "${commit}" 0 12 commit)
string(APPEND commit "${dirty}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "base/version.h"

namespace qlora {

const char* Version() { return "@version@"; }
const char* Commit() { return "@commit@"; }

}  // namespace qlora
]])
