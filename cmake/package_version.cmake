# Read by cpack before it makes packages, whose version is the one that version.cmake wrote into the
# program: project() has the number of the last release or of the next one, but no commits.
file(STRINGS ${CPACK_QLORA_VERSION_FILE} line REGEX "Version\\(\\)")
string(REGEX MATCH "[0-9][0-9.+]*" CPACK_PACKAGE_VERSION "${line}")
