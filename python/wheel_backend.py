"""Builds the wheel and the source distribution of qlora_cpp (PEP 517) with the standard library alone.

    pip wheel --no-deps .                                  builds in build/wheel
    pip wheel --no-deps . --config-settings options=-DQLORA_UNITY=OFF
                                                           with more options of CMake
    pip wheel --no-deps . --config-settings extension=FILE --config-settings platform=TAG
                                                           packs a module that was built before
"""

import base64
import hashlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a build of the module reads.
SOURCES = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "include", "python",
           "src")
METADATA = """Metadata-Version: 2.1
Name: qlora_cpp
Version: {version}
Summary: QLoRA fine-tuning of language models on a CPU; NF4 and QLoRA layers on numpy and PyTorch arrays
License: Apache-2.0
Keywords: qlora,lora,nf4,fine-tuning,quantization,llm,gguf,peft
Classifier: Development Status :: 4 - Beta
Classifier: Intended Audience :: Developers
Classifier: Intended Audience :: Science/Research
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: Implementation :: CPython
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
Requires-Python: >=3.9
Requires-Dist: numpy>=1.23
Description-Content-Type: text/markdown

"""


def _version():
    """(release, commit) as cmake/version.cmake finds them."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "version.cc")
        subprocess.run(["cmake", f"-DROOT={ROOT}", f"-DOUTPUT={source}", "-P",
                        ROOT / "cmake" / "version.cmake"], check=True)
        return re.findall(r'return "(.*)";', source.read_text())


def _metadata(version):
    return METADATA.format(version=version) + (ROOT / "python" / "README.md").read_text()


def _build_extension(options):
    build = ROOT / "build" / "wheel"
    # Fresh: without the options of an earlier build.
    subprocess.run(["cmake", "--fresh", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    "-DQLORA_PROGRAM=OFF", "-DQLORA_DEVELOPER=OFF", "-DQLORA_PYTHON=ON",
                    "-DCMAKE_MODULE_LINKER_FLAGS=-s", f"-DPython_EXECUTABLE={sys.executable}",
                    *shlex.split(" ".join([options] if isinstance(options, str) else options))], check=True)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    subprocess.run(["cmake", "--build", build, "--target", "qlora_python", "-j", jobs], check=True)
    return build / "python" / "qlora_cpp" / ("_core" + sysconfig.get_config_var("EXT_SUFFIX"))


def _tag(platform):
    python = "cp" + sysconfig.get_config_var("py_version_nodot")
    return f"{python}-{python}-{platform}"


def _info(version, tag):
    """The files of the folder .dist-info but RECORD, by name."""
    wheel = f"Wheel-Version: 1.0\nGenerator: wheel_backend\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {"LICENSE": (ROOT / "LICENSE").read_bytes(), "METADATA": _metadata(version).encode(),
            "WHEEL": wheel.encode()}


def _record(files, name):
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join(lines + [f"{name},,\n"]).encode()


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Writes the folder .dist-info, so that pip need not build the module to read it."""
    version = _version()[0]
    folder = pathlib.Path(metadata_directory, f"qlora_cpp-{version}.dist-info")
    folder.mkdir()
    for name, data in _info(version, _tag("any")).items():
        (folder / name).write_bytes(data)
    return folder.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes qlora_cpp-VERSION-TAGS.whl and returns its name."""
    settings = config_settings or {}
    extension = pathlib.Path(settings.get("extension") or _build_extension(settings.get("options", "")))
    tag = _tag(settings.get("platform") or re.sub("[-.]", "_", sysconfig.get_platform()))
    version = _version()[0]
    package = ROOT / "python" / "qlora_cpp"
    files = {f"qlora_cpp/{path.name}": path.read_bytes()
             for path in sorted(package.iterdir()) if path.is_file()}
    files["qlora_cpp/_core" + sysconfig.get_config_var("EXT_SUFFIX")] = extension.read_bytes()
    info = f"qlora_cpp-{version}.dist-info"
    files.update({f"{info}/{name}": data for name, data in _info(version, tag).items()})
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")

    wheel = f"qlora_cpp-{version}-{tag}.whl"
    # The earliest date that a zip file holds, or that of the release.
    date = time.gmtime(max(315532800, int(os.environ.get("SOURCE_DATE_EPOCH", 0))))[:6]
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """Writes qlora_cpp-VERSION.tar.gz, from which build_wheel works, and returns its name."""
    version, commit = _version()
    release, _, count = version.partition("+")
    folder = f"qlora_cpp-{version}"
    files = {}
    for name in SOURCES:
        paths = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts:
                files[str(path.relative_to(ROOT))] = path.read_bytes()
    # What git says here, for builds without git.
    described = f"v{release}-{count or 0}-g{commit}\n" if commit else f"v{release}\n"
    files["cmake/archive.txt"] = described.encode()
    files["PKG-INFO"] = _metadata(version).encode()
    with tarfile.open(pathlib.Path(sdist_directory, folder + ".tar.gz"), "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            entry.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
            archive.addfile(entry, io.BytesIO(data))
    return folder + ".tar.gz"
