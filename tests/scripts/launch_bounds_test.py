#!/usr/bin/env python3
"""Every launch of a kernel asks for blocks of the size in its __launch_bounds__: a launch of more
threads fails on every GPU, and the model of a GPU does not know the bounds. Compared as text, with
the constants of the file in the place of their names.

  launch_bounds_test.py SOURCE_DIR
"""
import pathlib
import re
import sys


def arguments(text, at):
    """The arguments of the call whose opening parenthesis is in front of `at`, and its end."""
    depth, found, begin = 0, [], at
    for i in range(at, len(text)):
        c = text[i]
        if c in "([{" or (c == "<" and re.match(r"\w<[\w ]+[>,]", text[i - 1:])):
            depth += 1
        elif c == "," and depth == 0:
            found.append(text[begin:i].strip())
            begin = i + 1
        elif c in ")]}" or (c == ">" and text[i - 1] not in "- "):
            depth -= 1
            if depth < 0:
                return found + [text[begin:i].strip()], i + 1
    raise ValueError("a call without an end: " + text[at:at + 80])


def sizes(text, expression):
    """What the expression can mean, with the constants of the file."""
    expression = re.sub(r"\w+::|\s", "", expression)
    constants = re.findall(r"constexpr int (\w+) = ([^;{}]+);", text)
    meanings = [value for name, value in constants if name == expression]
    return {size for value in meanings for size in sizes(text, value)} or {expression}


def problems(path):
    text = re.sub(r"//.*", "", path.read_text())
    bounds = {}
    for kernel in re.finditer(r"__global__\s", text):
        bound = re.match(r"void\s+__launch_bounds__\(", text[kernel.end():])
        if not bound:
            yield "a kernel without bounds: " + text[kernel.end():kernel.end() + 60]
            continue
        limits, end = arguments(text, kernel.end() + bound.end())
        bounds[re.match(r"\s*(\w+)\(", text[end:])[1]] = limits[0]
    for launch in re.finditer(r"\bLaunch\(", text):
        call, _ = arguments(text, launch.end())
        kernels = re.findall(r"\w+Kernel\b", call[1])
        if not kernels:  # a variable
            kernels = re.findall(r"\w+Kernel\b", re.search(r"\b%s =([^;]*);" % call[1], text)[1])
        for kernel in kernels or [call[1]]:
            if sizes(text, call[3]) != sizes(text, bounds.get(kernel, "none")):
                yield "%s: launched with %s threads, bounds %s" % (kernel, call[3], bounds.get(kernel))


def main():
    files = sorted(pathlib.Path(sys.argv[1], "src/backend/cuda").glob("*.cu"))
    launches = sum(path.read_text().count(" Launch(") for path in files)
    found = ["%s: %s" % (path.name, problem) for path in files for problem in problems(path)]
    for problem in found:
        print(problem)
    print("%d launches, %d errors" % (launches, len(found)))
    return bool(found) or launches == 0


if __name__ == "__main__":
    sys.exit(main())
