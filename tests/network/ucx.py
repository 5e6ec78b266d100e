#!/usr/bin/env python3
"""Training over ucx between two hosts (network namespaces): the losses of one host; and a cable that is cut.

usage: ucx.py TENON [unittest options]; skipped where there can be no network namespaces"""
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from netns import NetworkTest, why_not  # noqa: E402
from tenon_job import layout, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]


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

    def cut_in_mid_step(self, world, where, names):
        runs = self.start_job(world, "--steps", "1000000", *where, *ucx(), "--set", "comm.timeout=2s", "--metrics", "m")
        self.assertTrue(until(lambda: len(self.metrics("m")) >= 3 or runs[0].process.poll() is not None, 60))
        self.assertIsNone(runs[0].process.poll(), runs[0].stderr)
        self.hosts.cut()
        began = time.monotonic()
        for rank, run in enumerate(runs):
            self.assertEqual(run.wait(20), 1, run.stderr)
            self.assertLess(time.monotonic() - began, 2 + 5, run.stderr)
            self.matches(names[rank], run.stderr)

    def test_cable_cut(self):
        """Each side names a rank of the other."""
        self.cut_in_mid_step(2, layout(dp=2), [r"rank 1 (did not arrive|is gone|has)", r"rank 0 (did not arrive|is gone|has)"])

    def test_cable_cut_four(self):
        there, here = r"rank [23] (did not arrive|is gone|has)", r"rank [01] (did not arrive|is gone|has)"
        self.cut_in_mid_step(4, layout(tp=2, dp=2), [there, there, here, here])


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(reason + ": skipped")
        sys.exit(77)
    unittest.main()
