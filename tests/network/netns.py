"""Two "hosts" on one machine: network namespaces joined by a cable (a veth pair), and jobs whose ranks are split
between them. Needs root and iproute2; `why_not` says what is missing.

    with TwoHosts() as hosts:
        subprocess.run(hosts.command("b", ["ping", "-c1", hosts.address["a"]]))
        hosts.cut()

Ranks of different hosts cannot share memory for the job (the launcher's host ids differ), although it is one machine."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, until  # noqa: E402

PORT = "29500"  # everything is free in a new namespace


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def why_not():
    """Why there can be no namespaces here; None if there can."""
    if not shutil.which("ip"):
        return "no ip (iproute2) here"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with TwoHosts():
            return None
    except subprocess.CalledProcessError as error:
        return "network namespaces are not permitted: " + error.stderr.strip()


class TwoHosts:
    """Hosts "a" and "b"; the device has the same name on both."""

    device = "cable"
    address = {"a": "10.99.0.1", "b": "10.99.0.2"}

    def __init__(self):
        self.namespace = {host: "tenon-%d-%s" % (os.getpid(), host) for host in "ab"}

    def __enter__(self):
        try:
            for host in "ab":
                ip("netns", "add", self.namespace[host])
                self.inside(host, "link", "set", "lo", "up")
            self.inside("a", "link", "add", self.device, "type", "veth", "peer", "name", self.device, "netns",
                        self.namespace["b"])
            for host in "ab":
                self.inside(host, "addr", "add", self.address[host] + "/24", "dev", self.device)
            self.mend()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for namespace in self.namespace.values():
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def inside(self, host, *words):
        """`ip` in the namespace of a host."""
        ip("-n", self.namespace[host], *words)

    def command(self, host, words):
        """The command line that runs another one on a host."""
        return ["ip", "netns", "exec", self.namespace[host], *words]

    def cut(self):
        """The cable: packets no longer arrive, and nobody is told."""
        self.inside("a", "link", "set", self.device, "down")

    def mend(self):
        for host in "ab":
            self.inside(host, "link", "set", self.device, "up")
        if not until(lambda: all(self.is_up(host) for host in "ab")):
            raise OSError("the cable between the namespaces does not come up")

    def is_up(self, host):
        shown = subprocess.run(["ip", "-n", self.namespace[host], "link", "show", self.device], check=True,
                               capture_output=True, text=True).stdout
        return "state UP" in shown


class NetworkTest(JobTest):
    """Jobs over two hosts. TENON is set by the file that is run."""

    TENON_COMMAND = None  # absolute path of tenon

    def setUp(self):
        super().setUp()
        self.hosts = TwoHosts()
        self.hosts.__enter__()
        self.addCleanup(self.hosts.close)
        self.TENON = "ip"

    def start_rank(self, host, rank, world, *arguments, env=None):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": self.hosts.address["a"],
                     "MASTER_PORT": PORT, "TENON_TOKEN": "of-this-test", **(env or {})}
        command = self.hosts.command(host, [self.TENON_COMMAND, *arguments])
        return self.start(*command[1:], env=variables)

    def start_job(self, world, *arguments, env=None):
        """`tenon run job.ini ...` with the lower half of the ranks on host a, the others on b."""
        return [self.start_rank("a" if rank < (world + 1) // 2 else "b", rank, world, "run", "job.ini", *arguments,
                                env=env) for rank in range(world)]

    def run_job(self, world, *arguments, code=0, seconds=200.0):
        """To the end; the exit code of each rank is looked at."""
        runs = self.start_job(world, *arguments)
        for run in runs:
            self.assertEqual(run.wait(seconds), code, "".join(r.stdout + r.stderr for r in runs))
        return runs
