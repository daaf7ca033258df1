"""Data sets of the calling program: records in memory beside names of files."""

import contextlib
import json
import os
import tempfile

from ._errors import Error


def _is_path(value):
    return isinstance(value, (str, bytes, os.PathLike))


def _plain(value):
    """Values of numpy, PyTorch and the like as those of json."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _write(name, records, file):
    """One line of JSON for each record; the number of the line is that of the record."""
    count = 0
    for count, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise TypeError(f"{name}:{count}: expected a dict, found {type(record).__name__}")
        try:
            file.write(json.dumps(record, default=_plain, allow_nan=False) + "\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise Error(f"{name}:{count}: {error}") from None
    if count == 0:
        raise Error(f"{name}: there are no records")
    file.flush()


def _are_records(data):
    """True for what yields records; False for a name, names, and nothing."""
    if data is None or _is_path(data) or isinstance(data, dict):
        return False
    if isinstance(data, (list, tuple)):
        return not data or not all(_is_path(item) for item in data)
    return hasattr(data, "__iter__")


@contextlib.contextmanager
def given(settings):
    """(settings, files): data sets that are records are replaced by the names of open files.

    settings: options with dataset and eval_dataset. The records are in files without a name, in the
    folder of temporary files, and gone with them when the work is done.
    """
    settings, files = dict(settings), {}
    with contextlib.ExitStack() as stack:
        for key, name in (("dataset", "records"), ("eval_dataset", "eval_records")):
            data = settings.get(key)
            if key == "eval_dataset" and isinstance(data, (list, tuple)) and not data:
                del settings[key]  # no files, as by default
                continue
            if isinstance(data, dict):
                raise TypeError(f"{key}: expected the name of a file or records, found a dict; "
                                "records are a list of dicts, or an iterable of them")
            if not _are_records(data):
                continue
            file = stack.enter_context(tempfile.TemporaryFile("w", encoding="utf-8"))
            _write(name, data, file)
            settings[key], files[name] = name, file.fileno()
        for key, value in settings.items():
            if isinstance(value, (list, tuple)) and value and all(isinstance(v, dict) for v in value):
                raise TypeError(f"{key}: expected plain values, found a list of dicts; records are "
                                "given as dataset or eval_dataset, files by their names, with "
                                "dataset_format")
        yield settings, files
