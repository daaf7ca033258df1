"""The blocks of a Markdown document that are run or compared.

A block begins with ``` and a language. Comments on the lines before it say what is done with it:

  ```console                              commands after "$ ", each with its output; run in order
  <!-- not run: REASON --> ```console     commands that a test cannot run, without output
  <!-- slow: REASON --> ```console        run with --slow alone
  <!-- smoke: OPTION VALUE ... -->        run with these options added, or in the place of others, because
                                          it takes minutes at full size; numbers are not compared.
                                          FREE_PORT stands for a port that nobody uses
  <!-- needs: NAME, ... --> ```console    run where these modules of Python are installed, and the
                                          files exist whose names have a slash
  <!-- file: NAME --> ```LANGUAGE         a file that later commands read
  <!-- from: PATH --> ```LANGUAGE         an excerpt of a file of the repository; "..." stands for any lines
  ```text                                 neither commands nor code

<!-- figures of: PATH --> is followed by a table whose numbers all appear in that document.
<!-- run: COMMAND --> runs a command that readers need not see. A command without output in the
document is run, and its output is not compared. A command fails exactly where the document shows
"error:".
"""

import dataclasses
import itertools
import re
import shlex


class DocumentError(Exception):
    pass


@dataclasses.dataclass
class Command:
    text: str
    line: int  # of the document, from 1
    output: list  # lines of the document
    output_at: int  # index of the first of them in the document
    not_run: str = ""
    slow: str = ""
    smoke: str = ""
    needs: tuple = ()

    def must_fail(self):
        return any(line.startswith("error:") for line in self.output)


@dataclasses.dataclass
class File:
    name: str
    line: int
    text: str


@dataclasses.dataclass
class Excerpt:
    path: str
    line: int
    lines: list


@dataclasses.dataclass
class Figures:
    path: str
    line: int
    text: str


_DIRECTIVE = re.compile(r"<!-- (not run|slow|smoke|needs|file|from|figures of|run): (.*?) -->")


def smoke_form(text, options):
    """A command with `options`, "--steps 1 NAME=VALUE ARGUMENT": values replace its own, the rest is added."""
    if re.search("[|;&<>]", text):
        raise DocumentError(f"{text}: expected one program and its options before a smoke form")
    words, changes = shlex.split(text.replace("\\\n", " "), comments=True), shlex.split(options)
    while changes:
        name = changes.pop(0)
        if not name.startswith("-"):
            variable = re.match(r"\w+=", name)
            words = [name if variable and word.startswith(variable[0]) else word for word in words]
            words += [] if variable else [name]
            continue
        value = [changes.pop(0)] if changes and not changes[0].startswith("-") else []
        same = [i for i, word in enumerate(words) if word.replace("_", "-") == name.replace("_", "-")]
        if same:
            words[same[0] + 1 : same[0] + 1 + len(value)] = value
        else:
            words += [name, *value]
    return shlex.join(words)


def _names(text):
    return tuple(re.split(r",\s*", text)) if text else ()


def _commands(block, first, **options):
    """The commands of a console block whose first line has the index `first`."""
    commands, i = [], 0
    while i < len(block):
        if not block[i].startswith("$ "):
            raise DocumentError(f"line {first + i + 1}: expected a command after '$ '")
        begin = i
        words = [block[i][2:]]
        while words[-1].endswith("\\") and i + 1 < len(block):
            i += 1
            words.append(block[i])
        i += 1
        output_at = i
        while i < len(block) and not block[i].startswith("$ "):
            i += 1
        commands.append(
            Command("\n".join(words), first + begin + 1, block[output_at:i], first + output_at, **options)
        )
    return commands


def _parts_of_block(language, directives, block, first):
    if language == "console":
        options = {what.replace(" ", "_"): value for what, value in directives.items()}
        commands = _commands(block, first, **options | {"needs": _names(directives.get("needs"))})
        if "not run" in directives and any(command.output for command in commands):
            raise DocumentError(f"line {first}: nothing compares the output of commands that are not run")
        return commands
    if "file" in directives:
        return [File(directives["file"], first, "\n".join(block) + "\n")]
    if "from" in directives:
        return [Excerpt(directives["from"], first, block)]
    if language != "text":
        raise DocumentError(f"line {first}: expected 'file:' or 'from:' before a block of {language or 'text'}")
    if any(line.startswith(("$ ", "qlora ")) for line in block):
        raise DocumentError(f"line {first}: expected commands in a block of console")
    return []


def read(path):
    """The lines of a document, and its commands, files, excerpts and figures in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    parts, directives, i = [], {}, 0
    while i < len(lines):
        if lines[i].startswith("```"):
            end = next((k for k in range(i + 1, len(lines)) if lines[k] == "```"), None)
            if end is None:
                raise DocumentError(f"line {i + 1}: this block has no end")
            parts += _parts_of_block(lines[i][3:], directives, lines[i + 1 : end], i + 1)
            directives, i = {}, end + 1
            continue
        if re.match(r"    \s*(\$ |qlora |cmake |scripts/)", lines[i]):
            raise DocumentError(f"line {i + 1}: expected commands in a block of console")
        found = _DIRECTIVE.fullmatch(lines[i])
        if not found:
            directives = {}
        elif found[1] == "run":
            parts.append(Command(found[2], i + 1, [], i + 1, needs=_names(directives.get("needs"))))
        elif found[1] == "figures of":
            table = itertools.takewhile(lambda line: line.startswith("|"), lines[i + 1 :])
            parts.append(Figures(found[2], i + 1, "\n".join(table)))
        else:
            directives[found[1]] = found[2]
        i += 1
    return lines, parts
