"""A strategy from outside the tree: Tenon is installed into a temporary folder, plugins/template is built there against
the installed headers alone, and the installed command inspects it, checks a manifest that names it by path, and trains
with it on two ranks.

usage: test_outside.py SOURCE_FOLDER BUILD_FOLDER MESON COMPILER [ARGUMENTS...]
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
MESON, COMPILER = sys.argv[3], sys.argv[4:]
STRICT = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
LINK = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,defs"]

MANIFEST = """\
[job]
ranks = {ranks}
steps = 3
[gpt]
family = llama
layers = 1
hidden = 32
heads = 2
vocab = 256
[data]
path = text.txt
sequence = 16
batch = {batch}
[strategies]
chain = {chain}
"""


class Outside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="tenon-outside-")
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        stage = cls.folder / "stage"
        done = subprocess.run([MESON, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", stage],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.tenon = next(stage.rglob("bin/tenon"))
        headers = next(stage.rglob("include/tenon")).parent
        shutil.copytree(SOURCE / "plugins" / "template", cls.folder / "mine")
        cls.plugin = cls.folder / "mine" / "sdp.so"
        done = subprocess.run([*COMPILER, *STRICT, f"-I{headers}", *LINK, "-o", cls.plugin.name, "sdp.c"],
                              cwd=cls.folder / "mine", capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        os.chmod(cls.plugin, 0o755)
        (cls.folder / "mine" / "text.txt").write_text("Plugins make the parallelism. " * 200)

    def run_tenon(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "TENON_PLUGIN_PATH")}
        return subprocess.run([self.tenon, *arguments], cwd="/", env=environment, capture_output=True, text=True,
                              timeout=120)

    def manifest(self, ranks=2, batch=4, chain="./sdp.so", more=""):
        path = self.folder / "mine" / "job.ini"
        path.write_text(MANIFEST.format(ranks=ranks, batch=batch, chain=chain) + more)
        return path

    def losses(self, *arguments):
        metrics = self.folder / "metrics"
        done = self.run_tenon("run", self.manifest(*arguments), "--metrics", metrics)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]

    def test_inspect(self):
        done = self.run_tenon("plugin", "inspect", self.plugin)
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("id         sdp", "kind       strategy", str(self.plugin), "[sdp]", "default auto"):
            self.assertIn(words, done.stdout)

    def test_check_shows_its_axis_and_what_its_types_cost(self):
        done = self.run_tenon("check", "--json", self.manifest())
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([(a["axis"], a["size"]) for a in report["mesh"]], [("sdp", 2)])
        self.assertIn(str(self.plugin), [p["path"] for p in report["plugins"]])
        self.assertIn("all_reduce", done.stdout)

    def test_trains_like_one_rank(self):
        one = self.losses(1, 4, "")
        two = self.losses(2, 4)
        self.assertEqual(len(two), 3)
        for ours, reference in zip(two, one):
            self.assertAlmostEqual(ours, reference, delta=2e-5 * reference)

    def test_its_problem_is_told_with_a_place(self):
        done = self.run_tenon("check", self.manifest(batch=3))
        self.assertEqual(done.returncode, 2)
        self.assertIn("[sdp] size: does not divide the sequences of a micro-batch; use a divisor", done.stderr)

    def test_an_option_with_a_typing_mistake_is_refused(self):
        done = self.run_tenon("check", self.manifest(more="[sdp]\nsise = 2\n"))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"job\.ini:\d+: \[sdp\] sise: .*size")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
