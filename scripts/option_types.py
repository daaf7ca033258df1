#!/usr/bin/env python3
"""Writes the options of `qlora train` as types for the stubs of the Python module.

    option_types.py QLORA           writes python/qlora_cpp/_options.pyi
    option_types.py QLORA --check   exit code 1: the file is not what would be written
"""

import json
import pathlib
import subprocess
import sys

FILE = pathlib.Path(__file__).parent.parent / "python" / "qlora_cpp" / "_options.pyi"
TYPES = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "array": "Sequence[Any]",
         "object": "Mapping[str, Any]"}


# Arguments of train() that its stub names itself.
NAMED = {"model", "dataset", "output_dir", "train_dataset"}


def type_of(option):
    if "enum" in option:
        return f"Literal[{', '.join(json.dumps(value) for value in option['enum'] if value is not None)}]"
    # The forms that a text may have in YAML are for YAML.
    names = [name for name in option["type"] if name != "null"]
    if names[0] == "string":
        names = ["string"]
    elif names[0] in ("number", "array"):
        names = names[:1] + [name for name in names if name in ("string", "object")]
    types = [TYPES[name] for name in dict.fromkeys(names)]
    return types[0] if len(types) == 1 else f"Union[{', '.join(types)}]"


def text(schema):
    lines = ['"""The options of train(), as scripts/option_types.py writes them."""', "",
             "from typing import Any, Literal, Mapping, Sequence, TypedDict, Union", "",
             "class TrainOptions(TypedDict, total=False):"]
    properties = schema["properties"]
    for name, option in properties.items():
        if name in NAMED:
            continue
        if "$ref" in option:
            option = properties[option["$ref"].rsplit("/", 1)[1]]
        lines.append(f"    {name}: {type_of(option)}")
    return "\n".join(lines) + "\n"


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    schema = json.loads(subprocess.run([arguments[0], "config-schema"], check=True, capture_output=True).stdout)
    if arguments[1:]:
        if FILE.read_text() != text(schema):
            sys.exit(f"{FILE} is of other options: run scripts/option_types.py {arguments[0]}")
    else:
        FILE.write_text(text(schema))


main()
