#!/usr/bin/env python3
"""Typed: what cannot be right is refused before anything is launched, exit code 2, and the message names both ops, both
plugins, or the values that would work.

usage: typed.py TENON ODD_FOLDER [unittest options]    (odd.c is a strategy that asks for the impossible)"""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest, layout, settings  # noqa: E402

TENON, ODD = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]


class Typed(JobTest):
    TENON = TENON

    def refused(self, *arguments, messages=(), commands=("check", "run"), **options):
        """By check and by run alike, in the same words; nothing is started."""
        said = set()
        for command in commands:
            run = self.run_tenon(command, "job.ini", *arguments, code=2, seconds=20, **options)
            self.assertEqual(run.stdout, "")
            self.assertNotIn("tenon: ", run.stderr)  # neither a launcher nor a rank spoke
            self.assertEqual(self.files(), [])
            for pattern in messages:
                self.matches(pattern, run.stderr)
            said.add(run.stderr)
        self.assertEqual(len(said), 1, said)

    # shapes that do not divide: the values that would work

    def test_heads(self):
        self.refused(*layout(tp=3), messages=[r"^--set: \[tp\] size: 3 does not divide heads = 4; use 1"])
        self.refused(*layout(tp=8), *settings(gpt={"heads": 12, "hidden": 96, "kv_heads": 12}),
                     messages=[r"\[tp\] size: 8 does not divide heads = 12; use 1"])

    def test_heads_offer_what_works(self):
        """Every size that is offered is taken, each that is not is refused."""
        model = settings(gpt={"heads": 12, "hidden": 96, "kv_heads": 4, "mlp": 96})
        run = self.run_tenon("check", "job.ini", *model, *layout(tp=5), code=2)
        said = re.search(r"; use ([\d, or]+)$", run.stderr, re.M).group(1)
        offered = [int(size) for size in re.findall(r"\d+", said)]
        for size in range(1, 13):
            if size not in offered:
                self.run_tenon("check", "job.ini", *model, *layout(tp=size), code=2)
        for size in offered:
            self.run_tenon("check", "job.ini", *model, *layout(tp=size))

    def test_kv_heads(self):
        self.refused(*settings(gpt={"kv_heads": 3}),
                     messages=[r"\[gpt\] kv_heads: 3 does not divide heads = 4; use 2 or 4"])
        self.refused(*layout(tp=2), *settings(gpt={"heads": 6, "hidden": 96, "kv_heads": 3}),
                     messages=[r"\[tp\] size: 2 and kv_heads = 3 do not divide each other; use 1"])

    def test_stages(self):
        """No stage without a layer, and none that gets fewer than was said."""
        pp = {"strategies": {"chain": "pp"}}
        self.refused(*settings(**pp, pp={"size": 3}),
                     messages=[r"\[pp\] size: 3 .*for 2 layers: some would have none; use at most 2"])
        for layers in ("2, 1", "1", "1, 1, 1", "2, 0"):
            self.refused(*settings(**pp, pp={"size": 2, "layers": layers}),
                         messages=[r"\[pp\] layers: these are not 2 numbers from 1 that add up to layers = 2"])

    def test_zigzag(self):
        """A sequence that does not divide loses no tokens, it is refused."""
        for sequence, size, works in ((30, 2, "1, 3, 5 or 15"), (32, 3, "1, 2, 4, 8 or 16")):
            self.refused(*settings(strategies={"chain": "cp"}, cp={"size": size}, data={"sequence": sequence}),
                         messages=[r"\[cp\] size: the sequence of %d tokens does not divide by %d, two runs on each of %d "
                                   "ranks; use %s, or" % (sequence, 2 * size, size, works)])

    def test_hidden(self):
        self.refused(*settings(gpt={"hidden": 66}),
                     messages=[r"\[gpt\] heads: 4 does not divide hidden = 66; use 3 or 6, or set head_dim"])

    def test_mlp(self):
        self.refused(*layout(tp=2), *settings(gpt={"mlp": 97}),
                     messages=[r"\[tp\] size: 2 does not divide mlp = 97; use 1"])

    def test_batch(self):
        self.refused(*layout(dp=3), messages=[r"\[dp\] size: 3 does not divide the 8 sequences of a micro-batch; "
                                             r"use a \[data\] batch such as 9"])
        self.refused(*layout(dp=4), *settings(data={"micro_batches": 4}),
                     messages=[r"\[dp\] size: 4 does not divide the 2 sequences of a micro-batch; "
                               r"use a \[data\] batch such as 16"])
        self.run_tenon("check", "job.ini", *layout(dp=4), *settings(data={"micro_batches": 4, "batch": 16}))
        self.refused(*layout(dp=2), *settings(dp={"shares": "5, 2"}),
                     messages=[r"\[dp\] shares: a micro-batch of 8 sequences does not divide in 7, the sum of "
                               r"the shares; use a \[data\] batch such as 14"])

    def test_sequence(self):
        odd = [*layout(tp=4), *settings(data={"sequence": 30}, tp={"sequence_parallel": "on"})]
        self.refused(*odd, messages=[r"\[tp\] sequence_parallel: the sequence of 30 tokens does not divide by "
                                     r"size = 4; use off, or a \[data\] sequence such as 32"])
        self.run_tenon("check", "job.ini", *odd, *settings(tp={"sequence_parallel": "off"}))

    def test_micro_batches(self):
        self.refused(*settings(data={"micro_batches": 3}),
                     messages=[r"\[data\] micro_batches: 3 does not divide batch = 8; use 1, 2, 4 or 8"])

    def test_sequence_beyond_positions(self):
        self.refused(*settings(gpt={"family": "gpt2", "kv_heads": "auto", "positions": 16}),
                     messages=[r"positions.* 16|16.* positions"])

    def test_vocabulary_pads(self):
        """A vocabulary that does not divide is no reason to refuse."""
        self.run_tenon("run", "job.ini", *layout(tp=2), *settings(gpt={"vocab": 257}))

    # strategies that ask for what cannot be

    def odd(self, deed, *messages, chain="odd", **sections):
        self.refused(*settings(strategies={"chain": chain}, odd={"deed": deed}, **sections), messages=messages,
                     env={"TENON_PLUGIN_PATH": ODD})

    def test_odd_may_stay(self):
        """The control: the same strategy that asks for nothing."""
        self.run_tenon("check", "job.ini", *settings(strategies={"chain": "odd"}), env={"TENON_PLUGIN_PATH": ODD})

    def test_dimension_that_is_not_there(self):
        self.odd("batch_of_param", r"after place:odd: model\.layers\.0\.self_attn\.q_proj\.weight: odd asks for "
                 r"shard\(2\) on axis odd, but it has 2 dimensions")

    def test_partial_meets_a_non_linear_op(self):
        """Both ops: the one that makes the partial, and the one that cannot take it."""
        self.odd("skip_reduction", r"after lower:odd: \S+ = rmsnorm: its input x, embed made by embedding, is "
                 r"partial\(sum\)",
                 chain="tp, odd", tp={"size": 2})

    def test_partial_param(self):
        self.odd("partial_input", r"model\.embed_tokens\.weight.*partial\(sum\).*odd",
                 r"= embedding|no rule of embedding")

    def test_cut_that_does_not_divide(self):
        self.refused(*settings(strategies={"chain": "odd"}, odd={"deed": "uneven", "size": 5}),
                     messages=[r"q_proj\.weight: odd asks for shard\(0\) on axis odd = 5, which does not divide it"],
                     env={"TENON_PLUGIN_PATH": ODD})

    def test_removes_what_is_used(self):
        self.odd("remove_used", r"after place:odd: \S+ = linear: odd removed it, but \S+ uses it")

    def test_value_that_is_not_there(self):
        self.odd("unknown_value", r"after place:odd: odd .*999999")

    def test_shapes_that_do_not_fit(self):
        self.odd("wrong_shape", r"after place:odd: odd\.sum = add: ")

    def test_fails_without_a_reason(self):
        self.odd("no_message", r"after place:odd: odd: \S")

    def test_two_strategies_disagree(self):
        self.odd("take_heads", r"q_proj\.weight: tp places it as shard\(0\) on axis tp, and odd as shard\(1\); "
                 r"take one of the two out of the chain", chain="tp, odd", tp={"size": 2})


if __name__ == "__main__":
    unittest.main()
