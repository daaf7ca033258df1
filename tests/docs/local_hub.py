"""A hub on this machine for the commands of documents, which need no network then: a model of any
name is examples/base-1m at every revision, and a data set of any name is one small Parquet file.
tests/pull/fake_hub.h tries what a real hub may do wrong."""

import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = {path.name: path.read_bytes() for path in (ROOT / "examples/base-1m").iterdir()}
PARQUET = (ROOT / "tests/fixtures/prompt.parquet").read_bytes()
NAME = r"[\w.-]+/[\w.-]+"
# The files of a data set, by revision. The hub's own copies are on a branch.
DATA = {"refs/convert/parquet": {"default/train/0000.parquet": PARQUET}}
DATA_OF_MAIN = {"data/train-00000-of-00001.parquet": PARQUET}


def _files(kind, revision):
    return MODEL if kind == "models" else DATA.get(revision, DATA_OF_MAIN)


def _commit(kind, revision):
    return hashlib.sha1(f"{kind} {revision}".encode()).hexdigest()


COMMITS = {_commit(kind, revision): _files(kind, revision)
           for kind in ("models", "datasets") for revision in ("main", "v1.0", *DATA)}


def _listing(files):
    return [{"type": "file", "path": path, "size": len(data),
             "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
            for path, data in files.items()]


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = urllib.parse.urlparse(self.path).path
        if found := re.fullmatch(rf"/api/(models|datasets)/{NAME}/revision/(.+)", path):
            revision = urllib.parse.unquote(found[2])
            return self.answer(json.dumps({"sha": _commit(found[1], revision)}).encode())
        if found := re.fullmatch(rf"/api/\w+/{NAME}/tree/(\w+)", path):
            return self.answer(json.dumps(_listing(COMMITS[found[1]])).encode())
        if found := re.fullmatch(rf"(?:/datasets)?/{NAME}/resolve/(\w+)/(.+)", path):
            return self.answer(COMMITS[found[1]][urllib.parse.unquote(found[2])], found[1])
        self.send_error(404)

    def answer(self, data, commit=""):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def start():
    """Serves until the program ends, and returns the address for HF_ENDPOINT."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
