"""What the sentences of a document name: files, commands, options. Each must exist."""

import functools
import glob
import re
import subprocess

_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@functools.lru_cache(maxsize=None)
def _help(programs, verb):
    words = [str(programs / "qlora"), "help"] + ([verb] if verb else [])
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


def unknown(programs, command):
    """The verb or options of a command, `qlora VERB ... --option`, that the program lacks."""
    found = re.search(r"(?<![\w/-])qlora ([a-z][a-z-]*)", command)
    if not found or found[1] in ("help", "version"):
        return []
    if not _help(programs, found[1]):
        return [f"qlora {found[1]}"]
    known = _known_options(programs, found[1])
    options = _options(command[found.end() :])
    return sorted(f"--{name}" for name in options if name not in known and name.removeprefix("no-") not in known)


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
            wrong = unknown(programs, span) if span.startswith("qlora ") else []
            if _missing_file(root, span):
                wrong.append(span)
            problems += [f"{name}:{number}: `{span}`: there is no {what}" for what in wrong]
        for link in _LINK.findall(line):
            if not re.match(r"[a-z]+:", link) and not (path.parent / link).exists():
                problems.append(f"{name}:{number}: there is no {link}")
    return problems
