"""The blocks of a Markdown document that are run or compared.

A block begins with ``` and a language. A comment on the line before it says what is done with it:

  ```console                              commands after "$ ", each with its output; run in order
  <!-- not run: REASON --> ```console     commands that a test cannot run
  <!-- slow: REASON --> ```console        run with --slow alone
  <!-- needs: MODULE, ... --> ```console  run where these modules of Python are installed
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


_DIRECTIVE = re.compile(r"<!-- (not run|slow|needs|file|from|figures of|run): (.*?) -->")


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


def _parts_of_block(language, directive, block, first):
    what, value = directive or ("", "")
    if language == "console":
        options = {what.replace(" ", "_"): value} if what in ("not run", "slow") else {}
        if what == "needs":
            options["needs"] = tuple(re.split(r",\s*", value))
        return _commands(block, first, **options)
    if what == "file":
        return [File(value, first, "\n".join(block) + "\n")]
    if what == "from":
        return [Excerpt(value, first, block)]
    if language != "text":
        raise DocumentError(f"line {first}: expected 'file:' or 'from:' before a block of {language or 'text'}")
    if any(line.startswith(("$ ", "qlora ")) for line in block):
        raise DocumentError(f"line {first}: expected commands in a block of console")
    return []


def read(path):
    """The lines of a document, and its commands, files, excerpts and figures in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    parts, directive, i = [], None, 0
    while i < len(lines):
        if lines[i].startswith("```"):
            end = next((k for k in range(i + 1, len(lines)) if lines[k] == "```"), None)
            if end is None:
                raise DocumentError(f"line {i + 1}: this block has no end")
            parts += _parts_of_block(lines[i][3:], directive, lines[i + 1 : end], i + 1)
            directive, i = None, end + 1
            continue
        if re.match(r"    \s*(\$ |qlora |cmake |scripts/)", lines[i]):
            raise DocumentError(f"line {i + 1}: expected commands in a block of console")
        found = _DIRECTIVE.fullmatch(lines[i])
        directive = found.groups() if found else None
        if found and found[1] == "run":
            parts.append(Command(found[2], i + 1, [], i + 1))
        if found and found[1] == "figures of":
            table = itertools.takewhile(lambda line: line.startswith("|"), lines[i + 1 :])
            parts.append(Figures(found[2], i + 1, "\n".join(table)))
        i += 1
    return lines, parts
