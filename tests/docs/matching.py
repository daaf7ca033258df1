"""How the output that a document shows is compared with the output of a run.

A line of a document stands for itself, with these exceptions:

  ...            alone on a line: any lines; within a line: any text
  white space    any white space, because columns move with the width of numbers
  time, speed    any number with such a unit (8.3 s, 5120 tok/s), or behind a name of time, speed or
                 measured memory (seconds=8.3, "elapsed":0.01, memory=45MiB),
                 and behind limit_share
  size           with a unit (1.2 MiB): at most twice or half as large
  version, hash  any version (0.2.0+3), any hash (8442cfd4498f)
  count          a number without a decimal point: exactly this number
  decimal        a loss and the like: within 1 %, or one unit of its last digit
"""

import re

_NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
_TIMES = r"(?:[a-zA-Z]+/s|ns|us|ms|s|min|h)(?!\w)"
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE = rf"(?:{'|'.join(_SIZES)})(?!\w)"
_MEASURED = r'\w*(?:second|elapsed|runtime|memory|limit_share)\w*"?\s*[=:]?\s*'

# What a line of a document consists of, the first that fits.
_TOKEN = re.compile(
    rf"""(?P<anything>\.\.\.)
       | (?P<measured>(?<!\w){_MEASURED}{_NUMBER}(?:\s+{_NUMBER})*)
       | (?P<hash>(?<!\w)(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{{7,64}}(?!\w))
       | (?P<version>(?<![\w.])\d+\.\d+\.\d+(?:\+\d+)?)
       | (?P<time>(?<![\w.]){_NUMBER}\s*{_TIMES})
       | (?P<size>(?<![\w.]){_NUMBER}\s*{_SIZE})
       | (?P<number>(?<![\w.]){_NUMBER})
       | (?P<space>\s+)
       | (?P<text>\w+|.)""",
    re.VERBOSE,
)


def numbers(text):
    """The numbers of a text, as they are written."""
    return set(re.findall(rf"(?<![\w.]){_NUMBER}", text))


def without_figures(text):
    """The text with 0 in the place of every number, also of those in names like 4096x4096."""
    return re.sub(r"\d+(?:[.,]\d+)*", "0", text)


def _value(text):
    return float(text.replace(",", ""))


def _same_number(shown, found):
    if not re.search(r"[.e]", shown):
        return _value(shown) == _value(found) and "." not in found
    digits = re.search(r"\.(\d+)", shown)
    exponent = re.search(r"e(.*)", shown)
    unit = 10.0 ** ((int(exponent[1]) if exponent else 0) - (len(digits[1]) if digits else 0))
    allowed = max(0.01 * abs(_value(shown)), 1.001 * unit)
    return abs(_value(shown) - _value(found)) <= allowed


def _bytes(text):
    number, unit = re.fullmatch(rf"({_NUMBER})\s*(\w+)", text).groups()
    return _value(number) * _SIZES[unit]


def _similar_size(shown, found):
    return _bytes(shown) <= 2 * _bytes(found) and _bytes(found) <= 2 * _bytes(shown)


class Line:
    """A line of a document, to be compared with lines of a run."""

    def __init__(self, text):
        self.text = text
        self.any_lines = text.strip() == "..."
        self._checks = []  # one for each group of the pattern: (function, text in the document)
        self._pattern = re.compile("".join(map(self._pattern_of, _TOKEN.finditer(text.rstrip()))))

    def _pattern_of(self, token):
        text, kind = token.group(), token.lastgroup
        if kind == "number":
            self._checks.append((_same_number, text))
            return f"({_NUMBER})"
        if kind == "size":
            self._checks.append((_similar_size, text))
            return rf"({_NUMBER}\s*{_SIZE})"
        if kind == "measured":
            name = re.match(_MEASURED, text).group()
            return re.escape(name.rstrip()) + rf"\s*{_NUMBER}(?:\s+{_NUMBER})*"
        return {
            "anything": ".*?",
            "hash": "[0-9a-f]{7,64}(?:-dirty)?",
            "version": r"\d+\.\d+\.\d+(?:\+\d+)?",
            "time": rf"{_NUMBER}\s*{_TIMES}",
            "space": r"\s+",
        }.get(kind, re.escape(text))

    def matches(self, found):
        match = self._pattern.fullmatch(found.rstrip())
        return match is not None and all(
            same(shown, text) for (same, shown), text in zip(self._checks, match.groups())
        )


# What an alignment costs: a line that is missing, one that is new, one that has changed.
_MISSING, _NEW = 9, 3


def _change(shown, found):
    """From 4 for lines that differ in numbers alone to 8 for lines without a common word."""
    a, b = (set(re.sub(rf"\s+|{_NUMBER}", " ", text).split()) for text in (shown, found))
    return 8 - 4 * len(a & b) / max(len(a | b), 1)


def _ways(lines, found, i, j):
    """The steps from lines[i], found[j]: (cost, lines of the document, lines of the run)."""
    if i < len(lines) and lines[i].any_lines:
        yield 0, 1, 0
        if j < len(found):
            yield 0, 0, 1
        return
    if i < len(lines) and j < len(found):
        if lines[i].matches(found[j]):
            yield 0, 1, 1
        else:
            yield _change(lines[i].text, found[j]), 1, 1
    if i < len(lines):
        yield _MISSING, 1, 0
    if j < len(found):
        yield _NEW, 0, 1


def align(shown, found):
    """The cheapest way from the lines of a document to those of a run.

    Returns (mark, text) pairs: " " a line of the document that fits, "-" one that does not appear,
    "+" a line of the run that the document lacks. Without "-" and "+" the document is right.
    """
    lines = [Line(text) for text in shown]
    best = {(len(lines), len(found)): (0, 0, 0, 0)}  # (i, j): cost to the end, and the next step
    for i in range(len(lines), -1, -1):
        for j in range(len(found), -1, -1):
            steps = [(best[i + di, j + dj][0] + cost, cost, di, dj) for cost, di, dj in _ways(lines, found, i, j)]
            if steps:
                best[i, j] = min(steps)
    result, i, j = [], 0, 0
    while (i, j) != (len(lines), len(found)):
        _, cost, di, dj = best[i, j]
        if di:
            result.append(("-" if cost else " ", shown[i]))
        if dj and cost:
            result.append(("+", found[j]))
        i, j = i + di, j + dj
    return result
