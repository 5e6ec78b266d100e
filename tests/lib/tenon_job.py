"""Jobs for tests of the command: a folder with a small manifest and a corpus, `tenon` run in it, what is left of it.

Every process of a run carries a mark in its environment, so that it is found wherever it is in the process tree."""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TENON_TOKEN",
                    "TENON_PORT", "TENON_PLUGIN_PATH", "TENON_LAUNCHER")

MANIFEST = """[job]
steps = 3
seed = 7
eval_batches = 1
[model]
plugin = gpt
[gpt]
family = llama
layers = 2
hidden = 64
heads = 4
kv_heads = 2
mlp = 96
vocab = 256
positions = 32
[data]
path = text/*.txt
sequence = 32
batch = 8
[optimizer]
schedule = constant
[cpu]
threads = 1
[strategies]
chain =
"""

# What whoever started the tests wants ignored (nohup, a shell's background job), jobs would ignore too.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def until(condition, seconds=100.0):
    """Whether the condition came true in time. (What is waited for comes at once, but on a busy machine.)"""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


ports = []  # abstract names, which hold for as long as this process runs


def free_port():
    """Below the ports that the system gives to connections, so that none takes it before the rank that listens; and no
    other test that runs now gets the same."""
    while True:
        port = random.randrange(20000, 32000)
        name, probe = socket.socket(socket.AF_UNIX), socket.socket()
        try:
            name.bind("\0tenon-test-port-%d" % port)
            probe.bind(("127.0.0.1", port))
            ports.append(name)
            return port
        except OSError:
            name.close()
        finally:
            probe.close()


def send_signal(pid, number):
    """Sends it, and waits until it was taken: one of the same number that comes before is lost."""
    os.kill(pid, number)
    return until(lambda: not any(int(word, 16) >> number - 1 & 1 for word in
                                 re.findall(rb"^S\w+Pnd:\t(\w+)", read("/proc/%d/status" % pid), re.M)))


def settings(**sections):
    """settings(tp={"size": 2}) as arguments: --set tp.size=2."""
    return [word for section, keys in sections.items() for key, value in keys.items()
            for word in ("--set", "%s.%s=%s" % (section, key, value))]


def layout(tp=1, dp=1):
    chain = [name for name, size in (("tp", tp), ("dp", dp)) if size > 1]
    sizes = {name: {"size": size} for name, size in (("tp", tp), ("dp", dp)) if size > 1}
    return settings(strategies={"chain": ", ".join(chain)}, **sizes)


class Run:
    """`tenon` under way or ended."""

    def __init__(self, tenon, folder, arguments, env=None, **popen):
        self.mark = ("TENON_TEST_MARK=%032x" % random.getrandbits(128)).encode()
        environment = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
        environment.update(env or {})
        name, value = self.mark.decode().split("=")
        environment[name] = value
        environment["TMPDIR"] = os.path.join(folder, "tmp")
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen([tenon, *arguments], cwd=folder, env=environment,
                                        stdin=popen.pop("stdin", subprocess.DEVNULL),
                                        stdout=popen.pop("stdout", self.out),
                                        stderr=popen.pop("stderr", self.err), start_new_session=True, **popen)

    @staticmethod
    def text(file):
        return os.pread(file.fileno(), 1 << 22, 0).decode("utf-8", "replace")

    @property
    def stdout(self):
        return self.text(self.out)

    @property
    def stderr(self):
        return self.text(self.err)

    def processes(self):
        """Process ids of this run that exist. (A zombie shows no environment and is not counted.)"""
        return [int(pid) for pid in os.listdir("/proc")
                if pid.isdigit() and self.mark in read("/proc/%s/environ" % pid).split(b"\0")]

    def rank(self, number):
        """Process id of a rank; None before it exists."""
        want = b"RANK=%d" % number
        for pid in self.processes():
            if want in read("/proc/%d/environ" % pid).split(b"\0"):
                return pid
        return None

    def wait(self, seconds=200.0):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "still running after %.0f s" % seconds

    def kill(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def close(self):
        self.kill()
        self.out.close()
        self.err.close()


class JobTest(unittest.TestCase):
    """One folder a test. TENON is set by the file that is run."""

    TENON = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tenon-job-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.mkdir(self.path("tmp"))
        os.mkdir(self.path("text"))
        self.write("job.ini", MANIFEST)
        draw, words = random.Random(1), "the time of day we told our clock by was not the sun".split()
        self.write("text/a.txt", " ".join(draw.choice(words) for _ in range(12000)))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def start(self, *arguments, **options):
        run = Run(self.TENON, self.folder, [str(word) for word in arguments], **options)
        self.addCleanup(run.close)
        return run

    def run_tenon(self, *arguments, code=0, seconds=200.0, **options):
        """Runs to the end and looks at the exit code."""
        run = self.start(*arguments, **options)
        self.assertEqual(run.wait(seconds), code, run.stdout + run.stderr)
        return run

    def metrics(self, name="metrics"):
        """Complete lines only."""
        return [json.loads(line) for line in read(self.path(name)).split(b"\n")[:-1]]

    def files(self):
        """Files of the folder, but for those that the test put there."""
        found = [os.path.relpath(os.path.join(folder, name), self.folder)
                 for folder, _, names in os.walk(self.folder) for name in names]
        return sorted(set(found) - {"job.ini", "text/a.txt"})

    def killed_at_last(self, run):
        """The ranks that the launcher had to kill, three seconds after a death, as they did not end by themselves."""
        return re.findall(r"killing what does not end by itself: rank (.*)", run.stderr)

    def matches(self, pattern, text):
        self.assertTrue(re.search(pattern, text, re.M), "no %r in:\n%s" % (pattern, text))
