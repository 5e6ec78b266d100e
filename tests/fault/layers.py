#!/usr/bin/env python3
"""Layers over the backend in whole jobs: the same losses, a record of what was called, mistakes in the manifest.

usage: layers.py TENON [unittest options]"""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, layout, settings  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]


class Layers(JobTest):
    TENON = TENON

    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(os.path.dirname(os.path.dirname(TENON)), "plugins/collectives/shm/shm.so"),
                    self.path("other.so"))  # a second backend, by path

    def losses(self, *arguments, where=()):
        run = self.run_tenon("run", "job.ini", *(where or layout(tp=2)), *arguments)
        return [line for line in run.stdout.splitlines() if line.startswith(("training loss", "validation loss"))], run

    def test_same_losses(self):
        alone, _ = self.losses()
        layered, run = self.losses(*settings(comm={"layers": "verify, trace"}))
        self.assertEqual(len(alone), 2)
        self.assertEqual(alone, layered)
        self.matches(r"trace: rank 1, group tp of 2, all_reduce: \d+ calls", run.stderr)

    def test_file(self):
        self.losses(*settings(comm={"layers": "trace, verify"}, trace={"file": self.path("calls")}))
        calls = [self.metrics("calls.%d.jsonl" % rank) for rank in range(2)]
        self.assertTrue(all(call["status"] == 0 and call["took_ns"] >= call["wait_ns"] for call in calls[0] + calls[1]))
        of_tp = [sorted((call["number"], call["op"], call["dtype"], call["bytes"]) for call in calls[rank]
                        if call["group"] == "tp") for rank in range(2)]
        self.assertGreater(len(of_tp[0]), 10)
        self.assertEqual(of_tp[0], of_tp[1])

    def test_mistakes(self):
        for keys, message in (
                ({"backend": "trace"}, "trace is a layer over a backend; use [comm] layers = trace"),
                ({"layers": "shm"}, "shm is a backend and takes no backend below it"),
                ({"layers": "tp"}, "is a plugin of kind strategy, where a collective is wanted"),
                ({"layers": "trase"}, "[comm] layers: plugin trase: not-found")):
            with self.subTest(keys):
                run = self.run_tenon("check", "job.ini", *settings(comm=keys), code=2)
                self.assertIn(message, run.stdout + run.stderr)

    def test_backend_per_axis(self):
        run = self.run_tenon("check", "job.ini", *layout(tp=2, dp=2), *settings(**{"comm.dp": {"backend": "./other.so"}}))
        self.matches(r"^  backend    shm +\S+ +\S+shm.so\n  backend    shm +\S+ +\S+other.so$", run.stdout)
        self.matches(r"^  tp .*\[0 1\], by shm\n  dp .*\[0 2\], by shm$", run.stdout)
        both, _ = self.losses(where=layout(tp=2, dp=2), *settings(**{"comm.dp": {"backend": "./other.so"}}))
        one, _ = self.losses(where=layout(tp=2, dp=2))
        self.assertEqual(one, both)

    def test_fault(self):
        """Faults by seed: nobody has them unknowingly; a slow rank changes nothing, a killed one is named."""
        fault = settings(comm={"layers": "fault"})
        alone, _ = self.losses()
        slow, run = self.losses(*fault, *settings(fault={"delay": 0.1, "delay_time": "5ms"}))
        self.assertEqual(alone, slow)
        self.matches(r"fault: warning: faults are put into this job on purpose: seed 1, delay 0.1, drop 0, ", run.stderr)
        run = self.start("run", "job.ini", *layout(tp=2), *fault, *settings(fault={"kill": 1, "rank": 1, "after": 20}))
        self.assertEqual(run.wait(), 1)
        self.matches(r"cannot finish: rank 1 was killed by signal 9", run.stderr)
        run = self.start("run", "job.ini", *layout(tp=2), *fault,
                         *settings(comm={"timeout": "4s"}, fault={"drop": 1, "rank": 1, "after": 20}))
        self.assertEqual(run.wait(), 1)
        self.matches(r"did not arrive within 4 s", run.stderr)

    def test_no_gpu(self):
        nccl = os.path.join(os.path.dirname(os.path.dirname(TENON)), "plugins/collectives/nccl/nccl.so")
        if not os.path.exists(nccl) or os.path.exists("/dev/nvidia0"):
            self.skipTest("nccl was not built, or there is a GPU")
        run = self.run_tenon("check", "job.ini", *layout(tp=2), *settings(comm={"backend": nccl}), code=2)
        self.matches(r"\[comm\] backend: plugin \S+: unsupported-device: \S+nccl.so: nccl needs an NVIDIA GPU and its driver",
                     run.stdout + run.stderr)

    def test_axis_mistakes(self):
        for section, key, message in (
                ("comm.pd", "backend", "[comm.pd]: the mesh has no axis pd; the axes here are tp and dp"),
                ("comm.dp", "layers", "[comm.dp] layers: unknown key; known keys are backend"),
                ("comm.dp", "backend", "[comm.dp] backend: plugin nobody: not-found")):
            with self.subTest(message):
                run = self.run_tenon("check", "job.ini", *layout(tp=2, dp=2), *settings(**{section: {key: "nobody"}}),
                                     code=2)
                self.assertIn(message, run.stdout + run.stderr)

    def test_cannot_write(self):
        run = self.run_tenon("run", "job.ini", *layout(tp=2),
                             *settings(comm={"layers": "verify, trace"}, trace={"file": "/nowhere/calls"}), code=1)
        self.matches(r"\[trace\] file: /nowhere/calls\.\d\.jsonl cannot be written", run.stderr)


if __name__ == "__main__":
    unittest.main()
