#!/usr/bin/env python3
"""The conformance suite for the backend mpi: each test by an mpirun of its own, as MPI starts once in a process.

usage: mpirun.py CONFORMANCE MPI.so VERIFY.so; skipped where there is no mpirun

Left out is what MPI cannot do: name the rank that calls something else than the others (that is what the layer verify is
for, tested over it), and go on after the death of a rank."""
import os
import shutil
import subprocess
import sys
import tempfile

TESTS = ("matrix", "large", "rounding", "send_recv", "early_recv", "arguments", "outstanding", "grid", "across_groups",
         "ring_full", "random", "memory", "message_conflict", "group_timeout", "timeout",
         "groups_without_leak")
GROUPS = "1100"  # with four ranks more than the suite's bootstrap has room for, if each told it something
VERIFIED = ("matrix", "across_groups", "random", "conflict")
SIZES = (1, 2, 4)
AT_ALL_SIZES = ("matrix", "rounding", "send_recv", "random")


def run(n, test, arguments):
    """Whether it failed."""
    with tempfile.TemporaryDirectory(prefix="tenon-conformance-") as folder:
        command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(n), conformance, "--joined",
                   os.path.join(folder, "words"), "--test", test, "--groups", GROUPS, *arguments]
        try:
            # Two at a time would get in each other's way in one folder of sessions.
            code = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=100,
                                  env={**os.environ, "TMPDIR": folder}).returncode
        except subprocess.TimeoutExpired:
            code = "still running after 100 s"
    print("%-20s %d ranks%s  %s" % (test, n, ", verified" if "--over" in arguments else "", "FAILED" if code else "ok"),
          flush=True)
    return code != 0


if not shutil.which("mpirun"):
    print("no mpirun here: skipped")
    sys.exit(77)
conformance, mpi, verify = map(os.path.abspath, sys.argv[1:])
failed = sum(run(n, test, arguments) for tests, arguments in ((TESTS, [mpi]), (VERIFIED, ["--over", mpi, verify]))
             for test in tests
             for n in (range(1, 9) if test in AT_ALL_SIZES else SIZES[-1:] if test == "groups_without_leak" else SIZES))
print("%d failed" % failed)
sys.exit(failed > 0)
