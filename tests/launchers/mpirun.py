#!/usr/bin/env python3
"""Ranks that Open MPI's mpirun starts: they join, and the backend mpi gives the losses of shm, to the last bit.

usage: mpi.py TENON [unittest options]; skipped where there is no mpirun"""
import os
import re
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, layout, read, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]
MPIRUN = ("--oversubscribe", "--allow-run-as-root", "--tag-output", "-n")


class Mpirun(JobTest):
    TENON = shutil.which("mpirun")

    def losses(self, name, *arguments):
        self.run_tenon(*arguments, "--metrics", name)
        steps = [(line["step"], line["loss"], line["grad_norm"]) for line in self.metrics(name) if "grad_norm" in line]
        self.assertEqual(len(steps), 3, self.metrics(name))
        return steps

    def mpirun(self, n, name, *arguments):
        return self.losses(name, *MPIRUN, n, TENON, "run", "job.ini", *arguments)

    def test_same_losses(self):
        for n, where in ((2, layout(tp=2)), (2, layout(dp=2)), (4, layout(tp=2, dp=2))):
            with self.subTest(where):
                shm = self.mpirun(n, "shm", *where)
                mpi = self.mpirun(n, "mpi", *where, *settings(comm={"backend": "mpi"}))
                self.assertEqual(shm, mpi)

    def test_without_pmix(self):
        """Open MPI's own variables do where tenon was built without PMIx, or does not get at it."""
        pmix = self.mpirun(2, "pmix", *layout(tp=2))
        bare = self.losses("bare", *MPIRUN, 2, "env", "-u", "PMIX_NAMESPACE", "-u", "PMIX_RANK", TENON, "run", "job.ini",
                           *layout(tp=2))
        self.assertEqual(pmix, bare)

    def test_two_at_once(self):
        """Each job finds a port of its own."""
        long = self.start(*MPIRUN, 2, TENON, "run", "job.ini", *layout(tp=2), "--steps", 100000)
        self.assertTrue(until(lambda: "step 1/" in long.stderr), long.stderr)
        for pid in long.processes():  # it keeps its port, and leaves the cores to the other
            os.kill(pid, signal.SIGSTOP)
        self.mpirun(2, "other", *layout(tp=2))
        self.assertIsNone(long.process.poll(), long.stderr)

    def test_backend_per_axis(self):
        """shm along one axis, mpi along the other: both under way at once, and a trace of each."""
        where = layout(tp=2, dp=2)
        shm = self.mpirun(4, "shm", *where)
        for axis in ("tp", "dp"):
            with self.subTest(axis):
                both = self.mpirun(4, "both", *where, *settings(**{"comm.%s" % axis: {"backend": "mpi"}}))
                self.assertEqual(shm, both)
        trace = settings(comm={"layers": "trace, verify", "backend": "mpi"}, trace={"file": self.path("calls")},
                         **{"comm.tp": {"backend": "shm"}})
        self.assertEqual(shm, self.mpirun(4, "traced", *where, *trace))
        groups = {backend: {call["group"] for call in self.metrics("calls.%s.0.jsonl" % backend)}
                  for backend in ("shm", "mpi")}
        self.assertEqual(groups["shm"], {"tp"})
        self.assertEqual(groups["mpi"], {"dp", "world"})

    def test_verify_over_mpi(self):
        shm = self.mpirun(2, "shm", *layout(tp=2))
        mpi = self.mpirun(2, "mpi", *layout(tp=2), *settings(comm={"backend": "mpi", "layers": "verify"}))
        self.assertEqual(shm, mpi)

    def test_one_rank(self):
        run = self.run_tenon(*MPIRUN, 1, TENON, "bench", "comm", "--backends", "shm,mpi", "-e", "64K", "-n", 2)
        self.assertIn("# 1 rank on 1 host", run.stdout)

    def test_a_rank_hangs(self):
        """MPI does not say who is missing: the ranks that give up find out, also who waits in another group for one that
        waits for it."""
        verify = settings(comm={"layers": "verify"})
        for n, where in ((2, layout(tp=2)), (4, layout(tp=2, dp=2)), (4, layout(tp=2, dp=2) + verify)):
            run = self.start(*MPIRUN, n, TENON, "run", "job.ini", "--steps", 1000000, *where,
                             *settings(comm={"backend": "mpi", "timeout": "6s"}))
            self.assertTrue(until(lambda: "step 1/" in run.stdout + run.stderr, 60), run.stdout + run.stderr)
            hung = next(pid for pid in run.processes()
                        if b"OMPI_COMM_WORLD_RANK=%d" % (n - 1) in read("/proc/%d/environ" % pid).split(b"\0"))
            os.kill(hung, signal.SIGSTOP)
            self.assertNotIn(run.wait(60), (0, "still running after 60 s"))
            said = run.stdout + run.stderr
            self.assertEqual(set(re.findall(r": rank (\d+) did not arrive within 6 s", said)), {str(n - 1)}, said)

    def test_not_from_mpirun(self):
        self.TENON = TENON
        run = self.run_tenon("run", "job.ini", *layout(tp=2), *settings(comm={"backend": "mpi"}), code=1)
        self.assertIn("mpi: this rank was started without MPI; use: mpirun -n 2 tenon run JOB.ini, or srun --mpi=pmix", run.stderr)


if __name__ == "__main__":
    if not Mpirun.TENON:
        print("no mpirun here: skipped")
        sys.exit(77)
    unittest.main()
