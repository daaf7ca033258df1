#!/usr/bin/env python3
"""The version that tags of git give to the program, the Debian packages and the Python module, tried in a
repository that holds the files which compute it and nothing else.

  tests/scripts/version_test.py CMAKE
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = (".gitattributes", "CHANGELOG.md", "CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake/archive.txt",
         "cmake/debian_files.cmake", "cmake/package.cmake", "cmake/package_version.cmake", "cmake/version.cmake",
         "python/README.md", "python/wheel_backend.py", "scripts/check_release.sh")
CMAKE = shutil.which("cmake")
NUMBER = re.search(r"^project\(qlora VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null",
               "SOURCE_DATE_EPOCH": "1700000000", "PYTHONDONTWRITEBYTECODE": "1"}
for role in ("AUTHOR", "COMMITTER"):
    ENVIRONMENT |= {f"GIT_{role}_NAME": "n", f"GIT_{role}_EMAIL": "e@example.invalid"}


def run(*words, folder):
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def version(root):
    """(release, commit) of a folder of sources, as a build of it says."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "version.cc")
        run(CMAKE, f"-DROOT={root}", f"-DOUTPUT={source}", "-P", root / "cmake/version.cmake", folder=folder)
        return tuple(re.findall(r'return "(.*)";', source.read_text()))


@unittest.skipUnless(shutil.which("git"), "no git")
class VersionTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.root = self.scratch / "checkout"
        for name in FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.git("init", "--quiet")
        self.commit()

    def git(self, *words):
        return run("git", *words, folder=self.root)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "m")
        self.hash = self.git("rev-parse", "--short=12", "HEAD")

    def archive(self):
        """The folder that `git archive` makes of the last commit."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        self.git("archive", "--output", folder / "a.tar", "HEAD")
        with tarfile.open(folder / "a.tar") as file:
            file.extractall(folder)
        return folder

    def distribution(self):
        """The folder of the unpacked source distribution of the Python module."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        name = run(sys.executable, "-c", "import sys, wheel_backend; print(wheel_backend.build_sdist(sys.argv[1]))",
                   folder, folder=self.root / "python")
        with tarfile.open(folder / name) as file:
            file.extractall(folder)
        unpacked = folder / name.removesuffix(".tar.gz")
        self.assertIn(f"\nVersion: {unpacked.name.partition('-')[2]}\n", (unpacked / "PKG-INFO").read_text())
        return unpacked

    def expect(self, release, commit):
        """The same from git and from what is made of the checkout."""
        self.assertEqual(version(self.root), (release, commit))
        self.assertEqual(version(self.distribution()), (release, commit))
        self.assertEqual(version(self.archive()), (release, self.hash))

    def test_without_a_tag(self):
        self.expect(NUMBER, self.hash)

    def test_at_a_tag_and_after(self):
        self.git("tag", "--annotate", "--message", "m", "v9.8.7")
        self.expect("9.8.7", self.hash)
        for count in range(1, 3):
            self.commit()
            self.expect(f"9.8.7+{count}", self.hash)
        self.git("tag", "v9.9.0-rc1")  # names no release
        self.expect("9.8.7+2", self.hash)
        self.git("tag", "v9.9.0")  # a tag without a message counts as well
        self.expect("9.9.0", self.hash)

    def test_changed_files(self):
        self.git("tag", "v9.8.7")
        (self.root / "README.md").write_text("changed")
        self.expect("9.8.7", self.hash + "-dirty")
        self.git("tag", "--delete", "v9.8.7")
        self.expect(NUMBER, self.hash + "-dirty")

    def test_without_git(self):
        shutil.rmtree(self.root / ".git")
        self.assertEqual(version(self.root), (NUMBER, ""))
        self.assertEqual(version(self.distribution()), (NUMBER, ""))
        # Not that of a repository around it.
        run("git", "init", "--quiet", folder=self.scratch)
        self.assertEqual(version(self.root), (NUMBER, ""))

    def refusal(self):
        """What check_release.sh says; empty if nothing."""
        done = subprocess.run(["scripts/check_release.sh"], cwd=self.root, env=ENVIRONMENT, capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode != 0, done.stderr != "")
        return done.stderr

    def test_a_release_has_one_number(self):
        self.assertEqual(self.refusal(), "")  # no release
        self.git("tag", "v9.8.7")
        self.assertEqual(self.refusal(), "tag v9.8.7: CMakeLists.txt names another release\n")
        cmake, changes = self.root / "CMakeLists.txt", self.root / "CHANGELOG.md"
        cmake.write_text(cmake.read_text().replace(f"qlora VERSION {NUMBER} ", "qlora VERSION 9.8.7 "))
        self.commit()
        self.git("tag", "--force", "v9.8.7")
        self.assertEqual(self.refusal(), "tag v9.8.7: CHANGELOG.md begins with another release\n")
        changes.write_text("# Changes\n\n## 9.8.7 (2026-01-01)\n")
        self.commit()
        self.git("tag", "--force", "v9.8.7")
        self.assertEqual(self.refusal(), "")
        changes.write_text("# Changes\n\n## 9.8.7\n")
        self.assertEqual(self.refusal(), "tag v9.8.7: files were changed since\n")

    # A package is compatible within its minor version.
    def test_examples_ask_for_this_release(self):
        minor = ".".join(NUMBER.split(".")[:2])
        files = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/CMakeLists.txt"), *ROOT.glob("*.md")]
        asked = {str(file): re.findall(r"find_package\(qlora ([0-9.]+)", file.read_text()) for file in files}
        found = {name: numbers for name, numbers in asked.items() if numbers}
        self.assertGreaterEqual(len(found), 2)
        for name, numbers in found.items():
            self.assertEqual(set(numbers), {minor}, name)

    @unittest.skipUnless(shutil.which("dpkg-deb"), "no dpkg")
    def test_packages_have_the_version_of_the_program(self):
        self.git("tag", "v9.8.7")
        self.commit()
        project = (f'cmake_minimum_required(VERSION 3.25)\nproject(qlora VERSION {NUMBER} LANGUAGES NONE)\n'
                   'install(FILES LICENSE DESTINATION share/doc/qlora COMPONENT program)\n'
                   'install(FILES LICENSE DESTINATION include/qlora COMPONENT library)\n'
                   'include(cmake/package.cmake)\n')
        (self.root / "CMakeLists.txt").write_text(project)
        self.commit()
        build = self.scratch / "build"
        run(CMAKE, "-S", self.root, "-B", build, folder=self.scratch)
        run(CMAKE, f"-DROOT={self.root}", f"-DOUTPUT={build}/src/version.cc", "-P",
            self.root / "cmake/version.cmake", folder=self.scratch)
        run(pathlib.Path(CMAKE).with_name("cpack"), "-G", "DEB", folder=build)
        names = sorted(path.name.partition("_")[0] for path in build.glob("*_9.8.7+2_*.deb"))
        self.assertEqual(names, ["libqlora-dev", "qlora"])
        for path in build.glob("*.deb"):
            self.assertEqual(run("dpkg-deb", "-f", path, "Version", folder=build), "9.8.7+2")
            with tempfile.TemporaryDirectory() as folder:
                run("dpkg-deb", "-x", path, folder, folder=folder)
                package = path.name.partition("_")[0]
                log = run("zcat", f"{folder}/usr/share/doc/{package}/changelog.gz", folder=folder)
                self.assertIn(f"{package} (9.8.7+2) ", log)

    @unittest.skipUnless(shutil.which("dpkg") and importlib.util.find_spec("pip"), "no dpkg or no pip")
    def test_versions_sort_by_time(self):
        from pip._vendor.packaging.version import Version
        versions = [NUMBER, "9.8.7", "9.8.7+2", "9.8.7+10", "9.8.8", "9.10.0"]
        for before, after in zip(versions, versions[1:]):
            run("dpkg", "--compare-versions", before, "lt", after, folder=self.scratch)
        self.assertEqual(sorted(versions[::-1], key=Version), versions)
        self.assertEqual([str(Version(text)) for text in versions], versions)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CMAKE = sys.argv.pop(1)
    unittest.main()
