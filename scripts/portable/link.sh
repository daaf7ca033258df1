# Sourced by package.sh: links programs and modules again, from the objects of a build, so that
# they run on other distributions: against the glibc of Debian 11, with every other library static.
# Debian has no static fmt and Highway, so these are compiled here, the latter from Debian's source.
#   machine     the processor that the build is for
#   preset      of the build
#   cross       what the names of compilers begin with: nothing, or aarch64-linux-gnu-
#   libraries   the root of Debian's libraries for the processor: nothing, or a folder
portable=$PWD/build/portable${cross:+-$machine}
sysroot=$portable/sysroot
triplet=$machine-linux-gnu
multiarch=usr/lib/$triplet

# Debian's name of the processor.
debian_name() { if [ "$machine" = x86_64 ]; then echo amd64; else echo arm64; fi; }

# prepare_portable: downloads and compiles what is missing. Fails without Debian's mirror.
prepare_portable() {
  [ -e "$portable/lib/libhwy.a" ] && return
  local mirror key apt=$portable/apt options
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' | grep '/debian/*$' | head -1)
  key=$(dpkg -L debian-archive-keyring | grep '/debian-archive-keyring.gpg$' | head -1)
  rm -rf "$portable"
  mkdir -p "$apt"/lists/partial "$apt"/archives/partial "$sysroot" "$portable/lib"
  : >"$apt/status"
  cat >"$apt/sources.list" <<LIST
deb [signed-by=$key] $mirror bullseye main
deb-src [signed-by=$key] $mirror bookworm main
LIST
  options=(-q -o APT::Architecture="$(debian_name)" -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt")
  apt-get "${options[@]}" update || return 1
  (cd "$apt" && apt-get "${options[@]}" download libc6 libc6-dev linux-libc-dev libgcc-s1) || return 1
  (cd "$apt" && apt-get "${options[@]}" source highway) || return 1
  for package in "$apt"/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  # Absolute links would leave the sysroot.
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot$(readlink "$link")")" "$link"
  done

  (
    cd "$portable"
    "${cross}gcc" -O2 -fPIC -fvisibility=hidden --sysroot="$sysroot" -c "$root/scripts/portable/old_glibc.c"
    "${cross}g++" -O2 -fPIC -std=c++20 ${libraries:+--sysroot="$libraries"} \
      -c "$root/scripts/portable/static_fmt.cc" -o fmt.o
    "${cross}ar" rc lib/libfmt.a fmt.o
    cd apt/highway-*/
    for name in targets per_target; do
      "${cross}g++" -O2 -fPIC -DHWY_STATIC_DEFINE -I. -c hwy/$name.cc -o "$portable/$name.o"
    done
    cd "$portable"
    "${cross}ar" rc lib/libhwy.a targets.o per_target.o
  )
}

# needed_by LIBRARY: the static libraries that a static library needs besides; empty for most.
needed_by() {
  case $1 in
    libedit.a) echo libtinfo.a libbsd.a libmd.a ;;
  esac
}

# link_portable TARGET OUTPUT: the link command of the build, with libX.so replaced by libX.a.
link_portable() {
  local command words=() word name out
  command=$(ninja -C "build/$preset" -t commands "$1" | tail -1)
  command=${command#: && }
  eval "words=(${command%% && *})"
  local arguments=() skip=
  for word in "${words[@]}"; do
    if [ -n "$skip" ]; then
      skip=
    elif [ "$word" = -o ]; then
      skip=1
    elif [[ $word == /*.so* ]]; then
      name=$(basename "${word%%.so*}").a
      if [ -e "$portable/lib/$name" ]; then
        arguments+=("$portable/lib/$name")
      elif [ -e "$libraries/$multiarch/$name" ]; then
        arguments+=("$libraries/$multiarch/$name")
      else
        echo "$1 links $word, and there is no static $name" >&2
        return 1
      fi
      for name in $(needed_by "$name"); do arguments+=("$libraries/$multiarch/$name"); done
    else
      arguments+=("$word")
    fi
  done
  out=$(realpath -m "$2")
  mkdir -p "$(dirname "$out")"
  (cd "build/$preset" && "${arguments[@]}" "$portable/old_glibc.o" -o "$out" --sysroot="$sysroot" \
    -B"$sysroot/$multiarch" -L"$sysroot/$multiarch" -L"$sysroot/lib/$triplet" \
    -static-libstdc++ -ldl -pthread -s -Wl,--gc-sections -Wl,--exclude-libs,ALL \
    -Wl,--wrap=exp,--wrap=log,--wrap=pow)
}

# check_portable FILE: nothing newer than glibc 2.28, and no library but glibc's and libgcc_s.
check_portable() {
  local version others
  version=$("${cross}objdump" -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -1)
  others=$(readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
    grep -vxE 'lib(c|m|dl|rt|pthread|gcc_s)\.so\.[0-9]+|ld-linux-(x86-64|aarch64)\.so\.[12]' || true)
  if [ "$(printf '%s\n2.28\n' "$version" | sort -V | tail -1)" != 2.28 ] || [ -n "$others" ]; then
    echo "$1 needs glibc $version and $others; expected at most 2.28 and nothing else" >&2
    return 1
  fi
  echo "$(basename "$1") needs glibc $version and nothing else"
}
