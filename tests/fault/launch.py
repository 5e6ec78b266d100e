#!/usr/bin/env python3
"""Launch under fire: ranks and launcher are killed, hang, are interrupted, or cannot start.

Every run carries a mark in its environment, so that what is left of it is found, wherever it is in the process tree.
Usage: launch.py LAUNCH_RANK [unittest options]"""
import fcntl
import os
import pty
import random
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import read, send_signal, until  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else None
NOBODY = 60000 + os.getpid() % 5000  # with no other process


class Job:
    """One run of launch_rank with its output, its ranks' process ids and whatever is left of it."""

    def __init__(self, *behaviour, world=None, program=PROGRAM, **popen):
        self.mark = "LAUNCH_TEST_MARK=%032x" % random.getrandbits(128)
        self.screen, terminal = popen.pop("screen", (None, None))
        self.shown = b""
        self.out = tempfile.TemporaryFile()
        self.err = tempfile.TemporaryFile()
        env = popen.pop("env", dict(os.environ))
        name, value = self.mark.split("=")
        for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            env.pop(variable, None)
        env[name] = value
        env.setdefault("LAUNCH_RANK_TIMEOUT", "600")  # no rank gives up by itself
        env.setdefault("TSAN_OPTIONS", "report_thread_leaks=0 atexit_sleep_ms=0")  # ranks that fail just exit
        self.world = world or len(behaviour)
        self.process = subprocess.Popen([program, str(self.world), *behaviour], stdout=terminal or self.out,
                                        stderr=self.err, env=env, start_new_session=True, **popen)

    @staticmethod
    def text(file):
        return os.pread(file.fileno(), 1 << 20, 0).decode()

    @property
    def stdout(self):
        if self.screen is None:
            return self.text(self.out)
        while select.select([self.screen], [], [], 0)[0]:
            try:
                self.shown += os.read(self.screen, 4096)
            except OSError:  # all who could write are gone
                break
        return self.shown.decode().replace("\r\n", "\n")

    @property
    def stderr(self):
        return self.text(self.err)

    def joined(self, count=None):
        assert until(lambda: self.stdout.count("joined") == (count or self.world)), self.stdout + self.stderr

    def pid(self, rank):
        return int(re.search(r"^rank %d pid (\d+)$" % rank, self.stdout, re.M).group(1))

    @staticmethod
    def state(pid):
        return read("/proc/%d/stat" % pid).decode().rpartition(") ")[2][:1]

    def ended(self, rank):
        """A zombie all of whose threads are gone: only then its parent can collect it."""
        return self.state(self.pid(rank)) == "Z" and len(os.listdir("/proc/%d/task" % self.pid(rank))) == 1

    def left(self):
        """Processes of this run that exist. (Zombies show no environment; a launcher that ended has none.)"""
        mark, found = self.mark.encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if mark in read("/proc/%s/environ" % pid).split(b"\0"):
                found.append(int(pid))
        return found

    def killed(self):
        """The ranks that the launcher had to kill as they did not end by themselves."""
        return re.findall("killing what does not end by itself: rank (.*)", self.stderr)

    def wait(self, seconds=100.0):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "still running after %.0f s" % seconds

    def close(self):
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.out.close()
        self.err.close()


class Launch(unittest.TestCase):
    def start(self, *behaviour, **options):
        job = Job(*behaviour, **options)
        self.addCleanup(job.close)
        return job

    def ends(self, job, code, killed=()):
        """The job ends with the code, all ranks by themselves but these, and leaves nothing."""
        self.assertEqual(job.wait(), code, job.stdout + job.stderr)
        self.assertEqual(job.killed(), list(killed))
        self.assertTrue(until(lambda: job.left() == []), job.left())  # what ranks started is killed, not waited for

    def complaints(self, job):
        return [line for line in job.stderr.splitlines() if line.startswith("tenon: error")]

    def test_rank_killed(self):
        job = self.start("wait", "wait", "wait", "wait")
        job.joined()
        os.kill(job.pid(2), signal.SIGKILL)
        self.ends(job, 1)
        self.assertEqual(self.complaints(job),
                         ["tenon: error: rank 2 was killed by signal 9 (Killed); ending the others"])
        for rank in (0, 1, 3):
            self.assertIn("rank %d heard: rank 2 was killed by signal 9 (Killed)\n" % rank, job.stderr)

    def test_rank_crashes(self):
        job = self.start("wait", "die:6")
        self.ends(job, 1)
        self.assertIn("rank 0 heard: rank 1 was killed by signal 6 (Aborted)", job.stderr)

    def test_rank_exits_1(self):
        job = self.start("wait", "exit:1", "wait")
        self.ends(job, 1)
        self.assertEqual(len(self.complaints(job)), 1)
        self.assertIn("rank 1 exited with code 1", job.stderr)

    def test_rank_ends_early(self):
        """Exit code 0 without goodbye is no failure of that rank, but the others cannot go on."""
        job = self.start("wait", "exit:0", "wait")
        self.ends(job, 1)
        self.assertIn("rank 0 heard: rank 1 ended before the job was done", job.stderr)

    def test_hang_while_another_died(self):
        job = self.start("hang", "wait", "wait")
        job.joined()
        began = time.monotonic()
        os.kill(job.pid(1), signal.SIGKILL)
        self.ends(job, 1, killed=["0"])
        self.assertGreater(time.monotonic() - began, 2.9)
        self.assertIn("rank 2 heard: rank 1 was killed", job.stderr)

    def test_stopped_while_another_died(self):
        job = self.start("wait", "wait", "wait")
        job.joined()
        os.kill(job.pid(0), signal.SIGSTOP)
        os.kill(job.pid(2), signal.SIGKILL)
        self.ends(job, 1, killed=["0"])
        self.assertIn("rank 1 heard: rank 2 was killed", job.stderr)

    def test_many_die_at_once(self):
        job = self.start("wait", world=16)
        job.joined()
        os.kill(job.process.pid, signal.SIGSTOP)
        for rank in range(8, 16):
            os.kill(job.pid(rank), signal.SIGKILL)
        os.kill(job.process.pid, signal.SIGCONT)
        self.ends(job, 1)
        self.assertEqual(len(self.complaints(job)), 1)

    def test_killed_named_before_exited(self):
        """The launcher, stopped, finds both ends at once; the killed rank is the cause, though its number is higher."""
        job = self.start("quit:5", "wait", "wait")
        job.joined()
        os.kill(job.process.pid, signal.SIGSTOP)
        self.assertTrue(until(lambda: job.state(job.process.pid) == "T"))
        os.kill(job.pid(0), signal.SIGINT)
        self.assertTrue(until(lambda: job.ended(0)))
        os.kill(job.pid(2), signal.SIGKILL)
        self.assertTrue(until(lambda: job.ended(2)))
        os.kill(job.process.pid, signal.SIGCONT)
        self.ends(job, 1)
        self.assertEqual(self.complaints(job),
                         ["tenon: error: rank 2 was killed by signal 9 (Killed); ending the others"])

    def test_launcher_killed(self):
        job = self.start("wait", "hang", "wait")
        job.joined()
        self.assertEqual(len(job.left()), 4)
        job.process.kill()
        job.process.wait()
        self.assertTrue(until(lambda: job.left() == []), job.left())

    def test_launcher_killed_while_starting(self):
        for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
            job = self.start("wait", world=8)
            time.sleep(delay)
            job.process.kill()
            job.process.wait()
            self.assertTrue(until(lambda: job.left() == []), job.left())

    def test_children_of_ranks(self):
        job = self.start("brood", "wait", "brood")
        job.joined()
        self.assertTrue(until(lambda: len(job.left()) == 6))
        os.kill(job.pid(1), signal.SIGKILL)
        self.ends(job, 1)

    def test_interrupts(self):
        """To the launcher alone or to its group: every rank hears it once and ends in order."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for send in (os.kill, os.killpg):
                job = self.start("wait", "wait", "wait")
                job.joined()
                send(job.process.pid, number)
                self.ends(job, 0)
                for rank in range(3):
                    self.assertIn("rank %d interrupted 1\n" % rank, job.stdout)
                self.assertEqual(job.stderr, "")

    def test_interrupted_twice(self):
        job = self.start("hang", "hang", "wait")
        job.joined()
        os.kill(job.process.pid, signal.SIGINT)
        self.assertTrue(until(lambda: "rank 2 interrupted" in job.stdout))
        time.sleep(0.3)
        self.assertIsNone(job.process.poll())
        os.kill(job.process.pid, signal.SIGINT)
        self.ends(job, 1)
        self.assertEqual(self.complaints(job), ["tenon: error: interrupted by signal 2 (Interrupt)"])

    def test_interrupted_twice_while_stopped(self):
        """Ranks that cannot even die of the signal are killed a second later, though none of them has failed."""
        job = self.start("wait", "wait")
        job.joined()
        for rank in range(2):
            os.kill(job.pid(rank), signal.SIGSTOP)
        for _ in range(2):
            self.assertTrue(send_signal(job.process.pid, signal.SIGINT))
        self.ends(job, 1, killed=["0, 1"])
        self.assertEqual(len(self.complaints(job)), 1)

    def test_interrupted_before_joining(self):
        job = self.start("wait", "bare:0", "wait", env=dict(os.environ, LAUNCH_RANK_TIMEOUT="60"))
        os.kill(job.process.pid, signal.SIGINT)
        self.assertIn(job.wait(), (1, -signal.SIGINT), job.stdout + job.stderr)
        self.assertEqual(job.left(), [])

    def test_nohup(self):
        job = self.start("wait", "wait", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        job.joined()
        os.kill(job.process.pid, signal.SIGHUP)
        time.sleep(0.2)
        self.assertIsNone(job.process.poll())
        self.assertNotIn("interrupted", job.stdout)
        os.kill(job.process.pid, signal.SIGTERM)
        self.assertEqual(job.wait(), 0)

    def test_child_signal_ignored(self):
        job = self.start("bare:3", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.ends(job, 3)

    def test_terminal(self):
        """Ctrl-Z stops all, fg goes on, Ctrl-C reaches each rank once; and a rank may write to the terminal."""
        def own_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            attributes = termios.tcgetattr(0)
            attributes[3] |= termios.TOSTOP
            termios.tcsetattr(0, termios.TCSANOW, attributes)
        keyboard, terminal = pty.openpty()
        self.addCleanup(os.close, keyboard)
        job = self.start("wait", "wait", stdin=terminal, screen=(keyboard, terminal), preexec_fn=own_terminal)
        os.close(terminal)
        job.joined()

        def states():
            return "".join(map(job.state, (job.process.pid, job.pid(0), job.pid(1))))
        os.write(keyboard, b"\x1a")
        self.assertTrue(until(lambda: states() == "TTT"), states())
        os.kill(job.process.pid, signal.SIGCONT)
        self.assertTrue(until(lambda: "T" not in states()), states())
        os.write(keyboard, b"\x03")
        self.ends(job, 0)
        self.assertEqual(job.stdout.count("interrupted 1"), 2)

    def test_garbage_on_the_port(self):
        job = self.start("wait", "wait")
        job.joined()
        environment = dict(pair.split("=", 1) for pair in
                           read("/proc/%d/environ" % job.pid(1)).decode().split("\0") if "=" in pair)
        place = (environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
        for size in (1, 20, 100000):
            with socket.create_connection(place, 100) as stranger:
                try:
                    stranger.sendall(random.randbytes(size))
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        pass
                except OSError:
                    pass
        guest = dict(os.environ, RANK="1", WORLD_SIZE="2", MASTER_ADDR=place[0], MASTER_PORT=str(place[1]),
                     TENON_LAUNCHER="1", TENON_TOKEN="guess")
        guest = subprocess.run([PROGRAM, "2", "ok"], env=guest, capture_output=True, text=True, timeout=100)
        self.assertEqual(guest.returncode, 1)
        self.assertIn("does not accept the token", guest.stderr)
        self.assertIsNone(job.process.poll())
        os.kill(job.process.pid, signal.SIGINT)
        self.assertEqual(job.wait(), 0)
        self.assertEqual(job.stderr, "")

    def test_fork_fails(self):
        if os.geteuid() != 0:
            self.skipTest("the limit on processes can be set apart from other processes only by root")
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        os.chmod(folder, 0o755)
        program = shutil.copy(PROGRAM, folder)

        def few_processes():
            os.setgroups([])
            os.setgid(NOBODY)
            resource.setrlimit(resource.RLIMIT_NPROC, (5, 5))
            os.setuid(NOBODY)
        job = self.start("wait", world=32, program=program, preexec_fn=few_processes, cwd="/")
        self.ends(job, 1)
        self.assertEqual(len(self.complaints(job)), 1)
        self.assertRegex(job.stderr, r"cannot start rank \d+ of 32: Resource temporarily unavailable; "
                         r"the limit on processes \(ulimit -u\) is reached")

    def test_exec_fails(self):
        """The environment is so large that the launcher, with what start adds (169 bytes), just fits, and the ranks,
        with theirs (254 more), do not."""
        stack = 1 << 20

        def small_stack():
            resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))

        def fill(size):
            env = {"FILL%d" % i: "x" * 60000 for i in range(size // 60000)}
            env["REST"] = "x" * (size % 60000)
            return env

        def fits(size):
            try:
                return subprocess.run([PROGRAM], env=fill(size), preexec_fn=small_stack).returncode == 64
            except OSError:
                return False
        size = next(size for size in range(stack // 4, 0, -64) if fits(size))
        job = self.start("ok", world=3, env=fill(size - 208), preexec_fn=small_stack)
        self.ends(job, 1)
        self.assertIn("cannot start 3 ranks: running ", job.stderr)
        self.assertIn("Argument list too long", job.stderr)

    def test_out_of_descriptors(self):
        job = self.start("ok", world=200, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)))
        self.ends(job, 1)
        self.assertIn("200 ranks need 328 open files, the limit is 100; raise it with ulimit -n", job.stderr)

    def test_many_ranks(self):
        job = self.start("ok", world=64)
        self.ends(job, 0)
        self.assertEqual(job.stdout.count("joined 64"), 64)


if __name__ == "__main__":
    unittest.main()
