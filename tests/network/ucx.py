#!/usr/bin/env python3
"""Training over ucx between two hosts (network namespaces): the losses of one host; and a cable that is cut.

usage: ucx.py TENON [unittest options]; skipped where there can be no network namespaces"""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from netns import NetworkTest, why_not  # noqa: E402
from tenon_job import layout, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]


NAMED = "rank %s (did not arrive|is gone|has)"


def ucx(**keys):
    return settings(comm={"backend": "ucx"}, **({"ucx": keys} if keys else {}))


class Ucx(NetworkTest):
    TENON_COMMAND = TENON

    def losses(self, name):
        return [(line["step"], line["loss"], line["grad_norm"]) for line in self.metrics(name) if "grad_norm" in line]

    def on_one_host(self, *where):
        self.TENON = TENON
        self.run_tenon("run", "job.ini", *where, "--metrics", "one")
        self.TENON = "ip"
        return self.losses("one")

    def test_same_losses(self):
        """tp inside the hosts and dp across, with what ucx finds out by itself and with what it is told; and across."""
        for where, told in ((layout(tp=2, dp=2), {}), (layout(tp=2, dp=2), {"transports": "tcp", "devices": "cable"}),
                            (layout(tp=4), {"transports": "tcp"})):
            with self.subTest(where=where, told=told):
                one = self.on_one_host(*where)
                self.run_job(4, *where, *ucx(**told), "--metrics", "two")
                self.assertEqual(len(one), 3)
                self.assertEqual(one, self.losses("two"))

    def cut_in_mid_step(self, world, where):
        """Each rank names one that it waits for, and on each side one of them is on the other side."""
        runs = self.start_job(world, "--steps", "1000000", *where, *ucx(), "--set", "comm.timeout=5s", "--metrics", "m")
        self.assertTrue(until(lambda: len(self.metrics("m")) >= 3 or runs[0].process.poll() is not None))
        self.assertIsNone(runs[0].process.poll(), runs[0].stderr)
        self.hosts.cut()
        for run in runs:
            self.assertEqual(run.wait(), 1, run.stderr)
            self.matches(NAMED % r"\d", run.stderr)
        here, there = ["".join(run.stderr for run in half) for half in (runs[:world // 2], runs[world // 2:])]
        self.matches(NAMED % (r"[%s]" % "".join(map(str, range(world // 2, world)))), here)
        self.matches(NAMED % (r"[%s]" % "".join(map(str, range(world // 2)))), there)

    def test_cable_cut(self):
        self.cut_in_mid_step(2, layout(dp=2))

    def test_cable_cut_four(self):
        """Who waits for a neighbour that waits for the other side may say so first."""
        self.cut_in_mid_step(4, layout(tp=2, dp=2))


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(reason + ": skipped")
        sys.exit(77)
    unittest.main()
