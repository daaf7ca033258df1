"""The example of docs/python.md runs as it is printed there."""

import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
    assert blocks
    for folder in ("examples", "tests"):
        os.symlink(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    out = capsys.readouterr().out
    assert "TrainSummary(" in out and "layer.safetensors" in os.listdir(tmp_path)
