#!/usr/bin/env python3
"""Jobs where the system gives less than usual: a full /dev/shm, no ptrace, a token that is not the job's. They go on, or
end with the reason.

usage: surroundings.py TENON DENY_LIBRARY BACKENDS [unittest options]; BACKENDS: "shm,ucx", those that were built"""
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, free_port, layout, settings  # noqa: E402

TENON, DENY, BACKENDS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3].split(",")
del sys.argv[1:4]
# A /dev/shm of its own with not a page left.
FULL = "mount -t tmpfs -o size=4k none /dev/shm && (dd if=/dev/zero of=/dev/shm/full bs=8k count=1 2>/dev/null; exec \"$@\")"


def may_mount():
    return os.geteuid() == 0 and shutil.which("unshare") and subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True).returncode == 0


class Surroundings(JobTest):
    TENON = TENON

    def losses(self, *arguments, **options):
        self.run_tenon(*arguments, "--metrics", "metrics", **options)
        return [(line["loss"], line["grad_norm"]) for line in self.metrics() if "grad_norm" in line]

    def test_full_dev_shm(self):
        if not may_mount():
            self.skipTest("no mount namespaces here")
        where = ["run", "job.ini", *layout(tp=2)]
        usual = self.losses(*where)
        self.TENON = shutil.which("unshare")
        full = ["-m", "sh", "-c", FULL, "sh", TENON, *where]
        self.assertEqual(usual, self.losses(*full))
        if "ucx" in BACKENDS:
            ucx = settings(comm={"backend": "ucx"})
            run = self.run_tenon(*full, *ucx, code=1)
            self.assertIn("is /dev/shm full (df /dev/shm)? [ucx] transports = tcp does without it", run.stderr)
            self.assertEqual(usual, self.losses(*full, *ucx, *settings(ucx={"transports": "tcp"})))

    @unittest.skipIf(os.environ.get("SANITIZE", "none") != "none", "a sanitizer must be loaded before all others")
    def test_no_ptrace(self):
        where = ["run", "job.ini", *layout(tp=2)]
        usual = self.losses(*where)
        for backend in BACKENDS:
            with self.subTest(backend):
                self.assertEqual(usual, self.losses(*where, *settings(comm={"backend": backend}), env={"LD_PRELOAD": DENY}))

    def test_wrong_token(self):
        port = str(free_port())
        runs = [self.start("run", "job.ini", *layout(tp=2), *settings(comm={"timeout": "5s"}),
                           env={"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                                "TENON_TOKEN": "secret%d" % rank}) for rank in range(2)]
        self.assertEqual([run.wait() for run in runs], [1, 1])
        self.matches(r"refuses rank 1: it does not accept the token; TENON_TOKEN must be the same on all ranks of a job",
                     runs[1].stderr)
        self.matches(r"not all of the 2 ranks have joined .*missing: 1", runs[0].stderr)
        self.assertEqual([run.processes() for run in runs], [[], []])


if __name__ == "__main__":
    unittest.main()
