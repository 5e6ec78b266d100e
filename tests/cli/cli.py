#!/usr/bin/env python3
"""The command line: usage and mistakes, check, dump, run and its output, plugin, data.

usage: cli.py TENON VERIFY_RUN [unittest options]"""
import json
import math
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, layout, settings  # noqa: E402

TENON, VERIFY_RUN = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]

COMMANDS = ("run", "check", "dump", "plugin", "data", "bench", "version")
GPT2 = settings(gpt={"family": "gpt2", "kv_heads": "auto"})


class Usage(JobTest):
    TENON = TENON

    def test_help(self):
        for words in (["--help"], ["-h"], ["help"], *([command, word] for command in COMMANDS for word in ("--help", "-h")),
                      ["data", "pack", "--help"], ["run", "job.ini", "--help"]):
            with self.subTest(words):
                run = self.run_tenon(*words)
                self.assertEqual(run.stderr, "")
                self.assertTrue(run.stdout.startswith("usage: tenon") or "tenon 0." in run.stdout, run.stdout)
                self.assertLessEqual(max(map(len, run.stdout.splitlines())), 120)
        for command in COMMANDS:
            self.matches(r"^  %s  +\S" % command, self.run_tenon("--help").stdout)

    def test_version(self):
        for words in (["version"], ["--version"]):
            self.matches(r"\Atenon \d+\.\d+\.\d+ \(ABI \d+\.\d+\)\n\Z", self.run_tenon(*words).stdout)

    def test_mistakes(self):
        for words, message in (
                ([], "usage: tenon COMMAND"),
                (["chek", "job.ini"], "tenon: unknown command chek; did you mean check?"),
                (["frobnicate"], "tenon: unknown command frobnicate; see tenon --help"),
                (["run"], "usage: tenon run JOB.ini"), (["check"], "usage: tenon check JOB.ini"),
                (["dump"], "usage: tenon dump JOB.ini"), (["dump", "job.ini"], "usage: tenon dump JOB.ini"),
                (["plugin"], "usage: tenon plugin list"), (["data"], "needs pack or info"),
                (["run", "job.ini", "--metrik", "x"], "unknown option --metrik; did you mean --metrics?"),
                (["run", "job.ini", "--step", "3"], "unknown option --step; did you mean --steps?"),
                (["check", "job.ini", "--jsom"], "unknown option --jsom; did you mean --json?"),
                (["dump", "job.ini", "--aftr", "model"], "unknown option --aftr; did you mean --after?"),
                (["run", "job.ini", "other.ini"], "tenon run: unknown argument other.ini"),
                (["run", "job.ini", "-n"], "-n needs a value"), (["run", "job.ini", "--set"], "--set needs a value"),
                (["run", "job.ini", "--steps"], "--steps needs a value"),
                (["run", "job.ini", "--metrics"], "--metrics needs a value"),
                (["dump", "job.ini", "--after"], "--after needs a value"),
                (["dump", "job.ini", "--after", "model", "--rank"], "--rank needs a value"),
                (["dump", "job.ini", "--after", "model", "--rank", "one"], "--rank one: not a whole number from 0 on"),
                (["dump", "job.ini", "--after", "model", "--rank", "1"], "--rank 1: the job has ranks 0 to 0"),
                (["dump", "job.ini", "--after", "model", "--rank", "9" * 20], ": the job has ranks 0 to 0"),
                (["run", "job.ini", "-n", "0"], "-n 0: not a whole number from 1 to 1048576"),
                (["run", "job.ini", "-n", "2x"], "-n 2x: not a whole number from 1 to 1048576"),
                (["run", "job.ini", "--steps", "-5"], "--steps -5: not a whole number from 1 to 1000000000000"),
                (["run", "job.ini", "--steps", "9" * 30], "not a whole number from 1 to 1000000000000"),
                (["run", "job.ini", "--set", "steps=3"], "'steps=3' names no key; use section.key=value"),
                (["run", "absent.ini"], "absent.ini: cannot be read: No such file or directory")):
            with self.subTest(words):
                run = self.run_tenon(*words, code=2)
                self.assertEqual(run.stdout, "")
                self.assertIn(message, run.stderr)

    def test_absent_manifest_is_one_problem(self):
        self.assertEqual(self.run_tenon("check", "absent.ini", code=2).stderr.count("\n"), 1)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            for words in (["check", "job.ini"], ["check", "job.ini", "--json"],
                          ["dump", "job.ini", "--after", "bound"], ["version"], ["--help"], ["run", "--help"],
                          ["check", "--help"], ["dump", "--help"], ["plugin", "list"], ["data", "--help"],
                          ["bench", "--help"], ["bench", "comm", "--help"]):
                run = self.run_tenon(*words, code=1, stdout=full)
                self.assertIn("cannot write the output: No space left on device", run.stderr)


class Check(JobTest):
    TENON = TENON
    PLUGINS = [("model", "gpt"), ("device", "cpu"), ("backend", "shm"), ("strategy", "tp"), ("strategy", "dp")]

    def test_good(self):
        run = self.run_tenon("check", "job.ini", *layout(tp=2, dp=2))
        self.assertEqual(run.stderr, "")
        for role, name in self.PLUGINS:
            self.matches(r"^  %s +%s +\d+\.\d+\.\d+ +/\S+/%s\.so$" % (role, name, name), run.stdout)
        self.matches(r"^mesh \(first axis fastest\), world 4$", run.stdout)
        self.matches(r"^  tp +2 ranks, first group \[0 1\]$", run.stdout)
        self.matches(r"^  dp +2 ranks, first group \[0 2\]$", run.stdout)
        self.matches(r"^  rank +params +gradients +optimizer +activations +buffers +peak$", run.stdout)
        for axis in ("tp", "dp"):
            self.matches(r"^  %s +all_reduce +\d+ calls +\d+\.\d+ MiB sent$" % axis, run.stdout)

    def test_json(self):
        report = json.loads(self.run_tenon("check", "job.ini", "--json", *layout(tp=2, dp=2)).stdout)
        self.assertEqual(set(report), {"problems", "plugins", "world", "mesh", "params", "budget_bytes", "ranks",
                                       "start"})
        self.assertEqual((report["problems"], report["world"]), ([], 4))
        self.assertEqual(report["mesh"], [{"axis": "tp", "size": 2, "stride": 1, "backend": "shm"},
                                          {"axis": "dp", "size": 2, "stride": 2, "backend": "shm"}])
        self.assertEqual([(plugin["role"], plugin["id"]) for plugin in report["plugins"]], self.PLUGINS)
        rank = report["ranks"][0]
        memory = rank["memory_bytes"]
        self.assertEqual(set(memory), {"params", "gradients", "optimizer", "activations", "buffers", "peak"})
        self.assertEqual(memory["optimizer"], 2 * memory["params"])
        self.assertLessEqual(memory["peak"], report["budget_bytes"])
        self.assertGreater(rank["flops"], 0)
        for traffic in rank["communication"]:
            self.assertEqual(set(traffic), {"axis", "op", "calls", "bytes"})

    def test_little_data(self):
        """What is too little to validate with is said once, however many ranks find it."""
        self.write("text/little.txt", "the sun " * 40)
        little = settings(data={"path": "text/little.txt"})
        for words in (["check"], ["run"], ["run", *layout(tp=2)]):
            run = self.run_tenon(words[0], "job.ini", *little, *words[1:])
            self.assertEqual(run.stderr.count("no validation: its share of 0.05 is 16 tokens, and one row needs 33"), 1,
                             run.stderr)

    def test_data_elsewhere(self):
        elsewhere = settings(data={"path": "nowhere/*.bin"})
        self.assertIn("no file matches 'nowhere/*.bin'", self.run_tenon("check", "job.ini", *elsewhere, code=2).stderr)
        budget = settings(device={"memory": "1G"})  # without which it is what the machine has free
        run = self.run_tenon("check", "job.ini", "--no-data", *elsewhere, *budget)
        self.assertEqual(run.stdout, self.run_tenon("check", "job.ini", *budget).stdout)

    def test_figures(self):
        """What can be counted by hand: params, and the bytes of their gradients' all_reduce."""
        one = json.loads(self.run_tenon("check", "job.ini", "--json").stdout)
        hidden, mlp, kv, vocab = 64, 96, 32, 256
        layer = 2 * hidden + 2 * hidden * hidden + 2 * kv * hidden + 3 * mlp * hidden
        params = 2 * vocab * hidden + 2 * layer + hidden
        self.assertEqual(one["params"], params)
        self.assertEqual(one["ranks"][0]["memory_bytes"]["params"], 4 * params)
        self.assertEqual(one["ranks"][0]["communication"], [])
        two = json.loads(self.run_tenon("check", "job.ini", "--json", *layout(dp=2)).stdout)
        reduced, = [traffic for traffic in two["ranks"][0]["communication"] if traffic["op"] == "all_reduce"]
        self.assertTrue(1.0 <= reduced["bytes"] / (4 * params) < 1.01, reduced)  # 2 (n - 1) / n of them, and the loss

    def test_sums_of_norms_are_joined(self):
        """With sequence parallelism each rank has a part of the gradients of the norms' five weights: one sum."""
        def sums(*words):
            report = json.loads(self.run_tenon("check", "job.ini", "--json", *layout(tp=2), *words).stdout)
            return next(traffic["calls"] for traffic in report["ranks"][0]["communication"] if traffic["op"] == "all_reduce")
        sequence = settings(tp={"sequence_parallel": "on"})
        self.assertEqual(sums(*sequence), sums(*sequence, *settings(tp={"bucket": 0})) - 4)

    def test_many_problems_at_once(self):
        self.write("bad.ini", "[job]\nstep = 5\n[gpt]\nfamily = llama\nlayers = 2\nhidden = 64\nheads = 4\n"
                              "vocab = 256\n[data]\npath = none/*.txt\nsequence = 33\nbatch = 6\nmicro_batches = 4\n"
                              "[optimizer]\nlr = fast\nkind = adam\n[strategies]\nchain = tp, dp\n[tp]\nsize = 3\n"
                              "sequence_parallel = on\n[dp]\nsize = 4\n[tpp]\nsize = 2\n")
        wanted = (
            r"^bad\.ini:2: \[job\] step: unknown key; did you mean steps\?$",
            r"^bad\.ini:10: \[data\] path: no file matches 'none/\*\.txt'; ",
            r"^bad\.ini:13: \[data\] micro_batches: 4 does not divide batch = 6; use 1, 2, 3 or 6$",
            r"^bad\.ini:15: \[optimizer\] lr: .*'?fast'?", r"^bad\.ini:16: \[optimizer\] kind: .*adamw",
            r"^bad\.ini:20: \[tp\] size: 3 does not divide heads = 4; use 1(, 2|$)",
            r"^bad\.ini:24: \[tpp\]: nothing in this job reads this section; did you mean \[tp\]\?$")
        run = self.run_tenon("check", "bad.ini", code=2)
        self.assertEqual(run.stdout, "")
        report = json.loads(self.run_tenon("check", "bad.ini", "--json", code=2).stdout)
        for pattern in wanted:
            self.matches(pattern, run.stderr)
            self.matches(pattern, "\n".join(report["problems"]))
        lines = [int(line.split(":")[1]) for line in run.stderr.splitlines()]
        self.assertEqual(lines, sorted(lines))
        self.assertEqual(self.run_tenon("run", "bad.ini", code=2).stderr, run.stderr)

    def test_misspelt_key_hides_nothing(self):
        """A model whose section has an unknown key still says what must divide."""
        run = self.run_tenon("check", "job.ini", *layout(tp=3), *settings(gpt={"layer": 3}), code=2)
        self.assertIn("[gpt] layer: unknown key; did you mean layers?", run.stderr)
        self.assertIn("[tp] size: 3 does not divide heads = 4", run.stderr)

    def test_wrong_option_hides_no_size(self):
        """A strategy that is refused for another key is still counted with its size."""
        run = self.run_tenon("check", "job.ini", "-n", "2", *layout(tp=2), *settings(tp={"sequence_parallel": "perhaps"}), code=2)
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)

    def test_named_twice(self):
        run = self.run_tenon("check", "job.ini", *settings(strategies={"chain": "tp, tp"}), code=2)
        self.assertEqual(run.stderr, "--set: [strategies] chain: tp is named twice; name it once\n")

    def test_empty_plugin(self):
        """One fault, one problem, for each key that names a plugin and has a default."""
        for section, key in (("model", "plugin"), ("device", "plugin"), ("comm", "backend")):
            run = self.run_tenon("check", "job.ini", *settings(**{section: {key: ""}}), code=2)
            self.assertEqual(run.stderr, "--set: [%s] %s: is empty; name a plugin, or remove the key for the default\n"
                             % (section, key))
        self.assertEqual(self.run_tenon("check", "job.ini", *settings(model={"plugin": " "}), code=2).stderr.count("\n"), 1)

    def test_size_of_the_world(self):
        for words, message in ((["-n", "3", *layout(tp=2)],
                                "the sizes of the strategies make 2 ranks, but 3 are given; use -n 2 or change a size"),
                               (["-n", "2"],
                                "make 1 ranks, but 2 are given; use -n 1 or change a size (the chain is empty)"),
                               (["-n", "3", *settings(strategies={"chain": "tp, dp"}, tp={"size": 2})],
                                "3 ranks do not divide by 2, the product of the sizes given; use a multiple of it"),
                               (settings(strategies={"chain": "tp, dp"}), "only one strategy may say auto")):
            for command in ("check", "run"):
                self.assertIn(message, self.run_tenon(command, "job.ini", *words, code=2).stderr)
        auto = json.loads(self.run_tenon("check", "job.ini", "--json", "-n", "4",
                                         *settings(strategies={"chain": "tp, dp"}, tp={"size": 2})).stdout)
        self.assertEqual([axis["size"] for axis in auto["mesh"]], [2, 2])


class Dump(JobTest):
    TENON = TENON

    def stages(self, *arguments):
        """Those that the job has, as the message about one that it has not tells."""
        run = self.run_tenon("dump", "job.ini", "--after", "nowhere", *arguments, code=2)
        self.assertEqual(run.stdout, "")
        return re.search(r"this job has no stage nowhere; it has (.*)$", run.stderr, re.M).group(1).split(", ")

    def test_stages(self):
        self.assertEqual(self.stages(), ["model", "grad", "resolve", "lower", "schedule", "bound"])
        self.assertEqual(self.stages(*layout(tp=2, dp=2)),
                         ["model", "grad", "place:tp", "place:dp", "resolve", "lower:tp", "lower:dp", "lower",
                          "schedule", "bound"])

    def test_every_stage_parses_back(self):
        os.mkdir(self.path("programs"))
        jobs = {"llama_one": [], "llama_tp_dp": layout(tp=2, dp=2), "llama_kv": layout(tp=4),
                "gpt2_tp_sequence": [*GPT2, *layout(tp=2), *settings(tp={"sequence_parallel": "on"})],
                "gpt2_dp_bf16": [*GPT2, *layout(dp=2), *settings(precision={"compute": "bf16"},
                                                                data={"micro_batches": 2}, gpt={"dropout": 0.1})],
                "dp_shares": [*layout(dp=2), *settings(dp={"shares": "3, 1"})]}
        for name, arguments in jobs.items():
            for stage in self.stages(*arguments):
                run = self.run_tenon("dump", "job.ini", "--after", stage, "--rank", 0, *arguments)
                self.assertEqual(run.stderr, "")
                file = "programs/%s_%s" % (name, stage.replace(":", "_"))
                self.write(file + ".program", "# after: %s\n%s" % (stage, run.stdout))
                self.write(file + ".expected", "ok\n")
        done = subprocess.run([VERIFY_RUN, self.path("programs")], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, "\n".join(line for line in done.stdout.splitlines() if line[:2] != "ok"))

    def test_ranks_and_eval(self):
        def dump(*words):
            return self.run_tenon("dump", "job.ini", "--after", "schedule", *layout(tp=2), *words).stdout
        self.assertIn("rank tp=0", dump())
        self.assertIn("rank tp=1", dump("--rank", 1))
        self.assertIn("adamw", dump())
        self.assertNotIn("adamw", dump("--eval"))

    def test_memory(self):
        """The bound program ends with offsets; the arena is what check calls the peak."""
        text = self.run_tenon("dump", "job.ini", "--after", "bound").stdout
        arena = int(re.search(r"^# arena (\d+) bytes", text, re.M).group(1))
        report = json.loads(self.run_tenon("check", "job.ini", "--json").stdout)
        self.assertEqual(arena, report["ranks"][0]["memory_bytes"]["peak"])
        self.matches(r"^# at +0  model\.embed_tokens\.weight$", text)


class Output(JobTest):
    TENON = TENON
    KEYS = ["step", "loss", "grad_norm", "lr", "tokens", "step_ms", "tokens_per_s", "mfu", "mem_peak_bytes", "skipped"]

    def test_streams(self):
        """stdout has results alone; logs are stderr's; no control characters where nobody looks."""
        for arguments in ([], layout(tp=2)):
            run = self.run_tenon("run", "job.ini", *arguments,
                                 *settings(job={"sample": "the sun", "sample_tokens": 20}))
            self.assertEqual([line.split()[0] for line in run.stdout.splitlines()[:2]], ["sample:", "the"])
            self.matches(r"^training loss \d\.\d{4} -> \d\.\d{4} \(step 3\)$", run.stdout)
            self.matches(r"^validation loss \d\.\d{4} -> \d\.\d{4} \(step 3\)$", run.stdout)
            self.assertNotIn("tokens/s", run.stdout)
            self.assertEqual(len(re.findall(r"^step \d/3: loss ", run.stderr, re.M)), 3)
            self.assertNotRegex(run.stdout + run.stderr, "[\x1b\r\b]")

    def test_closed_streams(self):
        """What would go to a stream that is closed goes nowhere else."""
        for sizes in ({}, {"tp": 2}):
            for closed in ("1", "2"):
                run = self.start("run", "job.ini", "--metrics", "metrics", *layout(**sizes),
                                 preexec_fn=lambda fd=int(closed): os.close(fd))
                self.assertEqual(run.wait(), 1 if closed == "1" else 0, run.stderr)
                self.assertEqual([line["step"] for line in self.metrics()], [1, 2, 3])

    def test_steps_and_set(self):
        self.run_tenon("run", "job.ini", "--steps", 5, "--metrics", "metrics")
        self.assertEqual([line["step"] for line in self.metrics()], [1, 2, 3, 4, 5])
        self.run_tenon("run", "job.ini", "--metrics", "metrics", *settings(optimizer={"lr": "0.25"}))
        self.assertEqual([(line["step"], line["lr"]) for line in self.metrics()], [(1, 0.25), (2, 0.25), (3, 0.25)])

    def test_metrics(self):
        self.run_tenon("run", "job.ini", "--metrics", "metrics", *layout(dp=2))
        for line in self.metrics():
            self.assertEqual(list(line), self.KEYS)
            self.assertEqual((line["tokens"], line["skipped"]), (8 * 32, 0))
            speed = line["tokens"] / line["step_ms"] * 1e3
            self.assertTrue(math.isclose(line["tokens_per_s"], speed, rel_tol=0.01), line)
            self.assertTrue(0 < line["mfu"] < 1.5, line)
        peak = max(rank["memory_bytes"]["peak"] for rank in
                   json.loads(self.run_tenon("check", "job.ini", "--json", *layout(dp=2)).stdout)["ranks"])
        self.assertGreaterEqual(line["mem_peak_bytes"], peak)

    def test_the_peak_is_what_check_says(self):
        """Also where ranks share the cores, of which check has all, and kernels need memory by threads."""
        words = settings(cpu={"threads": "auto"})
        for ranks in (1, 2, 4):
            report = json.loads(self.run_tenon("check", "job.ini", "--json", *words, *layout(dp=ranks)).stdout)
            self.run_tenon("run", "job.ini", "--metrics", "metrics", *words, *layout(dp=ranks))
            self.assertEqual(self.metrics()[-1]["mem_peak_bytes"], report["ranks"][0]["memory_bytes"]["peak"])

    def test_metrics_that_cannot_be_written(self):
        """Known before a rank starts; a disk that fills up later ends the writing alone."""
        os.mkdir(self.path("folder"))
        for name, why in (("folder", "Is a directory"), ("folder/", "Is a directory"),
                          ("absent/metrics", "No such file or directory"), ("", "No such file or directory"), ("job.ini/metrics", "Not a directory")):
            for arguments in ([], layout(dp=2)):
                run = self.run_tenon("run", "job.ini", *arguments, "--metrics", name, code=1)
                self.assertEqual(run.stdout, "")
                self.assertEqual(run.stderr, "tenon: error: cannot write metrics to %s: %s\n" % (name, why))
        run = self.run_tenon("run", "job.ini", "--metrics", "/dev/full", code=1)
        self.matches("^training loss ", run.stdout)
        self.assertIn("metrics in /dev/full are not complete: No space left on device", run.stderr)
        self.assertEqual(self.files(), [])

    def test_metrics_are_global(self):
        """Whatever the layout: loss, norm, tokens."""
        arguments = settings(data={"ignore": "116, 32", "micro_batches": 2})  # an uneven share of targets
        self.run_tenon("run", "job.ini", "--metrics", "one", *arguments)
        for name, sizes in (("tp", {"tp": 2}), ("dp", {"dp": 2}), ("both", {"tp": 2, "dp": 2}), ("kv", {"tp": 4})):
            self.run_tenon("run", "job.ini", "--metrics", name, *arguments, *layout(**sizes))
            for one, other in zip(self.metrics("one"), self.metrics(name)):
                for key in ("loss", "grad_norm"):
                    self.assertTrue(math.isclose(one[key], other[key], rel_tol=2e-5), (name, one, other))
                self.assertEqual(one["tokens"], other["tokens"])

    def on_terminal(self, **env):
        """What a terminal of 100 columns is shown."""
        screen, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (30, 100)) if hasattr(termios, "tcsetwinsize") else None
        run = self.start("run", "job.ini", "--steps", 400, *layout(tp=2), env={"TERM": "xterm", **env}, stderr=terminal)
        os.close(terminal)
        shown, end = b"", time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([screen], [], [], 0.1)[0]:
                try:
                    part = os.read(screen, 65536)
                except OSError:  # the last writer is gone
                    break
                shown += part
            elif run.process.poll() is not None:
                break
        os.close(screen)
        self.assertEqual(run.wait(10), 0)
        self.matches("^training loss ", run.stdout)
        self.assertNotIn("\x1b", run.stdout)
        return shown.decode()

    def test_terminal(self):
        shown = self.on_terminal(NO_COLOR="")
        pictures = re.findall(r"\r\x1b\[36mstep \d+/400 \[[=> ]{20}\] loss \d\.\d{4}  \d+ tokens/s  \d+:\d\d left"
                              r"\x1b\[0m\x1b\[K", shown)
        self.assertGreater(len(pictures), 1)

    def test_terminal_without_colour(self):
        shown = self.on_terminal(NO_COLOR="1")
        self.matches(r"\rstep \d+/400 \[", shown)
        self.assertNotRegex(shown, r"\x1b\[[0-9;]*m")

    def test_dumb_terminal(self):
        self.assertNotIn("\x1b", self.on_terminal(TERM="dumb"))


class Plugins(JobTest):
    TENON = TENON

    def test_list(self):
        run = self.run_tenon("plugin", "list")
        for name in ("gpt", "cpu", "shm", "tp", "dp"):
            self.matches(r"^%s\s.*/%s\.so" % (name, name), run.stdout)

    def test_inspect(self):
        for name, key in (("tp", "sequence_parallel"), ("gpt", "family"), ("cpu", "threads"), ("dp", "bucket")):
            run = self.run_tenon("plugin", "inspect", name)
            self.matches(r"^id +%s$" % name, run.stdout)
            self.matches(r"^  %s " % key, run.stdout)
        self.assertIn("not-found", self.run_tenon("plugin", "inspect", "ghost", code=1).stderr)
        self.run_tenon("plugin", "inspect", self.path("job.ini"), code=1)


class Data(JobTest):
    TENON = TENON

    def test_pack_and_train(self):
        """Packed bytes are the same tokens: the same losses, to the bit."""
        self.run_tenon("run", "job.ini", "--metrics", "of_text")
        self.run_tenon("data", "pack", "text/a.txt", "-o", "packed")
        self.assertTrue(os.path.exists(self.path("packed.bin")) and os.path.exists(self.path("packed.idx")))
        self.run_tenon("run", "job.ini", "--metrics", "of_tokens",
                       *settings(data={"source": "tokens", "path": "packed"}))
        self.assertEqual([line["loss"] for line in self.metrics("of_text")],
                         [line["loss"] for line in self.metrics("of_tokens")])
        info = self.run_tenon("data", "info", "packed").stdout
        self.matches(r"\b%d\b" % os.path.getsize(self.path("text/a.txt")), info)

    def test_token_beyond_the_vocabulary(self):
        run = self.run_tenon("check", "job.ini", *settings(gpt={"vocab": 100}), code=2)
        self.matches(r"^job\.ini:\d+: \[data\] path: text is read as bytes, .* vocabulary of 100", run.stderr)

    def test_no_pipes(self):
        """Nothing that is read by name may be a pipe, which nobody might ever write to."""
        os.mkdir(self.path("weights"))
        os.mkdir(self.path("index"))
        self.run_tenon("run", "job.ini", *settings(checkpoint={"folder": "kept", "every": 3}))
        for name in ("pipe", "pipe.bin", "pipe.idx", "pipe.safetensors", "weights/model.safetensors",
                     "index/model.safetensors.index.json"):
            os.mkfifo(self.path(name))
        os.unlink(self.path("kept/latest/state.json"))
        os.mkfifo(self.path("kept/latest/state.json"))
        self.write("vocab.json", json.dumps({chr(0x100 + i): i for i in range(256)}))
        is_pipe = "pipe: is a pipe or device, not a file"
        for words, code, message in (
                (["check", "pipe"], 2, is_pipe), (["run", "pipe"], 2, is_pipe),
                (["bench", "comm", "--manifest", "pipe"], 2, is_pipe), (["bench", "comm", "--job", "pipe"], 2, is_pipe),
                (["data", "pack", "pipe", "-o", "packed"], 1, "pipe is not a regular file"),
                (["data", "pack", "text/a.txt", "-o", "packed", "--bpe", "pipe", "pipe"], 1, "cannot open " + is_pipe),
                (["data", "info", "pipe"], 1, "pipe.bin is not a regular file"),
                (["check", "job.ini", *settings(data={"path": "pipe"})], 2, "no file matches 'pipe'"),
                (["check", "job.ini", *settings(data={"source": "tokens", "path": "pipe"})], 2, "is not a regular file"),
                (["check", "job.ini", *settings(model={"load": "pipe.safetensors"})], 2, "is a pipe or device"),
                (["check", "job.ini", *settings(model={"load": "weights"})], 2, "is a pipe or device"),
                (["check", "job.ini", *settings(model={"load": "index"})], 2, "index.json: is a pipe or device"),
                (["check", "job.ini", *settings(checkpoint={"folder": "kept"})], 2, "state.json: is a pipe or device"),
                (["plugin", "inspect", "./pipe"], 1, "is not a file")):
            with self.subTest(words):
                self.assertIn(message, self.run_tenon(*words, code=code, seconds=20).stderr)

    def test_output_is_no_folder(self):
        """A folder for a prefix would name hidden files; one in the place of a file is found before the work is done."""
        for name in ("text/", "text/.", "text/..", ".", ".."):
            run = self.run_tenon("data", "pack", "text/a.txt", "-o", name, code=2)
            self.assertEqual(run.stderr, "tenon data: -o %s: is a folder, not the prefix of files; use a name in it, such "
                             "as %s/tokens\n" % (name, name.removesuffix("/")))
        os.mkdir(self.path("packed.idx"))
        run = self.run_tenon("data", "pack", "text/a.txt", "-o", "packed", code=1)
        self.assertEqual(run.stderr, "tenon data: cannot write packed.idx: Is a directory\n")
        self.assertEqual(self.run_tenon("data", "pack", "text/a.txt", "-o", "text", code=0).stdout.split(":")[0],
                         "text.bin, text.idx")
        self.assertEqual(self.files(), ["text.bin", "text.idx"])

    def test_output_has_no_room(self):
        def little():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
        run = self.start("data", "pack", "text/a.txt", "-o", "packed", preexec_fn=little)
        self.assertEqual(run.wait(), 1)
        self.assertEqual(run.stderr, "tenon data: cannot write packed.bin: File too large\n")
        self.assertEqual(self.files(), [])

    def test_packs_nothing_it_cannot(self):
        self.assertIn("-o PREFIX", self.run_tenon("data", "pack", "text/a.txt", code=2).stderr)
        run = self.run_tenon("data", "pack", "none.txt", "-o", "packed", code=1)
        self.assertIn("no file matches 'none.txt'", run.stderr)
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    unittest.main()
