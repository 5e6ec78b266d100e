#!/usr/bin/env python3
"""cp: messages and work are what their formulas say, as `tenon check --json` and `tenon dump` tell; and what it refuses.

usage: context.py TENON [unittest options]"""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]

LAYERS, BATCH, SEQUENCE, HIDDEN, HEADS, KV_HEADS, HEAD = 2, 8, 32, 64, 4, 2, 16


def overrides(settings):
    return [word for key, value in settings.items() for word in ("--set", "%s=%s" % (key.replace("__", "."), value))]


class ContextTest(JobTest):
    TENON = TENON

    def dump(self, rank=0, stage="lower:cp", chain="cp", **settings):
        words = overrides({"strategies.chain": chain, **settings})
        return self.run_tenon("dump", "job.ini", "--after", stage, "--rank", rank, *words).stdout

    def sent(self, text, opcode):
        """[(region, elements that this rank sends)] of each op along the axis of cp."""
        found, region = [], ""
        values = {}
        for line in text.splitlines():
            if line.startswith("region "):
                region = line.split()[1]
            for name, dtype, sizes, places in re.findall(r"([\w.]+): (\w+)\[([\d, ]*)\](?: \([^)]*\))? \{([^}]*)\}", line):
                elements = 1
                for size in sizes.split(", "):
                    elements *= int(size or 1)
                values[name] = (elements // (int(re.search(r"cp=(\d+)", text).group(1)) if "cp: S" in places else 1), dtype)
            made = re.search(r"(?:= |^ +)%s\(x: ([\w.]+)" % opcode, line)
            if made:
                found.append((region, *values[made.group(1)]))
        return found


class Traffic(ContextTest):
    def test_ring(self):
        """Of C ranks each sends keys and values C - 1 times forward and backward, and their gradients C times, f32."""
        for size in (2, 4):
            part = BATCH * SEQUENCE // size * KV_HEADS * HEAD
            for compute, dtype in (("fp32", "f32"), ("bf16", "bf16")):
                sends = self.sent(self.dump(cp__size=size, precision__compute=compute), "send")
                self.assertEqual(sends.count(("forward", part, dtype)), LAYERS * 2 * (size - 1))
                gradients = LAYERS * 2 * size
                keys = LAYERS * 2 * (size - 1)
                if dtype == "f32":
                    self.assertEqual(sends.count(("backward", part, dtype)), gradients + keys)
                else:
                    self.assertEqual(sends.count(("backward", part, "f32")), gradients)
                    self.assertEqual(sends.count(("backward", part, "bf16")), keys)
                self.assertEqual(len(sends), gradients + 2 * keys)

    def test_all_gather(self):
        part = BATCH * SEQUENCE // 2 * KV_HEADS * HEAD
        for regather, times in (("on", 2), ("off", 0)):
            text = self.dump(cp__size=2, cp__method="all_gather", cp__regather=regather)
            gathers = self.sent(text, "all_gather")
            self.assertEqual(gathers.count(("forward", part, "f32")), 2 * LAYERS)
            self.assertEqual(gathers.count(("backward", part, "f32")), times * LAYERS)
            self.assertEqual(gathers.count(("prologue", SEQUENCE // 2, "i32")), 1)
            self.assertEqual([region for region, _, _ in self.sent(text, "reduce_scatter")], ["backward"] * 2 * LAYERS)

    def test_all_to_all(self):
        """q, k, v there and o back; in the backward pass do there and three gradients back. Nothing else."""
        for zigzag in ("off", "on"):
            text = self.dump(stage="resolve", cp__size=2, cp__method="all_to_all", cp__zigzag=zigzag)
            regions = [region for region, _, _ in self.sent(text, "all_to_all")]
            self.assertEqual((regions.count("forward"), regions.count("backward")), (4 * LAYERS, 4 * LAYERS))
            self.assertEqual(self.sent(text, "all_gather"), [])

    def test_keys_of_the_next_block_are_under_way_before_a_block_runs(self):
        text = self.dump(cp__size=4)
        ops = re.findall(r"^ +(?:.* = )?(send|recv|attention_block)\(", text[text.index("region forward"):text.index("region backward")],
                         re.M)
        layer = ["send", "recv"] * 2 + ["attention_block"]
        self.assertEqual(ops, (layer * 3 + ["attention_block"]) * LAYERS)

    def test_recomputing_does_not_send_again(self):
        """cp.attention is kept, unless ckpt is told to send again."""
        full = {"ckpt__recompute": "full", "cp__size": 2}
        plain, kept = (len(self.sent(self.dump(chain=chain, **more), "send"))
                       for chain, more in (("cp", {"cp__size": 2}), ("ckpt, cp", full)))
        again = len(self.sent(self.dump(chain="ckpt, cp", **full, ckpt__resend="on"), "send"))
        self.assertEqual((kept, again), (plain, plain + 2 * LAYERS))


class Balance(ContextTest):
    def work(self, rank, size, **settings):
        """Of each rank: pairs of query and key that its blocks compute, as a share of one block."""
        text = self.dump(rank=rank, cp__size=size, **settings)
        return sum(float(share) for share in re.findall(r" = attention_block\(.*share=([\d.]+)", text)) / LAYERS

    def test_zigzag_gives_each_rank_as_much(self):
        """Half of all blocks, and half of the diagonal that is seen."""
        for method in ("ring", "all_gather"):
            for size in (2, 4):
                blocks = size if method == "ring" else 1
                wanted = blocks * (1 + 1 / SEQUENCE) / 2
                for rank in range(size):
                    self.assertAlmostEqual(self.work(rank, size, cp__method=method), wanted, places=9)

    def test_without_it_the_last_rank_has_most(self):
        """r whole blocks before rank r's own; those behind are left out."""
        size, own = 4, (1 + size_of(4)) / 2
        for rank in range(size):
            self.assertAlmostEqual(self.work(rank, size, cp__zigzag="off"), rank + own, places=9)


def size_of(size):
    """One token, as a share of a rank's part."""
    return size / SEQUENCE


class Refused(ContextTest):
    def refused(self, message, chain="cp", **settings):
        run = self.run_tenon("check", "job.ini", *overrides({"strategies.chain": chain, **settings}), code=2)
        self.assertIn(message, run.stderr)

    def test_sequences(self):
        self.refused("[cp] size: the sequence of 32 tokens does not divide by 6, two runs on each of 3 ranks; use 1, 2, 4, 8 or "
                     "16, or a [data] sequence such as 36", cp__size=3)
        self.refused("does not divide by 3, 3 ranks of it", cp__size=3, cp__zigzag="off")
        self.refused("[cp] size: the sequence of 31 tokens does not divide by 4", cp__size=2, data__sequence=31)

    def test_heads(self):
        self.refused("[cp] size: 4 does not divide kv_heads = 2, which all_to_all deals out; use 1 or 2, or method = ring",
                     cp__size=4, cp__method="all_to_all")
        self.refused("[cp] method: all_to_all deals kv_heads = 2 out over size = 2, of which other strategies have cut 2 parts", "tp, cp",
                     cp__size=2, tp__size=2, cp__method="all_to_all")

    def test_order(self):
        for other in ("tp", "ckpt"):
            self.refused("cp must come after %s" % other, "cp, %s" % other, cp__size=2, **({"tp__size": 2} if other == "tp" else {}))


if __name__ == "__main__":
    unittest.main()
