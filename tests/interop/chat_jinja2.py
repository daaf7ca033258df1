#!/usr/bin/env python3
"""Renders chat templates with Python's jinja2, set up as transformers sets it up.

Reads lines of {"template": FILE, "variables": {...}, "now": [year, month, day, hour, minute, second]} and
prints lines of {"text": ...} or {"error": ...}.
"""
import datetime
import functools
import json
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: the body, as a call block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


@functools.lru_cache(maxsize=None)
def compiled(path, now):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals.update(raise_exception=raise_exception, strftime_now=datetime.datetime(*now).strftime)
    with open(path, encoding="utf-8", newline="") as file:
        return environment.from_string(file.read())


def render(case):
    return compiled(case["template"], tuple(case["now"])).render(**case["variables"])


def main():
    for line in sys.stdin:
        try:
            result = {"text": render(json.loads(line))}
        except Exception as error:  # whatever the template provokes
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
