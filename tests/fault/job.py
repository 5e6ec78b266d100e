#!/usr/bin/env python3
"""Jobs under fire: real training runs whose ranks are killed, stopped or interrupted, whose files vanish or cannot be
written, whose ranks disagree, whose gradients overflow. Each ends in time, says who and what, and leaves nothing.

usage: job.py TENON LEAVE_LIBRARY ODD_1_FOLDER ODD_2_FOLDER [unittest options]"""
import math
import os
import re
import signal
import socket
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, free_port, layout, read, send_signal, settings, until  # noqa: E402

TENON, LEAVE, ODD_1, ODD_2 = map(os.path.abspath, sys.argv[1:5])
del sys.argv[1:5]

ENDLESS = ["--steps", "1000000", "--metrics", "metrics"]
# "all_reduce h.0.attn.o.all_reduce.tp (4096 elements) on tp [0 1] cannot finish: rank 1 ..."
OP_AND_GROUP = r"(all_reduce|all_gather|reduce_scatter) \S+ \(\d+ elements\) on %s \[%s\]"
VOTE = r"all_reduce of the vote between steps on all ranks"


class Faults(JobTest):
    TENON = TENON

    def endless(self, *arguments, steps=3, **options):
        """A run that is in the midst of its steps."""
        run = self.start("run", "job.ini", *ENDLESS, *arguments, **options)
        self.assertTrue(until(lambda: len(self.metrics()) >= steps or run.process.poll() is not None))
        self.assertIsNone(run.process.poll(), run.stderr)
        return run

    def ends(self, run, code, expected=("metrics",), killed=()):
        """With the code, before anybody's time-out, all ranks by themselves but these; no process, no file is left."""
        self.assertEqual(run.wait(), code, run.stderr)
        self.assertNotRegex(run.stderr, "within 60 s|after 60")
        self.assertEqual(self.killed_at_last(run), list(killed))
        self.assertEqual(run.processes(), [])
        self.assertEqual(self.files(), sorted(expected))

    def names_all(self, run, death, axes):
        """The rank, the op and the group; each in the words of a rank that was waiting."""
        groups = "|".join(OP_AND_GROUP % axis for axis in axes) + "|" + VOTE
        self.matches("(%s) cannot finish: %s" % (groups, death), run.stderr)

    # ranks that die

    def test_rank_killed(self):
        for sizes, victim, groups in (({"tp": 2}, 1, [("tp", "0 1")]), ({"dp": 2}, 0, [("dp", "0 1")]),
                                      ({"tp": 2, "dp": 2}, 2, [("tp", "2 3"), ("dp", "0 2")])):
            with self.subTest(sizes):
                run = self.endless(*layout(**sizes))
                os.kill(run.rank(victim), signal.SIGKILL)
                self.ends(run, 1)
                death = r"rank %d was killed by signal 9 \(Killed\)" % victim
                self.matches("^tenon: error: %s; ending the others$" % death, run.stderr)
                self.names_all(run, death, groups)
                os.unlink(self.path("metrics"))

    def test_rank_crashes(self):
        run = self.endless(*layout(tp=2))
        os.kill(run.rank(1), signal.SIGSEGV)
        self.ends(run, 1)
        self.names_all(run, r"rank 1 was killed by signal 11 \(Segmentation fault\)", [("tp", "0 1")])

    @unittest.skipIf(os.environ.get("SANITIZE", "none") != "none", "a sanitizer must be loaded before all others")
    def test_rank_exits(self):
        for code in (0, 3):
            with self.subTest(code):
                leave = {"LD_PRELOAD": LEAVE, "LEAVE_RANK": "1", "LEAVE_CODE": str(code), "LEAVE_FILE": self.path("go")}
                run = self.endless(*layout(tp=2), env=leave)
                self.write("go", "")
                self.ends(run, code or 1, expected=["go", "metrics"])
                self.names_all(run, "rank 1 exited with code 3" if code else "rank 1 ended before the job was done",
                               [("tp", "0 1")])
                os.unlink(self.path("go"))
                os.unlink(self.path("metrics"))

    def test_all_ranks_killed_at_once(self):
        run = self.endless(*layout(tp=2, dp=2))
        for pid in [run.rank(rank) for rank in range(4)]:
            os.kill(pid, signal.SIGKILL)
        self.ends(run, 1)

    def test_rank_killed_while_starting(self):
        """At once, between two and the first step: whenever it is, the job ends."""
        for delay in (0.0, 0.03, 0.1, 0.2):
            with self.subTest(delay):
                run = self.start("run", "job.ini", "--steps", "1000000", *layout(tp=2))
                self.assertTrue(until(lambda: run.rank(1) is not None))
                time.sleep(delay)
                os.kill(run.rank(1), signal.SIGKILL)
                self.ends(run, 1, expected=[])
                self.assertIn("rank 1 was killed by signal 9", run.stderr)

    def test_rank_stopped(self):
        for sizes, victim, group in (({"tp": 2}, 1, ("tp", "0 1")), ({"dp": 2}, 1, ("dp", "0 1"))):
            with self.subTest(sizes):
                run = self.endless(*layout(**sizes), *settings(comm={"timeout": "3s"}))
                os.kill(run.rank(victim), signal.SIGSTOP)
                self.ends(run, 1, killed=[str(victim)])
                self.matches("(%s|%s): rank %d did not arrive within 3 s" % (OP_AND_GROUP % group, VOTE, victim),
                             run.stderr)
                os.unlink(self.path("metrics"))

    def test_rank_stopped_for_a_while(self):
        """Shorter than the time-out: nobody minds."""
        run = self.endless(*layout(tp=2))
        pid = run.rank(1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        done = len(self.metrics())
        os.kill(pid, signal.SIGCONT)
        self.assertTrue(until(lambda: len(self.metrics()) >= done + 3), run.stderr)
        os.kill(run.process.pid, signal.SIGTERM)
        self.ends(run, 1)
        self.matches("interrupted after step", run.stderr)

    # interrupts

    def interrupted(self, number, sizes):
        run = self.endless(*layout(**sizes))
        os.kill(run.process.pid, number)
        self.ends(run, 1)
        step = int(re.search(r"interrupted after step (\d+)$", run.stderr, re.M).group(1))
        self.assertEqual(len(self.metrics()), step)  # what was done is told, and told completely
        self.matches(r"^training loss \d+\.\d+ -> \d+\.\d+ \(step %d\)$" % step, run.stdout)
        self.assertNotRegex(run.stderr, "failed|cannot finish|killed|exited")
        os.unlink(self.path("metrics"))

    def test_interrupted(self):
        self.interrupted(signal.SIGINT, {"tp": 2, "dp": 2})
        self.interrupted(signal.SIGINT, {})
        self.interrupted(signal.SIGTERM, {"dp": 2})

    def test_interrupted_between_steps(self):
        """In a long validation, and in a long sample: as in a step."""
        for sizes in ({}, {"tp": 2}):
            for steps, long in ((0, {"eval_batches": 10**9}), (3, {"sample": "the", "sample_tokens": 10**5})):
                run = self.start("run", "job.ini", "--metrics", "metrics", *layout(**sizes), *settings(job=long))
                self.assertTrue(until(lambda: self.files() and len(self.metrics()) == steps))
                time.sleep(0.2)
                os.kill(run.process.pid, signal.SIGTERM)
                self.ends(run, 1)
                self.matches(r"warning: interrupted after step %d$" % steps, run.stderr)
                self.assertNotIn("sample:", run.stdout)
                os.unlink(self.path("metrics"))

    def test_interrupted_twice(self):
        """A rank that does not come to the end of its step."""
        run = self.endless(*layout(tp=2))
        os.kill(run.rank(1), signal.SIGSTOP)
        for _ in range(2):
            self.assertTrue(send_signal(run.process.pid, signal.SIGINT))
        self.ends(run, 1, killed=["1"])

    def test_one_rank_is_told_to_end(self):
        """SIGTERM to one rank alone: all end after the same step."""
        run = self.endless(*layout(tp=2))
        os.kill(run.rank(1), signal.SIGTERM)
        self.ends(run, 1)
        self.assertIn("interrupted after step", run.stderr)

    def test_launcher_killed(self):
        run = self.endless(*layout(tp=2, dp=2))
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        self.assertTrue(until(lambda: run.processes() == []))
        self.assertEqual(self.files(), ["metrics"])

    def test_no_named_file_while_running(self):
        """What ranks share has no name anywhere, so nothing can be left, however they end."""
        run = self.endless(*layout(tp=2))
        for rank in range(2):
            pid = run.rank(rank)
            maps = read("/proc/%d/maps" % pid).decode().splitlines()
            names = {line.split(None, 5)[5] for line in maps if len(line.split(None, 5)) == 6}
            names |= {os.readlink("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid)}
            shared = [name for name in names if name.startswith(("/dev/shm", "/tmp", "/var/tmp", "/run"))]
            ours = (self.folder, os.path.dirname(os.path.dirname(TENON)), "/tmp/#")  # a checkout may be in /tmp
            self.assertEqual([name for name in shared if not name.startswith(ours) and
                              "(deleted)" not in name], [])
            self.assertTrue(any("memfd:" in name for name in names))

    # files

    def test_metrics_cannot_be_opened(self):
        for chain in ({}, {"tp": 2}):
            run = self.start("run", "job.ini", "--metrics", "no/such/folder", *layout(**chain))
            self.ends(run, 1, expected=[])
            self.assertIn("cannot write metrics to no/such/folder: No such file or directory", run.stderr)

    def test_metrics_on_a_full_disk(self):
        run = self.start("run", "job.ini", "--metrics", "/dev/full", *layout(tp=2))
        self.ends(run, 1, expected=[])
        self.assertEqual(run.stderr.count("cannot write metrics to /dev/full: No space left on device"), 1)
        self.assertIn("metrics in /dev/full are not complete", run.stderr)
        self.matches(r"^training loss .* \(step 3\)$", run.stdout)  # the run went on

    def test_results_on_a_full_disk(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            run = self.start("run", "job.ini", stdout=full)
            self.ends(run, 1, expected=[])
        self.assertIn("cannot write results to standard output: No space left on device", run.stderr)

    def test_corpus_removed(self):
        for sizes in ({}, {"tp": 2, "dp": 2}):
            with self.subTest(sizes):
                run = self.endless(*layout(**sizes))
                os.rename(self.path("text/a.txt"), self.path("text/b.txt"))
                self.ends(run, 1, expected=["metrics", "text/b.txt"])
                os.rename(self.path("text/b.txt"), self.path("text/a.txt"))
                self.matches(r"data: cannot open \S*/text/a.txt: No such file or directory \(it was there when",
                             run.stderr)
                os.unlink(self.path("metrics"))

    def test_corpus_truncated(self):
        run = self.endless(*layout(dp=2))
        os.truncate(self.path("text/a.txt"), 100)
        self.ends(run, 1)
        self.matches(r"data: \S*/text/a.txt ends at byte \d+; it had \d+ bytes when the run began", run.stderr)

    def test_corpus_unreadable(self):
        """A folder of that name; nothing is started."""
        os.rename(self.path("text/a.txt"), self.path("text/b.txt"))
        os.mkdir(self.path("text/a.txt"))
        for arguments in ([], layout(tp=2)):
            run = self.start("run", "job.ini", *arguments, *settings(data={"path": "text/a*"}))
            self.ends(run, 2, expected=["text/b.txt"])
            self.matches(r"^--set: \[data\] path: ", run.stderr)

    # memory

    def test_budget_too_small(self):
        for command in ("check", "run"):
            for chain in ({}, {"tp": 2}):
                with self.subTest(command=command, chain=chain):
                    run = self.start(command, "job.ini", *layout(**chain), *settings(device={"memory": "1M"}))
                    self.ends(run, 2, expected=[])
                    self.assertEqual(run.stdout, "")
                    self.matches(r"^--set: \[device\] memory: rank 0 needs \d+\.\d MiB \(params \d+\.\d, "
                                 r"gradients \d+\.\d, optimizer \d+\.\d, activations \d+\.\d, buffers \d+\.\d\), "
                                 r"but may use 1\.0 MiB; ",
                                 run.stderr)

    # ranks that disagree, or do not come

    def by_hand(self, arguments=((), ()), env=({}, {}), port=None, chain=tuple(layout(tp=2))):
        """Two ranks, each started as a launcher of another kind would."""
        port = str(port or free_port())
        return [self.start("run", "job.ini", *chain, *arguments[rank],
                           env={"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                "MASTER_PORT": port, **env[rank]}) for rank in range(2)]

    def test_by_hand(self):
        for run in self.by_hand():
            self.assertEqual(run.wait(), 0, run.stderr)

    def test_different_manifests(self):
        for key in ({"optimizer": {"lr": "0.5"}}, {"gpt": {"layers": 3}}, {"job": {"seed": 8}}):
            runs = self.by_hand(((), settings(**key)))
            for run in runs:
                self.ends(run, 1, expected=[])
            self.matches("rank (0|1) has another manifest than rank (1|0)", "".join(run.stderr for run in runs))

    def test_different_plugin_versions(self):
        runs = self.by_hand(chain=settings(strategies={"chain": "odd"}),
                            env=({"TENON_PLUGIN_PATH": ODD_1}, {"TENON_PLUGIN_PATH": ODD_2}))
        for run in runs:
            self.ends(run, 1, expected=[])
        self.matches(r"rank \d runs other plugins \(.*odd [12]\.0\.0.*\) than rank \d \(.*odd [12]\.0\.0.*\)",
                     "".join(r.stderr for r in runs))

    def test_a_rank_does_not_come(self):
        run = self.start("run", "job.ini", *layout(tp=2), *settings(comm={"timeout": "1s"}),
                         env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": str(free_port())})
        self.ends(run, 1, expected=[])
        self.matches("not all of the 2 ranks have joined .*; missing: rank 1|missing: 1", run.stderr)

    def test_one_killed_by_hand(self):
        runs = self.by_hand((["--steps", "1000000"], ["--steps", "1000000"]))
        self.assertTrue(until(lambda: "step 1/" in runs[0].stderr), runs[0].stderr)
        runs[1].process.kill()
        self.ends(runs[0], 1, expected=[])
        self.matches(r"cannot finish: rank 1 ", runs[0].stderr)

    def test_variables_are_wrong(self):
        """Known at once, by the rank itself, and no failure of the job: exit code 2."""
        place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for env, message in (({"RANK": "2", "WORLD_SIZE": "2"},
                              "RANK is 2 but WORLD_SIZE is 2; use a RANK from 0 to 1"),
                             ({"RANK": "0"}, "WORLD_SIZE is not set"), ({"WORLD_SIZE": "2"}, "RANK is not set"),
                             ({"RANK": "x", "WORLD_SIZE": "2"}, 'RANK is "x"; use a number'),
                             ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "7"}, 'LOCAL_RANK is "7"'),
                             ({"RANK": "0", "WORLD_SIZE": "3"}, "3 are given"),
                             (dict(place, MASTER_PORT="http"), 'MASTER_PORT is "http"; use a number from 1 to 65535'),
                             (dict(place, MASTER_PORT="0"), 'MASTER_PORT is "0"; use a number from 1 to 65535'),
                             (dict(place, TENON_PORT="65536"), 'TENON_PORT is "65536"; use a number'),
                             (dict(place, TENON_TOKEN="x" * 129), "TENON_TOKEN has 129 bytes; use 1 to 128"),
                             (dict(place, MASTER_ADDR="a b"), 'MASTER_ADDR is "a b"; use the name of rank 0'),
                             (dict(place, RANK="0", MASTER_ADDR="192.0.2.1"), "must be an address of rank 0's host"),
                             (dict(place, TENON_SIMULATE_HOSTS="a"), 'TENON_SIMULATE_HOSTS is "a" for 2 ranks; '),
                             ({"TENON_SIMULATE_HOSTS": "a"}, 'TENON_SIMULATE_HOSTS is "a" for 2 ranks; '),
                             ({"TENON_LOG": "loud"}, 'TENON_LOG is "loud"; use debug, info, warn or error')):
            with self.subTest(env):
                run = self.start("run", "job.ini", *layout(tp=2), env=env)
                self.ends(run, 2, expected=[])
                self.assertIn(message, run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        for env in ({"MASTER_PORT": "http"}, {"MASTER_ADDR": "a b"}):
            run = self.start("bench", "comm", env=dict(place, **env))
            self.ends(run, 2, expected=[])
            self.assertIn('%s is "%s"; use ' % (*env.items(),)[0], run.stderr)

    def test_ranks_of_the_launcher(self):
        """-n may say what the launcher says, and nothing else."""
        run = self.start("run", "job.ini", "-n", "3", *layout(tp=2), env={"RANK": "0", "WORLD_SIZE": "2"})
        self.ends(run, 2, expected=[])
        self.assertEqual(run.stderr, "tenon: -n 3: the launcher started 2 ranks; leave -n out\n")

    def test_address_is_missing(self):
        run = self.start("run", "job.ini", *layout(tp=2), env={"RANK": "0", "WORLD_SIZE": "2"})
        self.ends(run, 2, expected=[])
        self.assertIn("MASTER_ADDR is not set; set it to the host of rank 0", run.stderr)

    def test_port_is_taken(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            runs = self.by_hand((settings(comm={"timeout": "3s"}),) * 2, port=other.getsockname()[1])
            self.ends(runs[0], 1, expected=[])
            self.assertIn("MASTER_PORT a free port there", runs[0].stderr)
            self.ends(runs[1], 1, expected=[])

    # more ranks than cores

    def test_eight_ranks(self):
        self.run_tenon("run", "job.ini", "--metrics", "one")
        self.run_tenon("run", "job.ini", "--metrics", "eight", *layout(tp=2, dp=4))
        for one, eight in zip(self.metrics("one"), self.metrics("eight")):
            self.assertTrue(math.isclose(one["loss"], eight["loss"], rel_tol=2e-5), (one, eight))
        run = self.endless(*layout(tp=2, dp=4), steps=2)
        os.kill(run.rank(5), signal.SIGKILL)
        self.ends(run, 1, expected=["eight", "metrics", "one"])
        self.assertIn("rank 5 was killed by signal 9", run.stderr)

    # gradients that are not finite

    def test_overflow(self):
        overflow = settings(optimizer={"kind": "sgd", "lr": 1000, "clip": 0, "weight_decay": 0}, job={"max_skipped": 4})
        for sizes in ({}, {"tp": 2}, {"dp": 2}):
            with self.subTest(sizes):
                run = self.start("run", "job.ini", "--steps", "200", "--metrics", "metrics", *overflow,
                                 *layout(**sizes))
                self.ends(run, 1)
                lines = self.metrics()
                self.assertEqual([line["skipped"] for line in lines[-5:]], [0, 1, 2, 3, 4])
                self.matches(r"4 steps in a row had a gradient that is not finite; lower \[optimizer\] lr, or raise "
                             r"\[job\] max_skipped", run.stderr)
                self.assertEqual(run.stderr.count("the gradients are not finite; skipped"), 4)
                self.matches(r"4 steps skipped", run.stderr)
                os.unlink(self.path("metrics"))


if __name__ == "__main__":
    unittest.main()
