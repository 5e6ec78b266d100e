#!/usr/bin/env python3
"""pp: how many micro-batches' activations each schedule holds, as `tenon check --json` plans them, and what pp refuses.

usage: pipelining.py TENON [unittest options]

A stage's activations of one micro-batch are what gpipe needs more for each. All else is measured in these; what is sent
stays until the next message on the same way, which is the slack: a few messages of [batch, sequence, hidden]."""
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]

HIDDEN, SEQUENCE, LAYERS = 64, 32, 12
MESSAGE = 4 * SEQUENCE * HIDDEN  # one sequence a micro-batch


def overrides(settings):
    return [word for key, value in settings.items() for word in ("--set", "%s=%s" % (key.replace("__", "."), value))]


class PipelineTest(JobTest):
    TENON = TENON

    def check_json(self, micro_batches, **settings):
        words = {"strategies.chain": "pp", "gpt.layers": LAYERS, "data.batch": micro_batches,
                 "data.micro_batches": micro_batches, **settings}
        return json.loads(self.run_tenon("check", "job.ini", "--json", *overrides(words)).stdout)

    def activations(self, schedule, size, micro_batches, **settings):
        """Of each rank."""
        report = self.check_json(micro_batches, pp__schedule=schedule, pp__size=size, **settings)
        return [rank["memory_bytes"]["activations"] for rank in report["ranks"]]


class Memory(PipelineTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.SIZE = 3

    def one(self):
        """Of one micro-batch, by rank; one more adds the same, however many there are."""
        few, some, more = (self.activations("gpipe", self.SIZE, n) for n in (2, 3, 9))
        for a, b, c in zip(few, some, more):
            self.assertAlmostEqual(c - b, 6 * (b - a), delta=MESSAGE)
        return [b - a for a, b in zip(few, some)]

    def test_1f1b_holds_as_many_as_there_are_stages_ahead(self):
        """p - r on rank r, however many micro-batches there are, as gpipe with so many needs."""
        one = self.one()
        for micro_batches in (3, 4, 9):
            held = self.activations("1f1b", self.SIZE, micro_batches)
            for rank in range(self.SIZE):
                gpipe = self.activations("gpipe", self.SIZE, self.SIZE - rank)[rank]
                self.assertAlmostEqual(held[rank], gpipe, delta=3 * MESSAGE)
        self.assertGreater(one[1], 20 * MESSAGE)  # or the slack says nothing

    def test_1f1b_with_fewer_micro_batches_than_stages(self):
        self.assertEqual(self.activations("1f1b", 4, 1), self.activations("gpipe", 4, 1))

    def test_interleaved_holds_chunks(self):
        """2 (p - r - 1) + (v - 1) p + 1 chunks on rank r, each 1/v of a stage: on rank 0 p (1 + (p - 1) / (p v)) stages,
        as Korthikanti et al. 2022 have it."""
        one = self.one()
        for chunks in (2, 4):
            held = self.activations("interleaved", self.SIZE, 9, pp__chunks=chunks)
            alone = self.activations("gpipe", self.SIZE, 1)
            for rank in range(self.SIZE):
                count = 2 * (self.SIZE - rank - 1) + (chunks - 1) * self.SIZE + 1
                formula = alone[rank] + (count / chunks - 1) * one[rank]
                self.assertAlmostEqual(held[rank], formula, delta=0.1 * formula)

    def test_zero_bubble_holds_what_1f1b_does(self):
        """p micro-batches on every rank, for rank r owes the weight gradients of r, which need inputs and output gradients
        of the products: about as much as the activations. Beside them, those gradients of the one at work."""
        one, most = self.one(), self.activations("1f1b", self.SIZE, 9)[0]
        held = self.activations("zero-bubble", self.SIZE, 9)
        self.assertLess(held[0], most + 0.5 * one[0])
        for rank in range(self.SIZE):
            self.assertLess(held[rank], most + one[rank])
        self.assertEqual(self.activations("zero-bubble", self.SIZE, 30), held)

    def test_layers_by_cost_weigh_the_head(self):
        """A head as dear as two layers takes their place on the last stage."""
        def work(**settings):
            return [rank["flops"] for rank in self.check_json(4, pp__size=4, **settings)["ranks"]]
        layer = 2 * 3 * SEQUENCE * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * 192)
        vocab = round(2 * layer / (2 * 3 * SEQUENCE * HIDDEN))
        even, cost = work(gpt__vocab=vocab), work(gpt__vocab=vocab, pp__layers="cost")
        self.assertLess(max(cost), 0.85 * max(even))
        self.assertAlmostEqual(sum(even), sum(cost), delta=1e-3 * sum(even))

    def test_the_report_says_how_much_ranks_wait(self):
        pipeline = self.check_json(8, pp__size=4)["pipeline"]
        self.assertAlmostEqual(pipeline["formula"], 3 / 11)
        self.assertAlmostEqual(pipeline["bubble"], 3 / 11, delta=0.03)
        self.assertAlmostEqual(pipeline["idle"], pipeline["bubble"] + pipeline["unequal"])
        self.assertNotIn("pipeline", self.check_json(8, pp__size=1))


class Timeline(PipelineTest):
    def draw(self, *words, code=0, **settings):
        all_words = {"strategies.chain": "pp", "gpt.layers": LAYERS, "data.batch": 4, "data.micro_batches": 4,
                     **settings}
        return self.run_tenon("dump", "job.ini", *words, *overrides(all_words), code=code)

    def test_text(self):
        lines = self.draw("--after", "schedule", "--format", "timeline", pp__size=2).stdout.splitlines()
        self.assertRegex(lines[0], r"^rank 0   0+1+\.+a+2+\.*b+3+\.*c+\.*d+$")
        self.assertRegex(lines[1], r"^rank 1   \.+0+a+1+b+2+c+3+d+\.+$")
        self.assertRegex(lines[-1], r"^idle \d+\.\d% of the time: bubble \d+\.\d% \(by the formula 20\.0%\), unequal stages \d\.\d%$")
        rows = self.draw("--format", "timeline", pp__size=2, pp__schedule="interleaved").stdout.splitlines()
        self.assertEqual([row[:17].split() for row in rows[:4]],
                         [["rank", r, "stage", s] for r, s in (("0", "0"), ("0", "2"), ("1", "1"), ("1", "3"))])
        self.assertRegex(self.draw("--format", "timeline", pp__size=2, pp__schedule="zero-bubble").stdout, r"0+a+1+b+A+")

    def test_messages_are_under_way_before_they_are_needed(self):
        """But for the first slot's: between the start of a receive and its first use stands the work of a slot."""
        for schedule, size in (("1f1b", 3), ("gpipe", 3), ("interleaved", 2), ("zero-bubble", 3)):
            lines = self.draw("--after", "schedule", "--rank", 1, pp__size=size, pp__schedule=schedule).stdout.splitlines()
            ahead = []
            for i, line in enumerate(lines):
                if "= recv(" not in line:
                    continue
                name = line.split(":")[0].split()[-1]
                use = next(k for k in range(i + 1, len(lines)) if re.search(r"[(: ]%s[,)]" % re.escape(name), lines[k]))
                ahead.append(any(" = attention" in line or " = linear_dw" in line for line in lines[i + 1:use]))
            self.assertGreater(len(ahead), 6)
            self.assertEqual((ahead[0], set(ahead[1:])), (False, {True}), (schedule, ahead))

    def test_nobody_waits_for_the_heads_weight_gradient(self):
        """It comes behind the message to the stage before, but in its own backward pass: the gradient of the logits goes."""
        text = self.draw("--after", "lower", "--rank", 1, pp__size=2, pp__schedule="zero-bubble").stdout
        backward = text.split("region backward\n")[1].split("region weight\n")[0].splitlines()
        sent, = [i for i, line in enumerate(backward) if "= send(" in line or line.strip().startswith("send(")]
        head, = [i for i, line in enumerate(backward) if "logits.dw" in line]
        self.assertLess(sent, head)
        self.assertFalse([line for line in backward if "linear_dw" in line and "logits.dw" not in line])

    def test_svg(self):
        import xml.etree.ElementTree as tree
        for schedule, slots in (("1f1b", 2 * 4 * 2), ("interleaved", 2 * 4 * 4), ("zero-bubble", 2 * 4 * 3)):
            root = tree.fromstring(self.draw("--format", "timeline-svg", pp__size=2, pp__schedule=schedule).stdout)
            self.assertEqual(len(root.findall(".//{*}title")), slots)

    def test_refusals(self):
        self.assertIn("a timeline is of the program after schedule, not after lower",
                      self.draw("--after", "lower", "--format", "timeline", pp__size=2, code=2).stderr)
        self.assertIn("there are program, timeline and timeline-svg", self.draw("--format", "svg", pp__size=2, code=2).stderr)
        self.assertIn("no strategy of this job makes stages",
                      self.draw("--format", "timeline", strategies__chain="", code=2).stderr)


class Refusals(PipelineTest):
    def refused(self, message, **settings):
        words = {"strategies.chain": "pp", "gpt.layers": 6, **settings}
        self.assertIn(message, self.run_tenon("check", "job.ini", *overrides(words), code=2).stderr)

    def test_layers(self):
        self.refused("[pp] size: 7 ranks with 1 stages each are 7 stages, for 6 layers: some would have none; use at most 6",
                     pp__size=7)
        self.refused("4 ranks with 2 stages each are 8 stages, for 6 layers: some would have none; use at most 3", pp__size=4,
                     pp__schedule="interleaved")
        self.refused("or chunks = 3", pp__size=2, pp__schedule="interleaved", pp__chunks=4)
        for layers in ("2, 3", "3, 4", "2, 2, 2", "6, 0", "costs", "7, -1"):
            self.refused("[pp] layers: these are not 2 numbers from 1 that add up to layers = 6", pp__size=2, pp__layers=layers)

    def test_chunks(self):
        self.refused("[pp] chunks: 2 chunks a rank, but schedule = 1f1b runs one; leave it out, or use schedule = interleaved",
                     pp__size=2, pp__chunks=2)
        self.refused("[pp] chunks: 1 chunk a rank is nothing to interleave; use 2 or more, or schedule = 1f1b", pp__size=2,
                     pp__chunks=1, pp__schedule="interleaved")
        self.refused("[pp] schedule: zero_bubble is not a choice; did you mean zero-bubble?", pp__size=2,
                     pp__schedule="zero_bubble")

    def test_layers_that_do_not_divide_are_all_there(self):
        """None is left out: the stages hold the parameters of one rank, whatever the number of stages."""
        words = {"strategies.chain": "pp", "gpt.layers": 7, "gpt.tied": "false", "data.batch": 4, "data.micro_batches": 4}
        whole = None
        for more in ({"pp.size": 1}, {"pp.size": 2}, {"pp.size": 3}, {"pp.size": 4, "pp.layers": "cost"},
                     {"pp.size": 3, "pp.schedule": "interleaved"}):
            report = json.loads(self.run_tenon("check", "job.ini", "--json", *overrides({**words, **more})).stdout)
            held = sum(rank["memory_bytes"]["params"] for rank in report["ranks"])
            whole = whole or held
            self.assertEqual(held, whole)


if __name__ == "__main__":
    unittest.main()
