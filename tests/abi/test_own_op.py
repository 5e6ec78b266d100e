"""A plugin's own op, from registering to running: own_op.c in a chain.

usage: test_own_op.py TENON OWN_OP"""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest  # noqa: E402

TENON, OWN_OP = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
del sys.argv[1:3]


class OwnOp(JobTest):
    TENON = TENON

    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o755)
        shutil.copy(OWN_OP, self.path("swap.so"))
        os.chmod(self.path("swap.so"), 0o755)

    def losses(self, *more):
        self.run_tenon("run", "job.ini", "--metrics", "metrics", *more)
        return [line["loss"] for line in self.metrics() if "loss" in line]

    def test_it_is_placed_and_replaced(self):
        chain = ("--set", "strategies.chain=tp, ./swap.so", "--set", "tp.size=2")
        placed = self.run_tenon("dump", "job.ini", "--after", "resolve", *chain).stdout
        self.assertIn("layers.0.mlp.swiglu: f32[8, 32, 96] {tp: S2} = swap.swiglu(g: layers.0.mlp.gate, u: layers.0.mlp.up)", placed)
        self.assertNotIn("swap.", self.run_tenon("dump", "job.ini", "--after", "lower:swap", *chain).stdout)
        plain = self.losses("-n", 1)
        os.remove(self.path("metrics"))
        self.assertTrue(plain)
        self.assertEqual(self.losses("-n", 1, "--set", "strategies.chain=./swap.so"), plain)

    def test_what_nobody_replaced_is_refused_with_its_plugin(self):
        run = self.run_tenon("check", "job.ini", "--set", "strategies.chain=./swap.so", "--set", "swap.lower=off", code=2)
        self.assertIn("layers.0.mlp.swiglu = swap.swiglu, an op of swap that no strategy of the chain has replaced", run.stderr)


if __name__ == "__main__":
    unittest.main()
