#!/usr/bin/env python3
"""Training over hier between two hosts (network namespaces): shm inside each, ucx across.

usage: hier.py TENON [unittest options]; skipped where there can be no network namespaces"""
import math
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from netns import NetworkTest, why_not  # noqa: E402
from tenon_job import layout, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]
HIER = settings(comm={"backend": "hier"})


class Hier(NetworkTest):
    TENON_COMMAND = TENON

    def losses(self, name):
        return [(line["loss"], line["grad_norm"]) for line in self.metrics(name) if "grad_norm" in line]

    def on_one_host(self, *where):
        self.TENON = TENON
        self.run_tenon("run", "job.ini", *where, "--metrics", "one")
        self.TENON = "ip"
        return self.losses("one")

    def near(self, one, other):
        self.assertEqual(len(one), 3)
        self.assertEqual(len(one), len(other))
        for pair in zip(sum(one, ()), sum(other, ())):
            self.assertTrue(math.isclose(*pair, rel_tol=2e-5), (one, other))

    def test_losses(self):
        """Groups that span hosts; hosts with 2 + 1 ranks; and the backends named by axis, without hier."""
        for world, where, how in ((4, layout(dp=4), HIER), (4, layout(tp=2, dp=2), HIER), (3, layout(dp=3), HIER),
                                  (4, layout(tp=2, dp=2),
                                   settings(comm={"backend": "shm"}, **{"comm.dp": {"backend": "ucx"}}))):
            with self.subTest(where=where, how=how):
                batch = settings(data={"batch": 2 * world})
                one = self.on_one_host(*where, *batch)
                self.run_job(world, *where, *how, *batch, "--metrics", "two")
                self.near(one, self.losses("two"))

    def test_shm_alone(self):
        runs = self.start_job(2, *layout(dp=2))
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(), 1)
            self.matches("shm: group dp has rank %d, which is on another host than rank %d|rank %d is gone" %
                         (1 - rank, rank, 1 - rank), run.stderr)
        self.assertIn("use backend hier", runs[0].stderr + runs[1].stderr)

    def test_cable_cut(self):
        runs = self.start_job(4, "--steps", "1000000", *layout(dp=4), *HIER, "--set", "comm.timeout=6s", "--metrics", "m")
        self.assertTrue(until(lambda: len(self.metrics("m")) >= 3 or runs[0].process.poll() is not None))
        self.assertIsNone(runs[0].process.poll(), runs[0].stderr)
        self.hosts.cut()
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(), 1, run.stderr)
            self.matches(r"rank \d (did not arrive|is gone|has|exited)", run.stderr)
        self.matches(r"rank [23] (did not arrive|is gone|has)", runs[0].stderr + runs[1].stderr)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(reason + ": skipped")
        sys.exit(77)
    unittest.main()
