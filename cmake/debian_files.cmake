# Run by cpack before it makes the .deb of each component: what Debian's policy adds to the files of
# `cmake --install`.
file(GLOB staged ${CPACK_TEMPORARY_DIRECTORY}/*/usr)
foreach(usr ${staged})
  set(package qlora)
  if(EXISTS ${usr}/include/qlora)
    set(package libqlora-dev)
  elseif(EXISTS ${usr}/lib/qlora)
    set(package qlora-openmpi)
  endif()
  set(doc ${usr}/share/doc/${package})
  file(WRITE ${doc}/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: qlora.cpp

Files: *
Copyright: 2026 the authors of qlora.cpp
License: Apache-2.0
 On Debian systems, the full text of the license is in
 /usr/share/common-licenses/Apache-2.0.
")
  # One entry, dated by SOURCE_DATE_EPOCH, so that two runs make the same bytes.
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${doc}/changelog
"${package} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * See CHANGELOG.md in the source.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB texts ${usr}/share/man/man1/*.1 ${doc}/changelog)
  execute_process(COMMAND gzip -9nf ${texts} COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS ${usr}/share/zsh/site-functions)  # Debian's zsh looks there below /usr/local only
    file(RENAME ${usr}/share/zsh/site-functions ${usr}/share/zsh/vendor-completions)
  endif()
endforeach()
