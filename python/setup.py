"""Builds the extension module with CMake: pip install --no-build-isolation ./python"""

import os
import pathlib
import re
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        build = pathlib.Path(self.build_temp).resolve()
        subprocess.run([
            "cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            "-DQLORA_PROGRAM=OFF", "-DQLORA_DEVELOPER=OFF", "-DQLORA_PYTHON=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
        ], check=True)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
        subprocess.run(["cmake", "--build", build, "--target", "qlora_python", "-j", jobs],
                       check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(build / "python" / "qlora_cpp" / target.name, target)


VERSION = re.search(r"project\(qlora VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
setup(version=VERSION[1], ext_modules=[Extension("qlora_cpp._core", sources=[])],
      cmdclass={"build_ext": CMakeBuild})
