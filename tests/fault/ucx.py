#!/usr/bin/env python3
"""Ranks that die or stop over the backend ucx, and neighbours whose memory may not be read: the right rank is named, in
time, and nothing is left.

usage: ucx.py TENON CLOSED_LIBRARY [unittest options]"""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, layout, read, settings, until  # noqa: E402

TENON, CLOSED = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]

WHAT = r"(all_reduce (\S+ \(\d+ elements\) on \w+ \[[\d ]+\]|of the vote between steps on all ranks))"


def shared_memory():
    """What UCX may leave: System V segments, files in /dev/shm."""
    listed = subprocess.run(["ipcs", "-m"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    return {line.split()[1] for line in listed.splitlines() if re.match("0x", line)}, set(os.listdir("/dev/shm"))


def belong_to(segments, pids):
    """Of the System V segments those that one of the processes made or used last."""
    rows = [line.split() for line in read("/proc/sysvipc/shm").decode().splitlines()[1:]]
    return {row[1] for row in rows if row[1] in segments and (int(row[4]) in pids or int(row[5]) in pids)}


class Ucx(JobTest):
    TENON = TENON

    def endless(self, *arguments, **options):
        run = self.start("run", "job.ini", "--steps", "1000000", "--metrics", "metrics",
                         *settings(comm={"backend": "ucx"}), *arguments, **options)
        self.assertTrue(until(lambda: len(self.metrics()) >= 3 or run.process.poll() is not None))
        self.assertIsNone(run.process.poll(), run.stderr)
        return run

    def ends(self, run, killed=()):
        """Before anybody's time-out, all ranks by themselves but these."""
        self.assertEqual(run.wait(), 1, run.stderr)
        self.assertNotRegex(run.stderr, "within 60 s|after 60")
        self.assertEqual(self.killed_at_last(run), list(killed))
        self.assertEqual(run.processes(), [])
        self.assertEqual(self.files(), ["metrics"])
        os.unlink(self.path("metrics"))

    def test_rank_killed(self):
        for sizes, victim, tuned in (({"tp": 2}, 1, {}), ({"dp": 2}, 0, {"eager": "64", "small": "64"}),
                                     ({"tp": 2, "dp": 2}, 2, {}), ({"tp": 2, "dp": 2}, 0, {"transports": "tcp"})):
            with self.subTest(sizes=sizes, tuned=tuned):
                run = self.endless(*layout(**sizes), *settings(ucx=tuned))
                pids = set(run.processes())
                os.kill(run.rank(victim), signal.SIGKILL)
                self.ends(run)
                death = r"rank %d was killed by signal 9 \(Killed\)" % victim
                self.matches("^tenon: error: %s; ending the others$" % death, run.stderr)
                self.matches("%s cannot finish: %s" % (WHAT, death), run.stderr)
                segments, files = shared_memory()
                self.assertEqual(belong_to(segments, pids), set())
                # UCX takes the name away as soon as the file is open, in other processes of this machine, too.
                self.assertTrue(until(lambda: not any(name.startswith("ucx") and name in files
                                                      for name in os.listdir("/dev/shm"))), files)

    def test_all_killed_at_once(self):
        run = self.endless(*layout(tp=2, dp=2))
        pids = set(run.processes())
        for pid in [run.rank(rank) for rank in range(4)]:
            os.kill(pid, signal.SIGKILL)
        self.ends(run)
        self.assertEqual(belong_to(shared_memory()[0], pids), set())

    def test_rank_stopped(self):
        for sizes, victim in (({"tp": 2}, 1), ({"dp": 3}, 2), ({"tp": 2, "dp": 2}, 1)):
            with self.subTest(sizes):
                batch = settings(data={"batch": 24}) if sizes.get("dp") == 3 else []
                run = self.endless(*layout(**sizes), *batch, *settings(comm={"backend": "ucx", "timeout": "3s"}))
                os.kill(run.rank(victim), signal.SIGSTOP)
                self.ends(run, killed=[str(victim)])
                self.matches("%s: rank %d did not arrive within 3 s" % (WHAT, victim), run.stderr)

    def test_waiting_costs_little(self):
        """While a rank is stopped, the others sleep."""
        run = self.endless(*layout(tp=2, dp=2))
        os.kill(run.rank(3), signal.SIGSTOP)
        waiting = [run.rank(rank) for rank in range(3)]

        def spent(pid):
            words = read("/proc/%d/stat" % pid).decode().rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

        def share(seconds):
            before, began = [spent(pid) for pid in waiting], time.monotonic()
            time.sleep(seconds)
            return max(spent(pid) - was for pid, was in zip(waiting, before)) / (time.monotonic() - began)

        # Where the machine is busy it takes them a while to come to where they wait.
        self.assertTrue(until(lambda: share(2) < 0.05, 30), run.stderr)

    @unittest.skipIf(os.environ.get("SANITIZE", "none") != "none", "a sanitizer must be loaded before all others")
    @unittest.skipIf(os.geteuid() != 0, "root can become a user who may not trace others")
    def test_no_permission_to_read_neighbours(self):
        """Without ptrace's permission UCX could not read a neighbour's memory: that is said, and the run goes on."""
        for name in ("", "text", "tmp"):
            os.chmod(self.path(name), 0o777)
        nobody = ("--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs", TENON)
        self.TENON = "setpriv"
        if self.start(*nobody, "version").wait():
            self.skipTest("user 65534 cannot run this build")
        same = [*layout(tp=2), *settings(comm={"backend": "ucx"})]
        losses = [self.run_tenon(*nobody, "run", "job.ini", *same, env=env)
                  for env in ({}, {"LD_PRELOAD": CLOSED})]
        self.assertIn("training loss", losses[0].stdout)
        self.assertEqual(losses[0].stdout, losses[1].stdout)
        self.assertNotIn("cannot be read", losses[0].stderr)
        self.matches(r"the memory of rank \d \(process \d+\) cannot be read: Operation not permitted", losses[1].stderr)


if __name__ == "__main__":
    unittest.main()
