#!/usr/bin/env python3
"""A compiler launcher that makes another build of the same sources cheap, and no less a proof that they
build: the source distribution, and the libraries that documents build.

An object of build/release is copied where the compiler would make the same one: its command is the
same word for word, and every file of the project that it read is among the sources of this build with
the same bytes, but for the names of the folders. Everything else is compiled.

  CMAKE_CXX_COMPILER_LAUNCHER=tests/install/reuse_object.py CMAKE_GENERATOR=Ninja cmake ...
"""

import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = SOURCE / "build/release"
HERE = pathlib.Path.cwd()  # the folder of this build


@functools.lru_cache(maxsize=None)
def here_source():
    """The sources of this build."""
    cache = (HERE / "CMakeCache.txt").read_text(encoding="utf-8")
    return pathlib.Path(re.search("^CMAKE_HOME_DIRECTORY:.*=(.*)", cache, re.MULTILINE)[1])


def to_release(text):
    return text.replace(str(HERE), str(BUILD)).replace(str(here_source()), str(SOURCE))


def ninja(tool, target):
    done = subprocess.run(["ninja", "-C", BUILD, "-t", tool, target], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def has_same_command(command, target):
    lines = ninja("commands", target)
    known = shlex.split(lines[-1]) if lines else []
    # Without the launcher of that build.
    return command[0] in known and known[known.index(command[0]) :] == [to_release(word) for word in command]


def is_same_file(path):
    """True if this file of the checkout is here, too."""
    if path.is_relative_to(BUILD):
        here = HERE / path.relative_to(BUILD)
    elif path.is_relative_to(SOURCE):
        here = here_source() / path.relative_to(SOURCE)
    else:  # of the system
        return True
    if not here.is_file():
        return False
    ours, theirs = here.read_bytes(), path.read_bytes()
    return ours == theirs or to_release(ours.decode(errors="replace")) == theirs.decode(errors="replace")


def has_same_files(target):
    lines = ninja("deps", target)
    if not lines or not lines[0].endswith("(VALID)"):
        return False
    paths = [pathlib.Path(os.path.normpath(BUILD / line.strip())) for line in lines[1:] if line]
    # A source that was changed since is not what the object was made from.
    made = (BUILD / target).stat().st_mtime_ns
    return all(path.is_file() and path.stat().st_mtime_ns <= made and is_same_file(path) for path in paths)


def main():
    command = sys.argv[1:]
    target = command[command.index("-o") + 1] if "-o" in command[:-1] else ""
    if target and has_same_command(command, target) and has_same_files(target):
        shutil.copyfile(BUILD / target, target)
        print(f"reused {target}", flush=True)
        return
    print(f"compiled {target}", flush=True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
