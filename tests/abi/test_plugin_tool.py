"""`tenon plugin`: what it prints of good plugins, and that no bad one takes it down.

usage: test_plugin_tool.py TOOL BROKEN_FOLDER   (TOOL runs `tenon plugin`; the folder holds the plugins of broken.c)
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

TOOL, BROKEN = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])


def run(*arguments, path=None, cwd=None):
    environment = {k: v for k, v in os.environ.items() if k != "TENON_PLUGIN_PATH"}
    if path:
        environment["TENON_PLUGIN_PATH"] = path
    return subprocess.run([TOOL, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=200)


class PluginTool(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tenon-plugin-")
        os.chmod(self.folder, 0o755)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def copy(self, name):
        target = os.path.join(self.folder, name + ".so")
        shutil.copyfile(os.path.join(BROKEN, name + ".so"), target)
        os.chmod(target, 0o755)
        return target

    def test_inspects_a_good_plugin(self):
        path = self.copy("good")
        for name, where in ((path, None), ("./good.so", self.folder), ("good.so", self.folder)):
            done = run("inspect", name, cwd=where)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for line in ("id         good", "kind       strategy", "version    1.2.3", f"file       {path}",
                         "needs      tn.facts/1", "[good]",
                         "  size                 int      default 2; 1 to 64; or auto", "      Ranks."):
                self.assertIn(line, done.stdout.splitlines())

    def test_inspects_by_id(self):
        self.copy("good")
        done = run("inspect", "good", path=self.folder)
        self.assertEqual(done.returncode, 0)
        done = run("inspect", "absent", path=self.folder)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"not-found: no file absent.so in {self.folder}:", done.stderr)
        self.assertIn("; name a folder in TENON_PLUGIN_PATH, or give a path", done.stderr)
        self.assertIn("; did you mean good?", run("inspect", "godo", path=self.folder).stderr)

    def test_says_why_not(self):
        for name, reason in (("major", "abi-major"), ("entry", "no-entry"), ("needs", "feature-missing")):
            done = run("inspect", self.copy(name))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertTrue(done.stderr.startswith(reason + ": "), done.stderr)
        done = run("inspect", "no/such.so")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no/such.so: No such file or directory", done.stderr)

    def test_outlives_a_crash_and_a_hang(self):
        done = run("inspect", self.copy("crashes"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended by signal 11 (Segmentation fault)", done.stderr)
        began = time.monotonic()
        done = run("inspect", self.copy("hangs"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("did not answer in 5 s", done.stderr)
        self.assertLess(time.monotonic() - began, 150)

    def test_lists_all(self):
        for name in ("good", "later", "magic", "crashes"):
            self.copy(name)
        with open(os.path.join(self.folder, "text.so"), "w") as file:
            file.write("text")
        done = run("list", path=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for text in ("good       strategy   1.2.3    ", "later      strategy   1.2.3    ", "no-entry: ", "not-elf: ",
                     "crashes.so: ended by signal 11"):
            self.assertIn(text, done.stdout)

    def test_usage(self):
        for arguments in (["--help"], ["list", "--help"], ["inspect", "-h"]):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith("usage: tenon plugin"))
        for arguments in ([], ["inspect"], ["list", "x"], ["lsit"]):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
