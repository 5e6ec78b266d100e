#!/usr/bin/env python3
"""Jobs over several hosts, simulated on this one: the backend hier, and what is said where shm alone cannot do.

usage: hier.py TENON MPI.so|- [unittest options]; with Open MPI's backend also under its mpirun"""
import math
import os
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, layout, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
MPIRUN = shutil.which("mpirun") if sys.argv[2] != "-" else None
del sys.argv[1:3]

# Across the simulated hosts shm again, told to take them for one.
HIER = settings(comm={"backend": "hier"}, hier={"outer": "shm"}, shm={"any_host": "true"})


class Hier(JobTest):
    TENON = TENON

    def hosts(self, letters):
        return {"env": {"TENON_SIMULATE_HOSTS": letters}}

    def steps(self, name="metrics"):
        return [(line["loss"], line["grad_norm"]) for line in self.metrics(name) if "grad_norm" in line]

    def near(self, one, other):
        self.assertEqual(len(one), len(other))
        for pair in zip(sum(one, ()), sum(other, ())):
            self.assertTrue(math.isclose(*pair, rel_tol=2e-5), (one, other))

    def test_losses(self):
        """Groups inside a host, across hosts, both; hosts of unequal size; and the same bits in every run."""
        for where, hosts in ((layout(tp=2, dp=2), ("aabb", "aaab")), (layout(dp=4), ("aabb", "abba", "abba"))):
            self.run_tenon("run", "job.ini", "--metrics", "shm", *where)
            last = None
            for letters in hosts:
                with self.subTest(where=where, hosts=letters):
                    self.run_tenon("run", "job.ini", "--metrics", "hier", *where, *HIER, **self.hosts(letters))
                    self.near(self.steps("shm"), self.steps("hier"))
                    if last and last[0] == letters:
                        self.assertEqual(self.steps("hier"), last[1])
                    last = letters, self.steps("hier")

    def test_one_host(self):
        """Where no group spans hosts hier is the inner backend, to the bit."""
        where = layout(tp=2, dp=2)
        self.run_tenon("run", "job.ini", "--metrics", "shm", *where)
        self.run_tenon("run", "job.ini", "--metrics", "hier", *where, *settings(comm={"backend": "hier"}, hier={"outer": "shm"}))
        self.assertEqual(self.steps("shm"), self.steps("hier"))

    def test_shm_inside_hier_across(self):
        """tp by shm, dp by hier over the very same shm; layers over both."""
        where = layout(tp=2, dp=2)
        self.run_tenon("run", "job.ini", "--metrics", "one", *where)
        run = self.run_tenon("run", "job.ini", "--metrics", "two", *where, *settings(comm={"layers": "trace, verify"}),
                             *HIER, *settings(**{"comm.tp": {"backend": "shm"}}), **self.hosts("aabb"))
        self.near(self.steps("one"), self.steps("two"))
        self.matches(r"trace: rank 3, group tp of 2, all_reduce: \d+ calls", run.stderr)

    def test_shm_cannot(self):
        run = self.start("run", "job.ini", *layout(tp=2, dp=2), **self.hosts("aabb"))
        self.assertEqual(run.wait(), 1)
        self.matches(r"shm: group dp has rank \d, which is on another host than rank \d; use backend hier, or one with a "
                     r"network", run.stderr)

    def test_mistakes(self):
        for keys, message in (({"outer": "hier"}, "backend hier stands on this one"),
                              ({"outer": "nobody"}, "backend nobody: not-found"), ({"inner": "tp"}, "kind strategy")):
            with self.subTest(keys):
                run = self.run_tenon("check", "job.ini", *layout(tp=2), *settings(comm={"backend": "hier"}, hier=keys), code=2)
                self.assertIn(message, run.stdout + run.stderr)

    def test_rank_killed_and_stopped(self):
        """Whoever waits, and on whichever host, names the rank that is gone."""
        for number, message in ((signal.SIGKILL, r"cannot finish: rank 3 was killed by signal 9"),
                                (signal.SIGSTOP, r"rank 3 did not arrive within 5 s")):
            run = self.start("run", "job.ini", "--steps", "1000000", "--metrics", "metrics", *layout(dp=4), *HIER,
                             *settings(comm={"timeout": "5s"}), **self.hosts("abab"))
            self.assertTrue(until(lambda: len(self.metrics()) >= 3 or run.process.poll() is not None))
            self.assertIsNone(run.process.poll(), run.stderr)
            os.kill(run.rank(3), number)
            self.assertEqual(run.wait(), 1)
            self.matches(message, run.stderr)
            self.assertEqual(run.processes(), [])
            os.unlink(self.path("metrics"))

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_over_mpi(self):
        where = layout(tp=2, dp=2)
        self.run_tenon("run", "job.ini", "--metrics", "shm", *where)
        self.TENON = MPIRUN
        self.run_tenon("--oversubscribe", "--allow-run-as-root", "-n", 4, TENON, "run", "job.ini", "--metrics", "hier", *where,
                       *settings(comm={"backend": "hier"}, hier={"outer": "mpi"}), **self.hosts("aabb"))
        self.near(self.steps("shm"), self.steps("hier"))


if __name__ == "__main__":
    unittest.main()
