#!/usr/bin/env python3
"""What scripts/gpu_receipt.py records and how it ends, with scripts in the place of the programs and
of the GPU."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_receipt.py"

NVIDIA_SMI = "echo 'NVIDIA Test, 580.1, 1000 MiB'"
DOCTOR = """'{"cuda": {"usable": true, "products": "cuBLASLt 13", "attention": "cuDNN 9"}}'"""
ROW = '{"op": "step", "value": 1, "unit": "tokens/s", "ratio": 0, "limit_kind": ""}'
QLORA = """
case $1 in
  version) echo 'qlora test' ;;
  doctor) echo "$LD_LIBRARY_PATH" >>"$TEST_DIR/folders"; echo %s ;;
  bench) echo "$QLORA_CUDA_ATTENTION $*" >>"$TEST_DIR/benches"; %s ;;
esac
""" % (DOCTOR, "%s")
BENCH = """echo '{"results": [%s]}'""" % ROW
# A.fails fails among others and passes alone; B.crashes ends the program; B.later runs behind it.
TESTS = r"""
if [ "$1" = --gtest_list_tests ]; then printf 'A.\n  passes\n  fails\n  skips\nB/all.\n'
  printf '  crashes/0  # GetParam() = 1\n  later/1  # GetParam() = 2\n'; exit; fi
for t in ${GTEST_FILTER//:/ }; do
  echo "[ RUN      ] $t"
  case $t in
    A.fails) if [ "$GTEST_FILTER" = A.fails ]; then echo "[       OK ] $t (1 ms)"
             else echo "[  FAILED  ] $t (1 ms)"; fi ;;
    A.skips) echo "[  SKIPPED ] $t (0 ms)" ;;
    B/all.crashes/0) exit 139 ;;
    *) echo "[       OK ] $t (3 ms)" ;;
  esac
done
echo "[  FAILED  ] 1 test, listed below:"; echo "[  FAILED  ] A.fails"
"""
GOOD_TESTS = TESTS.replace("A.fails)", "none)").replace("exit 139", "echo \"[       OK ] $t (1 ms)\"")
SANITIZER = "echo '========= ERROR SUMMARY: 0 errors'; exit %d"


class GpuReceipt(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.scratch.name)
        (self.dir / "bin").mkdir()
        self.write("nvidia-smi", NVIDIA_SMI)
        self.write("compute-sanitizer", SANITIZER % 0)
        self.write("qlora", QLORA % BENCH)
        self.write("cuda_device_tests", GOOD_TESTS)

    def tearDown(self):
        self.scratch.cleanup()

    def write(self, name, text):
        path = self.dir / "bin" / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)

    def run_script(self, parts="tests,benchmarks,sanitizer", options=(), **env):
        done = subprocess.run(
            [sys.executable, "-B", SCRIPT, "--bin", self.dir / "bin", "--out", self.dir / "out",
             "--parts", parts, *options], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": "%s:/usr/bin:/bin" % (self.dir / "bin"),
                 "TEST_DIR": str(self.dir), **env})
        receipts = sorted((self.dir / "out").glob("*-NVIDIA-Test.json"))
        return done, json.loads(receipts[-1].read_text()) if receipts else {}

    def test_records_what_ran(self):
        done, receipt = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(receipt["failures"], [])
        self.assertEqual(receipt["products"], "cuBLASLt 13")
        self.assertEqual(receipt["attention"], "cuDNN 9")
        self.assertEqual(receipt["driver"], "580.1")
        self.assertEqual(receipt["tests"]["skipped"], ["A.skips"])
        self.assertEqual(len(receipt["tests"]["passed"]), 4)
        self.assertTrue(receipt["compute-sanitizer"]["racecheck"]["passed"])
        kinds = {bench["attention"] for bench in receipt["benchmarks"]}
        self.assertEqual(kinds, {"cudnn", "own"})
        ran = (self.dir / "benches").read_text()
        self.assertIn("cudnn bench step", ran)
        self.assertIn("own bench step", ran)

    def test_failed_and_crashed_tests_are_named_and_the_others_run(self):
        self.write("cuda_device_tests", TESTS)
        done, receipt = self.run_script("tests")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(sorted(receipt["tests"]["passed"]), ["A.passes", "B/all.later/1"])
        self.assertEqual(receipt["tests"]["failed"],
                         [{"case": "A.fails", "alone": "passes"},
                          {"case": "B/all.crashes/0", "why": "ended the program, or hung"}])
        self.assertIn("A.fails", done.stdout)

    def test_more_cases_than_one_variable_holds_all_run(self):
        names = ["case_with_a_long_name_%050d" % i for i in range(3000)]
        self.write("cuda_device_tests", r"""
if [ "$1" = --gtest_list_tests ]; then printf 'A.\n'; cat "$TEST_DIR/names"; exit; fi
echo "$GTEST_FILTER" | tr : '\n' | sed 's/.*/[ RUN      ] &\n[       OK ] & (1 ms)/'
""")
        (self.dir / "names").write_text("".join("  %s\n" % name for name in names))
        done, receipt = self.run_script("tests")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(receipt["tests"]["passed"], ["A." + name for name in names])

    def test_failures_of_benchmarks_and_the_sanitizer_are_failures(self):
        self.write("qlora", QLORA % "echo 'error: no memory' >&2; exit 3")
        self.write("compute-sanitizer", SANITIZER % 9)
        done, receipt = self.run_script()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(receipt["failures"]), len(receipt["benchmarks"]) + 2)
        self.assertIn("no memory", receipt["benchmarks"][0]["output"])
        self.assertFalse(receipt["compute-sanitizer"]["memcheck"]["passed"])

    def test_a_device_that_the_sanitizer_refuses_is_no_failure(self):
        self.write("compute-sanitizer", "echo '========= Error: Device not supported'; exit 1")
        done, receipt = self.run_script("sanitizer")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(receipt["not_run"]), 2)

    def test_an_unusable_device_is_a_failure_that_is_recorded(self):
        self.write("qlora", QLORA.replace('"usable": true', '"usable": false, "problem": "old"')
                   % BENCH)
        done, receipt = self.run_script("tests")
        self.assertEqual(done.returncode, 1)
        self.assertIn("qlora doctor: old", receipt["failures"])

    def test_libraries_of_python_packages_are_found(self):
        packages = self.dir / "packages"
        for folder, name in (("nvidia/cu13/lib", "libcublasLt.so.13"),
                             ("nvidia/cudnn/lib", "libcudnn.so.9"), ("nvidia/other/lib", "x.so")):
            (packages / folder).mkdir(parents=True)
            (packages / folder / name).touch()
        (self.dir / "venv/bin").mkdir(parents=True)
        python = self.dir / "venv/bin/python3"
        python.write_text("#!/bin/bash\necho '[\"%s\"]'\n" % packages)
        python.chmod(0o755)
        for source in ({"VIRTUAL_ENV": str(self.dir / "venv")}, {"options": ["--python", python]}):
            (self.dir / "folders").unlink(missing_ok=True)
            with self.subTest(source):
                self.check_libraries(packages, **source)

    def check_libraries(self, packages, **source):
        _, receipt = self.run_script("sanitizer", LD_LIBRARY_PATH="/first", **source)
        self.assertIn(str(packages / "nvidia/cu13/lib"), receipt["library_folders"])
        self.assertIn(str(packages / "nvidia/cudnn/lib"), receipt["library_folders"])
        self.assertNotIn(str(packages / "nvidia/other/lib"), receipt["library_folders"])
        given = (self.dir / "folders").read_text().split(":")
        self.assertEqual(given[0], "/first")
        self.assertIn(str(packages / "nvidia/cudnn/lib"), given)


if __name__ == "__main__":
    unittest.main()
