#!/usr/bin/env python3
"""A device that is too small: what check refuses and what ckpt and offload make of it; claims and contradictions; files
that are never left behind; memory that is really free.

usage: offload.py TENON [unittest options]"""
import json
import os
import re
import resource
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, read, settings, until  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]

MIB = 1 << 20
DEEP = settings(gpt={"layers": 6, "hidden": 96}, data={"batch": 16})  # activations are most of it


def chain(*names, **sections):
    return settings(strategies={"chain": ", ".join(names)}, **sections)


class MemoryTest(JobTest):
    TENON = TENON

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("disk"))

    def plan(self, *words):
        """Rank 0 of check's report."""
        return json.loads(self.run_tenon("check", "job.ini", "--json", *words).stdout)["ranks"][0]

    def peak(self, *words):
        return self.plan(*words)["memory_bytes"]["peak"]

    def losses(self, *words, **options):
        """Of each step, and the peak that the run reports."""
        self.run_tenon("run", "job.ini", "--metrics", "metrics", *words, **options)
        steps = [line for line in self.metrics() if "grad_norm" in line]
        os.unlink(self.path("metrics"))
        return [(line["loss"], line["grad_norm"]) for line in steps], {line["mem_peak_bytes"] for line in steps}


class Budget(MemoryTest):
    def test_what_does_not_fit_is_refused_and_runs_with_less_on_the_device(self):
        plain, (want, _) = self.peak(*DEEP), self.losses(*DEEP)
        small = DEEP + settings(device={"memory": "%dK" % (plain * 6 // 10 // 1024), "disk": "disk"})
        for command in ("check", "run"):
            self.matches(r"\[device\] memory: rank 0 needs .* keep fewer activations or states on the device",
                         self.run_tenon(command, "job.ini", *small, code=2).stderr)
        for words in (chain("offload"), chain("offload", offload={"keep": "auto", "activations": "disk"}),
                      chain("offload", offload={"activations": "host", "optimizer": "disk"}),
                      chain("ckpt", ckpt={"mode": "auto"}),
                      chain("ckpt", "offload", ckpt={"mode": "auto"}, offload={"keep": "auto"})):
            with self.subTest(words):
                planned = self.peak(*small, *words)
                self.assertLessEqual(planned, plain * 6 // 10)
                got, peaks = self.losses(*small, *words)
                self.assertEqual(got, want)  # to the bit
                self.assertEqual(peaks, {planned})
        self.assertEqual(os.listdir(self.path("disk")), [])

    def test_auto_does_no_more_than_it_must(self):
        plain = self.peak(*DEEP)
        least = self.peak(*DEEP, *chain("ckpt", ckpt={"recompute": "full"}))
        flops = []
        for share in (100, 90, 70, 100 * least // plain + 1):
            memory = settings(device={"memory": "%dK" % (plain * share // 100 // 1024 + 1)})
            rank = self.plan(*DEEP, *memory, *chain("ckpt", ckpt={"mode": "auto"}))
            flops.append(rank["flops"])
            self.assertLessEqual(rank["memory_bytes"]["peak"], plain * share // 100 + 2048)
        self.assertEqual(flops, sorted(flops))
        self.assertEqual(flops[0], self.plan(*DEEP)["flops"])
        self.assertLess(flops[1], 1.1 * flops[0])
        self.assertLess(flops[2], flops[3])
        too_small = settings(device={"memory": "%dK" % (least * 8 // 10 // 1024)})
        self.matches(r"\[device\] memory: rank 0 needs", self.run_tenon(
            "check", "job.ini", *DEEP, *too_small, *chain("ckpt", ckpt={"mode": "auto"}), code=2).stderr)

    def test_keep_moves_the_fewest(self):
        plain, all_away = self.peak(*DEEP), self.peak(*DEEP, *chain("offload", offload={"min_size": 0}))
        moved = []
        for keep in (plain, (2 * plain + all_away) // 3, (plain + 2 * all_away) // 3, all_away):
            rank = self.plan(*DEEP, *chain("offload", offload={"keep": keep, "min_size": 0}))
            self.assertLessEqual(rank["memory_bytes"]["peak"], keep)
            moved.append(rank["host_bytes"]["peak"])
        self.assertEqual(moved[0], 0)
        self.assertEqual(moved, sorted(moved))
        self.assertLess(moved[1], moved[3] / 2)
        late = self.peak(*DEEP, *chain("offload", offload={"min_size": 0, "prefetch": 0}))
        self.assertLess(late, all_away)  # what is fetched ahead takes memory, which keep gives up if it must
        self.assertEqual(self.peak(*DEEP, *chain("offload", offload={"keep": late, "min_size": 0})), late)
        few = self.run_tenon("check", "job.ini", *DEEP, *chain("offload", offload={"keep": "4K", "min_size": 0}), code=2).stderr
        self.matches(r"\[offload\] keep: is too little: with all away that may go the device needs \d+\.\d MiB", few)
        enough = re.search(r"give (\d+K) or more", few).group(1)
        self.assertLessEqual(self.peak(*DEEP, *chain("offload", offload={"keep": enough, "min_size": 0})), int(enough[:-1]) * 1024)

    def test_share_tags_and_size_say_what_moves(self):
        def bytes_of(**options):
            return self.plan(*DEEP, *chain("offload", offload={"min_size": 0, **options}))["host_bytes"]["activations"]

        everything = bytes_of()
        self.assertAlmostEqual(bytes_of(share=0.5) / everything, 0.5, delta=0.05)
        self.assertEqual(bytes_of(share=0), 0)
        norms = 2 * 6 * 16 * 32 * 96 * 4  # two of each layer; the last one is used at once
        self.assertLessEqual(abs(bytes_of(tags="norm") - norms), norms // 12)
        self.assertEqual(bytes_of(min_size="1G"), 0)

    def test_states_are_on_the_device_a_few_at_a_time(self):
        plain = self.plan(*DEEP)["memory_bytes"]["optimizer"]
        for space in ("host", "disk"):
            rank = self.plan(*DEEP, *chain("offload", offload={"activations": "off", "optimizer": space}))
            self.assertLess(rank["memory_bytes"]["optimizer"], plain / 4)
            self.assertGreaterEqual(rank[space + "_bytes"]["optimizer"], plain)

    def test_memory_is_really_free(self):
        """What the process had in memory at its most: the libraries, and the arenas that it touched."""
        big = settings(job={"steps": 2, "eval_batches": 1}, gpt={"layers": 6, "hidden": 128}, data={"batch": 96, "validation": 0.2})
        away = chain("offload", offload={"activations": "disk", "optimizer": "disk"}, device={"disk": "disk"})
        planned = self.peak(*big) - self.peak(*big, *away)
        most = []
        for words in (big, big + away):
            run = self.start("run", "job.ini", *words)
            _, status, usage = os.wait4(run.process.pid, 0)
            run.process.returncode = status
            self.assertEqual(status, 0, run.stderr)
            most.append(usage.ru_maxrss * 1024)
        self.assertGreater(planned, 60 * MIB)
        self.assertGreater(most[0] - most[1], 0.8 * planned)


class Claims(MemoryTest):
    def test_check_says_who_has_what(self):
        words = DEEP + chain("ckpt", "offload", offload={"min_size": 0})
        text = self.run_tenon("check", "job.ini", *words).stdout
        self.matches(r"^  ckpt +recompute +\d+ values +\d+\.\d\d MiB$", text)
        self.matches(r"^  offload +host +\d+ values +\d+\.\d\d MiB$", text)
        self.matches(r"^  offload +host +\d+ values +\d+\.\d\d MiB, left to ckpt, which has claimed them before$", text)
        claims = {(c["who"], c["left_to"]): c for c in self.plan(*words)["claims"]}
        self.assertEqual(claims["ckpt", None]["values"], claims["offload", "ckpt"]["values"])
        alone = self.plan(*DEEP, *chain("offload", offload={"min_size": 0}))["claims"]
        self.assertEqual(len(alone), 1)
        self.assertEqual(alone[0]["values"], claims["offload", None]["values"] + claims["ckpt", None]["values"])

    def test_a_contradiction_is_refused(self):
        words = chain("ckpt", "offload", ckpt={"recompute": "full"}, offload={"ops": "attention", "min_size": 0})
        for command in ("check", "run"):
            err = self.run_tenon(command, "job.ini", *words, code=2).stderr
            self.assertEqual(err, "--set: [offload] ops: asks for what attention makes, all of which [ckpt] recompute has too; "
                                  "take attention out, or let [ckpt] recompute leave some of it\n")
        self.run_tenon("check", "job.ini", *words, *settings(ckpt={"ratio": 0.5}))  # some are left
        self.run_tenon("check", "job.ini", *words, *settings(ckpt={"mode": "auto"}, device={"memory": "1G"}))
        for option, word, message in (("ops", "atention", "[offload] ops: no op of the forward pass is atention; tenon dump"),
                                      ("tags", "nrom", "[offload] tags: no activation is tagged nrom; tenon dump")):
            self.assertIn(message, self.run_tenon("check", "job.ini", *chain("offload", offload={option: word}), code=2).stderr)

    def test_options_that_say_the_same_twice(self):
        for words, message in (({"keep": "1M", "share": 0.5}, "[offload] share: keep says as well how much moves; give one of the two"),
                               ({"activations": "off", "tags": "norm"}, "[offload] tags: with activations = off nothing of these moves")):
            self.assertIn(message, self.run_tenon("check", "job.ini", *chain("offload", offload=words), code=2).stderr)
        self.assertIn("must come after", self.run_tenon("check", "job.ini", *chain("offload", "ckpt"), code=2).stderr)


class Disk(MemoryTest):
    AWAY = DEEP + chain("offload", offload={"activations": "disk", "optimizer": "disk"}, device={"disk": "disk"})

    def test_a_full_disk_is_told_with_what_would_help(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, resource.RLIM_INFINITY))

        run = self.run_tenon("run", "job.ini", *self.AWAY, code=1, preexec_fn=limit)
        self.matches(r"no room in .*/disk for \d+ bytes off the device: File too large; name another folder with \[device\] disk, "
                     r"or keep more on the device or in host memory", run.stderr)
        run = self.run_tenon("run", "job.ini", *self.AWAY, *settings(device={"disk": "nowhere"}), code=1)
        self.matches(r"no file in .*/nowhere for \d+ bytes off the device: No such file or directory", run.stderr)
        self.assertEqual(os.listdir(self.path("disk")), [])

    @staticmethod
    def open_files(pid):
        files = []
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                files.append(os.readlink("/proc/%d/fd/%s" % (pid, fd)))
            except OSError:
                pass  # closed since
        return files

    def test_a_killed_rank_leaves_no_file(self):
        words = self.AWAY + settings(job={"steps": 100000}, dp={"size": 2}, strategies={"chain": "dp, offload"})
        run = self.start("run", "job.ini", *words, "--metrics", "metrics")
        self.assertTrue(until(lambda: len(self.metrics()) > 2), run.stderr)
        files = self.open_files(run.rank(1))
        self.assertTrue(any(self.path("disk") in file and "(deleted)" in file for file in files), files)
        self.assertEqual(os.listdir(self.path("disk")), [])
        os.kill(run.rank(1), signal.SIGKILL)
        self.assertEqual(run.wait(), 1)
        self.assertEqual(os.listdir(self.path("disk")), [])

    def test_a_resumed_run_is_the_same_to_the_bit(self):
        self.check_resume()

    def test_so_with_bf16_whose_fp32_params_are_away_too(self):
        words = settings(precision={"compute": "bf16"})
        self.check_resume(*words, *settings(data={"validation": 0.2}))
        plain, away = self.plan(*DEEP, *words), self.plan(*self.AWAY, *words)
        self.assertLess(away["memory_bytes"]["params"], plain["memory_bytes"]["params"] / 3)

    def check_resume(self, *more):
        words = settings(checkpoint={"folder": "saved"}) + self.AWAY
        self.run_tenon("run", "job.ini", *self.AWAY, *settings(checkpoint={"folder": "whole"}), "--steps", 4, *more)
        self.run_tenon("run", "job.ini", *words, "--steps", 2, *more)
        self.run_tenon("run", "job.ini", *words, "--steps", 4, *more)
        self.run_tenon("run", "job.ini", *DEEP, *settings(checkpoint={"folder": "plain"}), "--steps", 4, *more)
        for name in ("model.safetensors", "optimizer.safetensors"):
            whole = read(self.path("whole/latest/" + name))
            self.assertTrue(whole)
            self.assertEqual(whole, read(self.path("saved/latest/" + name)), name)
            self.assertEqual(whole, read(self.path("plain/latest/" + name)), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
