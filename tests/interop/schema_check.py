#!/usr/bin/env python3
"""Asks Python's jsonschema whether texts that a schema's grammar allows are values of the schema.

  QLORA_SCHEMAS=5000 QLORA_SCHEMA_SAMPLES=samples.jsonl \\
    build/release/bin/serve_tests --gtest_filter='JsonSchemaGenerator*'
  tests/interop/schema_check.py samples.jsonl

Needs python3-jsonschema. Exits with 1 where a text is no JSON, or not what its schema allows.
"""
import json
import sys

import jsonschema

SHOWN = 5


def main():
    checked = wrong = 0
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            sample = json.loads(line)
            checked += 1
            try:
                jsonschema.Draft202012Validator(sample["schema"]).validate(json.loads(sample["text"]))
            except (ValueError, jsonschema.ValidationError) as error:
                wrong += 1
                if wrong <= SHOWN:
                    print(f"{sample['text']}\n  {json.dumps(sample['schema'])}\n  {str(error).splitlines()[0]}")
    print(f"{checked} texts, {wrong} of them wrong")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
