#!/usr/bin/env python3
"""tenon bench: figures that fit together, results that are checked, outputs that other programs read, one voice.

usage: bench.py TENON [unittest options]"""
import csv
import io
import json
import os
import shutil
import signal
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, free_port, layout, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]

SMALL = ("-b", "1K", "-e", "16K", "-f", "4", "-n", "6", "-w", "1")
COLUMNS = ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
           "#wrong", "backend", "p99", "skew", "ceil%", "ratio"]
FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


class Bench(JobTest):
    TENON = TENON

    def comm(self, *words, code=0, **options):
        return self.run_tenon("bench", "comm", *words, code=code, **options)

    def results(self, *words, code=0, **options):
        return json.loads(self.comm(*words, "--json", code=code, **options).stdout)

    def near(self, a, b):
        self.assertLessEqual(abs(a - b), 1e-3 * max(abs(a), abs(b)), (a, b))


class Comm(Bench):
    def test_table(self):
        run = self.comm("-p", 2, *SMALL)
        self.assertEqual(run.stderr, "")
        lines = run.stdout.splitlines()
        head = [line.split()[1:] for line in lines if line.startswith("# ") and " size " in line]
        self.assertEqual([words[:len(COLUMNS)] for words in head], [COLUMNS])
        rows = [line.split() for line in lines if line and line[0] != "#"]
        self.assertEqual([row[:5] for row in rows], [[str(size), str(size // 4), "f32", "sum", "-1"]
                                                     for size in (1024, 4096, 16384)])
        for row in rows:
            self.assertEqual((row[8], row[12], row[13]), ("0", "0", "shm"))
        self.matches(r"^# 2 ranks on 1 host$", run.stdout)
        self.matches(r"^#   rank.* on \S+: cores? \d", run.stdout)
        self.matches(r"^# backend shm: shm \d+\.\d+\.\d+ \(.+\), /\S+shm\.so$", run.stdout)

    def test_figures_fit_together(self):
        found = self.results("all", "-p", 2, *SMALL)
        self.assertEqual({line["op"] for line in found["results"]}, set(FACTORS) | {"broadcast", "send_recv", "barrier"})
        for line in found["results"]:
            with self.subTest((line["op"], line["size"], line["place"])):
                self.assertEqual((line["ranks"], line["iterations"], line["cache"]), (2, 6, "warm"))
                self.assertLessEqual(line["time_us"], line["p99_us"])
                self.assertGreaterEqual(line["skew_us"], 0)
                self.assertEqual(line["wrong"], None if line["op"] == "barrier" else 0)
                self.near(line["algbw"], line["size"] / line["time_us"] * 1e-3)
                self.near(line["busbw"], line["algbw"] * FACTORS.get(line["op"], 2) / 2)
                self.assertEqual((line["ratio"], line["ratio_low"], line["ratio_high"]), (1, 1, 1))
        places = {(line["op"], line["place"]) for line in found["results"]}
        self.assertIn(("all_gather", "in_place"), places)
        self.assertNotIn(("all_to_all", "in_place"), places)

    def test_counts_are_per_rank(self):
        for line in self.results("all_reduce,all_gather,reduce_scatter,all_to_all,broadcast", "-p", 3, "-b", "1000",
                                 "-e", "1000", "-n", 2)["results"]:
            is_cut = line["op"] not in ("all_reduce", "broadcast")
            self.assertEqual(line["count"], 250 // 3 if is_cut else 250)
            self.assertEqual(line["size"], line["count"] * 4 * (3 if is_cut else 1))

    def test_everything_is_right(self):
        """Every operation, dtype, reduction and root, also with sizes that do not divide, from both kinds of memory."""
        for memory in ("backend", "heap"):
            found = self.results("all", "-d", "all", "-o", "all", "-r", "all", "-p", 3, "-b", "300", "-e", "40000", "-f",
                                 100, "-n", 1, "-w", 0, "-c", 2, "--memory", memory)["results"]
            reduced = {(line["type"], line["redop"]) for line in found if line["op"] == "reduce_scatter"}
            self.assertEqual(reduced, {(t, r) for t in ("f32", "bf16", "f64", "i32", "i64") for r in ("sum", "max")})
            self.assertEqual({line["root"] for line in found if line["op"] == "broadcast"}, {0, 1, 2})
            self.assertEqual([line for line in found if line["wrong"]], [])

    def test_side_by_side(self):
        found = self.results("-p", 2, *SMALL, "--backends", "shm,verify+shm")
        self.assertEqual([(part["backend"], part["plugin"]) for part in found["about"]["backends"]],
                         [("shm", "shm"), ("verify+shm", "shm"), ("verify+shm", "verify")])
        lines = [line for line in found["results"] if line["backend"] == "verify+shm"]
        self.assertEqual(len(lines), 6)
        for line in lines:
            self.assertGreater(line["ratio_low"], 0)
            self.assertLessEqual(line["ratio_low"], line["ratio"])
            self.assertLessEqual(line["ratio"], line["ratio_high"])

    def test_ceiling(self):
        for line in self.results("-p", 2, "-b", "256K", "-e", "256K", "-n", 5, "--buffers", "both")["results"]:
            self.assertGreater(line["ceiling_busbw"], 0)
            self.near(line["ceiling_share"], line["busbw"] / line["ceiling_busbw"])

    def test_cold_takes_longer(self):
        lines = self.results("-p", 2, "-b", "256K", "-e", "256K", "-n", 300, "--buffers", "both")["results"]
        times = {(line["place"], line["cache"]): line["time_us"] for line in lines}
        self.assertGreater(times["in_place", "cold"], times["in_place", "warm"])

    def test_wrong_result(self):
        """A backend that is wrong is found out, whatever its bandwidth."""
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            words = (op, "-p", 2, *SMALL, "--backends", "shm,fault+shm",
                     *settings(fault={"corrupt": 1, "rank": 1, "op": op}))
            run = self.comm(*words, "--json", code=1)
            lines = json.loads(run.stdout)["results"]
            self.assertEqual([line["wrong"] for line in lines],
                             [0 if line["backend"] == "shm" else 1 for line in lines], op)
            self.matches(r"^tenon bench: %d elements are wrong$" % (len(lines) // 2), run.stderr)
        self.comm(*words, "-c", 0)  # nobody looked
        self.matches(r"^ +1024 .* none +0 .* 1 .* 1 +fault", self.comm(*words, code=1).stdout)

    def test_unwritable(self):
        """Found out before anything is measured, and what was in a file stays until there is something new."""
        for option in ("--json=absent/a", "--csv=absent/a", "--svg absent/a"):
            run = self.comm("-p", 2, "--seconds", 100, *option.split(), code=1)
            self.assertEqual(run.stdout, "")
            self.assertEqual(run.stderr, "tenon bench: cannot write absent/a: No such file or directory\n")
        self.write("old.json", "old")
        self.comm("-p", 2, "-r", 2, "--json=old.json", "broadcast", code=2)
        with open(self.path("old.json"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")

    def test_csv(self):
        words = ("-p", 2, *SMALL)
        rows = list(csv.DictReader(io.StringIO(self.comm(*words, "--csv", "--json=both.json").stdout)))
        with open(self.path("both.json"), encoding="utf-8") as file:
            lines = json.load(file)["results"]
        self.assertEqual(len(rows), 6)
        for row, line in zip(rows, lines):
            self.assertEqual(list(row), list(line))
            self.assertEqual(row["busbw"], "%.6g" % line["busbw"])
            self.assertEqual(row["ceiling_busbw"], "")

    def test_svg(self):
        self.comm("all_reduce", "broadcast", "-p", 2, *SMALL, "--backends", "shm,trace+shm", "--svg", "chart.svg")
        root = xml.etree.ElementTree.parse(self.path("chart.svg")).getroot()
        name = "{http://www.w3.org/2000/svg}"
        curves = [line.get("points").split() for line in root.iter(name + "polyline") if line.get("points")]
        self.assertEqual([len(points) for points in curves], [3] * 4)
        for points in curves:
            x = [float(point.split(",")[0]) for point in points]
            self.assertAlmostEqual(x[1] - x[0], x[2] - x[1], delta=0.2)  # by factors of 4: logarithmic
        texts = [text.text for text in root.iter(name + "text")]
        for word in ("all_reduce", "broadcast", "shm", "trace+shm", "1 KiB", "16 KiB"):
            self.assertIn(word, texts)

    def test_waiting_is_idle(self):
        found = self.results("barrier", "-p", 4, "-n", 2, "--idle", "1")
        waited, = found["idle"]
        self.assertEqual(waited["backend"], "shm")
        self.assertLess(waited["core_share"], 0.05)

    def test_timeout(self):
        """A rank that is stopped is not waited for longer than is said, and the error says what to raise."""
        run = self.start("bench", "comm", "-p", 2, "--seconds", 100, "--timeout", 1.5)
        self.assertTrue(until(lambda: "# all_reduce" in run.stdout))
        os.kill(run.rank(1), signal.SIGSTOP)
        self.assertEqual(run.wait(20), 1)
        self.matches(r"rank 1 .* after 1.5 s; if a rank is only slow, raise --timeout$", run.stderr)
        self.assertEqual(run.processes(), [])
        run = self.start("bench", "latency", "--timeout", 1, env={
            "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23573"})
        self.assertEqual(run.wait(20), 1)
        self.matches(r"after 1.0 s not all of the 2 ranks have joined .*; missing: 1; if a rank is only slow, raise --timeout$",
                     run.stderr)

    def test_mistakes(self):
        for words, message in (
                (["--step", "2"], "unknown option --step; did you mean --set?"),
                (["al_reduce"], "unknown operation al_reduce; did you mean all_reduce?"),
                (["-b", "lots"], "--minbytes lots: use a size in bytes"), (["-b"], "-b needs a value"),
                (["-b", "4K", "-e", "1K"], "--maxbytes 1024 is below --minbytes 4096"),
                (["-f", "1"], "--stepfactor 1: use a number above 1"),
                (["--timeout", "0"], "--timeout 0: use a number above 0"), (["-n", "0"], "--iters 0: use a whole number from 1"), (["-o", "avg"], "--op avg: use sum, max or all"),
                (["-d", "f16"], "--datatype f16: use f32, bf16"), (["-p", "0"], "--ranks 0: use a whole number"),
                (["--buffers", "hot"], "--buffers hot: use warm, cold or both"),
                (["--backends", "shm,"], "use names of plugins"), (["--backends", "nosuch"], "plugin nosuch: not-found"),
                (["--backends", "trace+shm", "--set", "trace.file=x/"], "[trace] file: is a folder; files in it would be hid"),
                (["--backends", "gpt"], "gpt"), (["--set", "shm.spin_us=fast"], "[shm] spin_us"),
                (["--set", "smh.spin_us=1"], "[smh]: no backend of this run reads this section"),
                (["--json", "--csv"], "only one of the two"), (["--manifest", "absent.ini"], "absent.ini: cannot be read"),
                (["--job", "absent.ini"], "absent.ini: cannot be read"), (["--window", "4"], "unknown option --window")):
            with self.subTest(words):
                run = self.comm(*words, code=2)
                self.assertEqual(run.stdout, "")
                self.assertIn(message, run.stderr)
        self.assertIn("there are ranks 0 to 1: --root is not one of them", self.comm("broadcast", "-p", 2, "-r", 2, code=2).stderr)
        self.assertIn("unknown option --window; see tenon bench latency --help",
                      self.run_tenon("bench", "latency", "--window", 4, code=2).stderr)
        for words, message in ((["bench"], "usage: tenon bench"), (["bench", "latncy"], "did you mean latency?")):
            self.assertIn(message, self.run_tenon(*words, code=2).stderr)

    def test_help(self):
        for words in (["--help"], ["comm", "--help"], ["latency", "-h"], ["bandwidth", "--help"]):
            run = self.run_tenon("bench", *words)
            self.assertTrue(run.stdout.startswith("usage: tenon bench"), run.stdout)
            self.assertLessEqual(max(map(len, run.stdout.splitlines())), 120)

    def test_options_of_backends(self):
        self.write("comm.ini", "[shm]\nspin_us = 7\n")
        self.comm("-p", 2, *SMALL, "--manifest", "comm.ini")
        self.comm("-p", 2, *SMALL, "--set", "shm.spin_us=9")


class OneVoice(Bench):
    """Each process must know which rank it is, and only rank 0 speaks, whoever started them."""

    def test_joined_by_variables(self):
        port = str(free_port())
        runs = [self.start("bench", "comm", *SMALL, env={
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TENON_TOKEN": "x"})
            for rank in range(2)]
        self.assertEqual([run.wait() for run in runs], [0, 0], [run.stderr for run in runs])
        self.matches(r"^# 2 ranks on 1 host$", runs[0].stdout)
        self.assertEqual(runs[1].stdout + runs[1].stderr, "")

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun here")
        self.TENON = shutil.which("mpirun")
        run = self.run_tenon("--oversubscribe", "--allow-run-as-root", "-n", 2, TENON, "bench", "comm", *SMALL)
        self.assertEqual(run.stdout.count("# 2 ranks on 1 host"), 1, run.stdout)
        self.assertEqual(len([line for line in run.stdout.splitlines() if line[:1] == " "]), 3)
        run = self.run_tenon("--oversubscribe", "--allow-run-as-root", "-n", 2, TENON, "bench", "comm", "-p", 3, code=2)
        self.assertEqual(run.stderr.count("--ranks 3, but the launcher started 2"), 1)


class Interrupted(Bench):
    def test_ctrl_c(self):
        run = self.start("bench", "comm", "-p", 2, "--seconds", 100)
        self.assertTrue(until(lambda: "# all_reduce" in run.stdout))
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(), 1)
        self.assertIn("interrupted by signal 2", run.stderr)
        self.assertEqual(run.processes(), [])

    def test_a_rank_dies(self):
        run = self.start("bench", "comm", "-p", 3, "--seconds", 100)
        self.assertTrue(until(lambda: "# all_reduce" in run.stdout))
        os.kill(run.rank(1), signal.SIGKILL)
        self.assertEqual(run.wait(), 1)
        self.matches(r"rank 1 was killed by signal 9", run.stderr)
        self.assertEqual(run.processes(), [])


class Messages(Bench):
    def test_latency(self):
        run = self.run_tenon("bench", "latency", "-p", 3, "-b", 1, "-e", 4096, "-f", 16, "-n", 10, "--json",
                             "--backends", "shm,trace+shm")
        lines = json.loads(run.stdout)["results"]
        self.assertEqual([(line["size"], line["backend"]) for line in lines],
                         [(size, backend) for size in (1, 16, 256, 4096) for backend in ("shm", "trace+shm")])
        for line in lines:
            self.assertEqual((line["wrong"], line["iterations"]), (0, 10))
            self.assertLessEqual(line["least_us"], line["time_us"])
            self.assertLessEqual(line["time_us"], line["p99_us"])
        self.matches(r"^# first message, shm: half a round trip of \d+\.\d\d us$",
                     self.run_tenon("bench", "latency", "-e", 8, "-n", 2).stdout)

    def test_bandwidth(self):
        run = self.run_tenon("bench", "bandwidth", "-b", "1K", "-e", "64K", "-f", 8, "-n", 4, "--window", 80, "--json",
                             "--svg", "chart.svg")
        for line in json.loads(run.stdout)["results"]:
            self.assertEqual(line["wrong"], 0)
            self.near(line["one_way"], line["messages_per_s"] * line["size"] * 1e-9)
            self.near(line["one_way"], 80 * line["size"] / line["time_us"] * 1e-3)
            self.assertGreater(line["both_ways"], 0)
        xml.etree.ElementTree.parse(self.path("chart.svg"))

    def test_needs_two(self):
        self.assertIn("there are ranks 0 to 0: messages need two; use -p 2", self.run_tenon("bench", "latency", "-p", 1, code=2).stderr)


class Job(Bench):
    WHERE = [*layout(tp=2, dp=2), *settings(data={"micro_batches": 2})]

    def test_same_calls_as_the_job(self):
        """In order of starting and in order of being waited for."""
        names = ("--backends", "shm,trace+shm")
        report = self.results("--job", "job.ini", *self.WHERE, *names, "-n", 2, "-w", 0,
                              *settings(trace={"file": self.path("bench")}))
        self.run_tenon("run", "job.ini", *self.WHERE,
                       *settings(job={"steps": 1}, comm={"layers": "trace"}, trace={"file": self.path("run")}))
        per_step = {}
        for row in report["communication"]:
            per_step[row["axis"]] = per_step.get(row["axis"], 0) + row["calls"]
        self.assertEqual(set(per_step), {"tp", "dp"})
        for rank in range(4):
            for axis, calls in per_step.items():
                bench, run = [[(line["op"], line["count"], line["dtype"]) for line in
                               self.metrics("%s.%d.jsonl" % (name, rank)) if line["group"] == axis]
                              for name in ("bench", "run")]
                step = bench[:calls]
                self.assertEqual(len(step), calls)
                self.assertEqual(bench[calls:2 * calls], step)
                self.assertIn(step, [run[at:at + calls] for at in range(len(run))])  # validation comes before it

    def test_report(self):
        check = json.loads(self.run_tenon("check", "job.ini", "--json", *self.WHERE).stdout)
        report = self.results("--job", "job.ini", *self.WHERE, "--backends", "shm,verify+shm", "-n", 3)
        self.assertEqual(report["communication"], check["ranks"][0]["communication"])
        self.assertEqual(report["about"]["ranks"], 4)
        for line in report["results"]:
            self.assertGreater(line["alone_us"], 0)
            self.assertGreater(line["compute_us"], 0)
            self.assertTrue(0 <= line["hidden_share"] <= 1)
        text = self.comm("--job", "job.ini", *self.WHERE, "--backends", "shm,verify+shm", "-n", 3).stdout
        self.matches(r"^# job job\.ini: mesh tp 2, dp 2; communication of a step on rank 0:$", text)
        self.matches(r"^# with verify\+shm in place of shm the step takes ", text)

    def test_as_the_manifest_says(self):
        report = self.results("--job", "job.ini", *layout(tp=2), "-n", 2, *settings(comm={"layers": "verify"}))
        self.assertEqual([part["plugin"] for part in report["about"]["backends"]], ["shm", "verify"])
        self.assertEqual([line["backend"] for line in report["results"]], ["as in the manifest"])

    def test_mistakes(self):
        self.assertIn("has one rank, which communicates with nobody", self.comm("--job", "job.ini", code=2).stderr)
        self.assertIn("3 does not divide heads = 4", self.comm("--job", "job.ini", *layout(tp=3), code=2).stderr)
        self.assertIn("--svg", self.comm("--job", "job.ini", *layout(tp=2), "--svg", "x", code=2).stderr)


if __name__ == "__main__":
    unittest.main()
