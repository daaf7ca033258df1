#!/usr/bin/env python3
"""Runs every command of the documents and compares the output with what they print.

  tests/docs/run_documents.py [DOCUMENT...] [--bin FOLDER] [--share I/N] [--slow] [--update]

Without names: all documents of the repository. Commands run in a scratch folder per document, which
links to the files of the repository; paths to it appear as /home/me. documents.py describes the
blocks that are run, matching.py how output is compared. --update writes the output of this run into
the documents where it differs.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import documents
import local_hub
import matching
import references

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = "/home/me"
SECONDS = 1200  # a command that takes longer has failed, even on a busy machine


def all_documents():
    patterns = ("*.md", "docs/**/*.md", "examples/*.md", "tests/golden/**/*.md")
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


HUB = local_hub.start()


HELD = []  # bound as long as this program runs, so that the system gives their ports to nobody else


def free_port():
    HELD.append(socket.socket())
    HELD[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    HELD[-1].bind(("127.0.0.1", 0))
    return HELD[-1].getsockname()[1]


def environment(programs, home):
    """Kernels, threads and settings are the same on every machine, so that results are, too."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {
        "PATH": f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "HF_ENDPOINT": HUB,
        "QLORA_TARGET": "avx2",
        "OMP_NUM_THREADS": "2",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Builds of other parts take the objects of build/release where these would be the same.
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_CXX_COMPILER_LAUNCHER": str(ROOT / "tests/install/reuse_object.py"),
    }


class DocumentRun:
    """The commands of one document, and what was found wrong with it."""

    def __init__(self, path, programs, slow):
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.programs = programs
        self.slow = slow
        self.lines, self.parts = documents.read(path)
        self.problems = []
        self.not_run = []  # (line, command, reason)
        self.changes = []  # (command, its new output)
        self.count = 0

    def fail(self, line, text):
        self.problems.append(f"{self.name}:{line}: {text}")

    def run(self):
        with tempfile.TemporaryDirectory(prefix="documents-") as folder:
            self.home = pathlib.Path(folder).resolve()
            for entry in ROOT.iterdir():
                if entry.name != "build" and not entry.name.startswith("."):
                    (self.home / entry.name).symlink_to(entry)
            (self.home / "build").mkdir()
            (self.home / "build/release").symlink_to(self.programs.parent)
            for part in self.parts:
                if isinstance(part, documents.File):
                    (self.home / part.name).write_text(part.text, encoding="utf-8")
                elif isinstance(part, documents.Excerpt):
                    self.check_excerpt(part)
                elif isinstance(part, documents.Figures):
                    self.check_figures(part)
                else:
                    self.run_command(part)

    def check_excerpt(self, part):
        path = ROOT / part.path
        rest = path.read_text(encoding="utf-8") if path.is_file() else ""
        for piece in re.split(r"^ *\.\.\.\n", "\n".join(part.lines) + "\n", flags=re.MULTILINE):
            at = rest.find(piece)
            if at < 0:
                return self.fail(part.line, f"{part.path} does not contain\n{piece}")
            rest = rest[at + len(piece) :]

    def check_figures(self, part):
        known = matching.numbers((ROOT / part.path).read_text(encoding="utf-8"))
        for number in sorted(matching.numbers(part.text) - known):
            self.fail(part.line, f"{part.path} does not contain {number}")

    def reason_not_to_run(self, command):
        if command.not_run:
            return command.not_run
        if command.slow and not self.slow:
            return f"--slow: {command.slow}"
        missing = [name for name in command.needs if not (
            (ROOT / name).exists() if "/" in name else importlib.util.find_spec(name))]
        return f"there is no {', '.join(missing)} here" if missing else ""

    def run_command(self, command):
        if reason := self.reason_not_to_run(command):
            self.not_run.append((command.line, command.text, reason))
            for what in references.unknown(ROOT, self.programs, command.text):
                self.fail(command.line, f"{command.text}\n  there is no {what}")
            return
        self.count += 1
        text = command.text
        if command.smoke:
            text = documents.smoke_form(text, command.smoke.replace("FREE_PORT", str(free_port())))
        begin = time.monotonic()
        try:
            done = subprocess.run(
                ["bash", "-c", text], cwd=self.home, env=environment(self.programs, self.home),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return self.fail(command.line, f"{text}\n  takes more than {SECONDS} s")
        seconds = time.monotonic() - begin
        output = done.stdout.decode(errors="replace").replace(str(self.home), HOME).rstrip("\n")
        found = output.splitlines()
        if seconds > 5:
            print(f"{self.name}:{command.line}: {seconds:.0f} s: {text.splitlines()[0]}")
        if (done.returncode != 0) != command.must_fail():
            self.fail(command.line, f"{text}\n  exit code {done.returncode}\n{output}")
        elif command.output:
            self.compare(command, found)

    def compare(self, command, found):
        shown = command.output
        if command.smoke:
            shown, found = ([matching.without_figures(line) for line in lines] for lines in (shown, found))
        difference = matching.align(shown, found)
        if all(mark == " " for mark, _ in difference):
            return
        text = "\n".join(f"  {mark} {line}" for mark, line in difference)
        self.fail(command.line, f"{command.text}\n{text}")
        if not command.smoke:
            self.changes.append((command, [line for mark, line in difference if mark != "-"]))

    def update(self):
        for command, output in reversed(self.changes):
            self.lines[command.output_at : command.output_at + len(command.output)] = output
        self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")


def check(path, arguments):
    """The run of a document, updated if that was asked for."""
    run = DocumentRun(path, arguments.bin, arguments.slow)
    begin = time.monotonic()
    run.run()
    if path.name != "CHANGELOG.md":  # which also names what has left
        run.problems += references.check(ROOT, path, run.lines, arguments.bin)
    if arguments.update and run.changes:
        run.update()
        print(f"{run.name}: {len(run.changes)} outputs replaced")
    print(f"{run.name}: {run.count} commands in {time.monotonic() - begin:.1f} s")
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", nargs="*", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the program")
    parser.add_argument("--share", default="1/1", help="I/N: every Nth document, from the Ith on")
    parser.add_argument("--slow", action="store_true", help="run the blocks that take minutes as well")
    parser.add_argument("--update", action="store_true", help="write the output into the documents")
    arguments = parser.parse_args()
    if not (arguments.bin / "qlora").is_file():
        sys.exit(f"{arguments.bin}: there is no program qlora; build it, or name its folder with --bin")
    arguments.bin = arguments.bin.resolve()
    first, step = map(int, arguments.share.split("/"))
    paths = ([path.resolve() for path in arguments.documents] or all_documents())[first - 1 :: step]
    try:
        runs = [check(path, arguments) for path in paths]
    except documents.DocumentError as error:
        sys.exit(str(error))
    print("not run:")
    for run in runs:
        for line, command, reason in run.not_run:
            print(f"  {run.name}:{line}: {command.splitlines()[0]}  ({reason})")
    problems = [problem for run in runs for problem in run.problems]
    print(*problems, f"{len(problems)} problems", sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
