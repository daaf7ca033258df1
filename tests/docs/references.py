"""What the sentences of a document name: files, commands, options. Each must exist."""

import functools
import glob
import json
import re
import subprocess
import sys

_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@functools.lru_cache(maxsize=None)
def _help(programs, verb):
    """The help of a verb of qlora, or of qlora-bench."""
    words = [str(programs / verb), "--help"] if verb == "qlora-bench" else [str(programs / "qlora"), "help", verb]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _options(text):
    """The options in a command or a help text, with dashes."""
    return {name.replace("_", "-") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}


@functools.lru_cache(maxsize=None)
def _known_options(programs, verb):
    text = _help(programs, verb)
    aliases = re.findall(r"\(also ([^)]*)\)", " ".join(text.split()))
    return _options(text) | {name.replace("_", "-") for names in aliases for name in names.split(", ")}


def _unknown_to_qlora(programs, command):
    found = re.search(r"(?<![\w/-])(?:qlora |(?=qlora-bench ))([a-z][a-z-]*)", command)
    if not found or found[1] in ("help", "version"):
        return []
    if not _help(programs, found[1]):
        return [f"qlora {found[1]}"]
    known = _known_options(programs, found[1])
    options = _options(command[found.end() :])
    return sorted(f"--{name}" for name in options if name not in known and name.removeprefix("no-") not in known)


@functools.lru_cache(maxsize=None)
def _text_of_script(path):
    """The help of a program in Python, the whole text of another."""
    if path.suffix == ".py":
        done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr
    return path.read_text(encoding="utf-8")


def _unknown_to_scripts(root, command):
    found = re.search(r"(?<![\w/])((?:scripts|bench|tools|tests)/[\w/-]+\.(?:sh|py|mjs))(.*)", command, re.DOTALL)
    if not found:
        return []
    if not (root / found[1]).is_file():
        return [found[1]]
    text = _text_of_script(root / found[1]).replace("_", "-")
    return sorted(f"--{name} of {found[1]}" for name in _options(found[2]) if not re.search(rf"\b{name}\b", text))


@functools.lru_cache(maxsize=None)
def _build_names(root):
    """The presets, the options of CMake and the packages that a build needs."""
    presets = json.loads((root / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
    cmake = "".join(path.read_text(encoding="utf-8") for path in [root / "CMakeLists.txt", *root.glob("cmake/*.cmake")])
    packages = (root / "scripts/dependencies.sh").read_text(encoding="utf-8")
    return ({preset["name"] for preset in presets}, set(re.findall(r"(?:option|set)\((QLORA_\w+)", cmake)),
            set(re.findall(r"[a-z0-9][a-z0-9+.-]+", packages)))


def _unknown_to_build(root, command):
    presets, options, packages = _build_names(root)
    wrong = [f"preset {name}" for name in re.findall(r"--preset ([\w-]+)", command) if name not in presets]
    wrong += [name for name in re.findall(r"-D(QLORA_\w+)", command) if name not in options]
    for names in re.findall(r"apt-get install ([^#|&]*)", command):
        words = names.replace("\\\n", " ").split()
        wrong += [f"{name} in scripts/dependencies.sh" for name in words
                  if re.match("[a-z]", name) and name not in packages]
    return wrong


def unknown(root, programs, command):
    """What a command names and the project lacks: verbs, scripts, their options, presets, packages."""
    return _unknown_to_qlora(programs, command) + _unknown_to_scripts(root, command) + _unknown_to_build(root, command)


def _missing_file(root, span):
    """True for the path of a file of the repository, or of src/, that is not there."""
    if not re.fullmatch(r"[\w*-][\w.*-]*/([\w.*/-]*[.*/][\w.*/-]*)?", span) or span.startswith("build/"):
        return False
    bases = [base for base in (root, root / "src") if (base / span.split("/")[0]).is_dir()]
    return bases != [] and not any(glob.glob(f"{base / span}{end}") for base in bases for end in ("", ".*"))


def check(root, path, lines, programs):
    """One line of text for each thing that does not exist."""
    problems, inside = [], False
    name = path.relative_to(root)
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            inside = not inside
        if inside:
            continue
        for span in _SPAN.findall(line):
            is_command = re.match(r"(qlora|qlora-bench|cmake|(scripts|bench|tools|tests)/\S+\.\w+) ", span)
            wrong = unknown(root, programs, span) if is_command else []
            if _missing_file(root, span):
                wrong.append(span)
            problems += [f"{name}:{number}: `{span}`: there is no {what}" for what in wrong]
        for link in _LINK.findall(line):
            if not re.match(r"[a-z]+:", link) and not (path.parent / link).exists():
                problems.append(f"{name}:{number}: there is no {link}")
    return problems
