#!/usr/bin/env python3
"""Ranks that Slurm's srun starts, with PMIx and without: they join, train as under our own launcher, and end together.

usage: slurm.py TENON [MPI.so] [unittest options]; runs a Slurm of its own on this host, skipped where that does not start"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, free_port, layout, read, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]
MPI = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1].endswith(".so") else None

CONF = """ClusterName=tenon
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


class Cluster:
    """munged, slurmctld and slurmd of this test alone: own folder, ports and key. `missing`: why there is none."""

    def __init__(self):
        self.processes, self.missing = [], ""
        programs = [name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name, path=self.path())]
        if programs or os.geteuid() != 0:
            self.missing = "no " + ", ".join(programs) if programs else "only root can start one"
            return
        self.folder = tempfile.mkdtemp(prefix="tenon-slurm-")
        os.chmod(self.folder, 0o755)
        for name in ("state", "spool"):
            os.mkdir(os.path.join(self.folder, name))
        with open(os.path.join(self.folder, "munge.key"), "wb") as file:
            os.fchmod(file.fileno(), 0o400)
            file.write(os.urandom(128))
        with open(os.path.join(self.folder, "slurm.conf"), "w", encoding="utf-8") as file:
            file.write(CONF.format(host=socket.gethostname().split(".")[0], folder=self.folder, controller=free_port(),
                                   daemon=free_port()))
        self.env = {"SLURM_CONF": os.path.join(self.folder, "slurm.conf"), "PATH": self.path()}
        munge = ["--%s=%s/munge.%s" % (word, self.folder, end)
                 for word, end in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"),
                                   ("seed-file", "seed"))]
        self.start("munged", "--foreground", "--force", *munge)
        until(lambda: os.path.exists(os.path.join(self.folder, "munge.socket")) or self.ended())
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        if not until(lambda: self.answers() or self.ended()) or self.ended():
            self.missing = "it does not start here: " + self.log()
            self.stop()

    @staticmethod
    def path():
        return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

    def start(self, name, *arguments):
        with open(os.path.join(self.folder, name + ".out"), "wb") as out:
            self.processes.append(subprocess.Popen([shutil.which(name, path=self.path()), *arguments], stdin=subprocess.DEVNULL,
                                                   stdout=out, stderr=out, env={**os.environ, **self.env}))

    def answers(self):
        time.sleep(0.2)
        done = subprocess.run(["srun", "-n", "1", "--immediate=2", "true"], env={**os.environ, **self.env}, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
        return done.returncode == 0

    def ended(self):
        return any(process.poll() is not None for process in self.processes)

    def log(self):
        lines = []
        for name in ("slurmctld.log", "slurmd.log", "munged.out"):
            try:
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                    lines += file.read().splitlines()[-2:]
            except OSError:
                pass
        return "; ".join(lines)

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Srun(JobTest):
    TENON = "srun"
    cluster = None

    def srun(self, n, *arguments, **options):
        words = ["--overcommit", *options.pop("flags", []), "-n", n, TENON, "run", "job.ini", *arguments]
        return self.run_tenon(*words, env=self.cluster.env, **options)

    def losses(self, name):
        steps = [(line["step"], line["loss"], line["grad_norm"]) for line in self.metrics(name) if "grad_norm" in line]
        self.assertEqual(len(steps), 3)
        return steps

    def test_same_losses(self):
        self.TENON = TENON
        self.run_tenon("run", "job.ini", *layout(tp=2), "--metrics", "ours")
        self.TENON = "srun"
        over_mpi = [("mpi", ["--mpi=pmix"], settings(comm={"backend": "mpi"}))] if MPI else []
        for name, flags, more in [("plain", ["--mpi=none"], []), ("pmix", ["--mpi=pmix"], []), *over_mpi]:
            with self.subTest(name):
                self.srun(2, *layout(tp=2), *more, "--metrics", name, flags=flags)
                self.assertEqual(self.losses(name), self.losses("ours"))

    def test_one_task_starts_its_own_ranks(self):
        run = self.srun(1, *layout(tp=2), "-n", "2", "--metrics", "one")
        self.assertNotIn("error", run.stderr)
        self.assertEqual(len(self.losses("one")), 3)

    def test_killed_rank(self):
        """Slurm leaves the others alone by itself; the store tells them."""
        run = self.start("--overcommit", "--mpi=none", "-n", "2", "--kill-on-bad-exit=0", TENON, "run", "job.ini",
                         *layout(tp=2), "--steps", "1000000", "--metrics", "metrics", 
                         env=self.cluster.env)
        self.assertTrue(until(lambda: len(self.metrics()) > 2), run.stderr)
        victim = [pid for pid in run.processes() if os.readlink("/proc/%d/exe" % pid) == os.path.realpath(TENON)
                  and b"SLURM_PROCID=1" in read("/proc/%d/environ" % pid).split(b"\0")]
        os.kill(victim[0], signal.SIGKILL)
        self.assertNotEqual(run.wait(), 0)
        self.matches("rank 1 is gone", run.stderr)
        self.assertTrue(until(lambda: not run.processes()))


if __name__ == "__main__":
    Srun.cluster = Cluster()
    if Srun.cluster.missing:
        print("no Slurm here (%s): skipped" % Srun.cluster.missing)
        sys.exit(77)
    try:
        unittest.main()
    finally:
        Srun.cluster.stop()
