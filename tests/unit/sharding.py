#!/usr/bin/env python3
"""fsdp and ckpt: memory and communication are what their formulas say, as `tenon check --json` plans them; and what
they refuse.

usage: sharding.py TENON [unittest options]

The formulas are exact but for the plan's alignment of 64 bytes a value, which is all the slack that is given."""
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tenon_job import JobTest  # noqa: E402

TENON = os.path.abspath(sys.argv[1])
del sys.argv[1]

HIDDEN, MLP, KV, VOCAB, BATCH, SEQUENCE, LAYERS = 64, 96, 32, 256, 24, 32, 8
LAYER = [HIDDEN, HIDDEN * HIDDEN, KV * HIDDEN, KV * HIDDEN, HIDDEN * HIDDEN, HIDDEN, MLP * HIDDEN, MLP * HIDDEN,
         MLP * HIDDEN]  # elements of its params
EMBEDDING = HEAD = VOCAB * HIDDEN
PARAMS = [EMBEDDING, *LAYER * LAYERS, HIDDEN, HEAD]
FLOAT, ALIGN = 4, 64
LAYER_BYTES = FLOAT * sum(LAYER)
LAYER_INPUT_BYTES = FLOAT * BATCH * SEQUENCE * HIDDEN


def overrides(settings):
    return [word for key, value in settings.items() for word in ("--set", "%s=%s" % (key.replace("__", "."), value))]


class PlanTest(JobTest):
    TENON = TENON

    def report(self, chain, **settings):
        words = overrides({"strategies.chain": chain, **settings})
        return json.loads(self.run_tenon("check", "job.ini", "--json", *words).stdout)

    def plan(self, chain="", **settings):
        """(bytes by category, (calls, bytes) by collective) of rank 0."""
        rank = self.report(chain, **{"data.batch": BATCH, "gpt.layers": LAYERS, **settings})["ranks"][0]
        return rank["memory_bytes"], {c["op"]: (c["calls"], c["bytes"]) for c in rank["communication"]}

    def near(self, bytes_, formula, values):
        """`values`: how many values may have been aligned."""
        self.assertGreaterEqual(bytes_, formula - values * ALIGN)
        self.assertLessEqual(bytes_, formula + values * ALIGN)


class Fsdp(PlanTest):
    def test_a_rank_holds_its_part(self):
        """Padding counts: the part is rounded up for each param by itself."""
        for size in (2, 3, 4, 8):
            memory, _ = self.plan("fsdp", fsdp__size=size)
            part = FLOAT * sum(-(-n // size) for n in PARAMS)
            self.near(memory["params"], part, len(PARAMS))
            self.near(memory["gradients"], part, len(PARAMS) + 1)
            self.near(memory["optimizer"], 2 * part, 2 * len(PARAMS))
            self.assertLess(part, FLOAT * sum(PARAMS) / size + FLOAT * len(PARAMS))

    def test_level_says_what_is_cut(self):
        """Of a model of P bytes, parameters and Adam's two moments are cut by all levels, gradients by two (Rajbhandari et
        al. 2020, section 5, with fp32 throughout: there the P of stage 1 and 2 are low-precision copies)."""
        whole = FLOAT * sum(PARAMS)
        for size in (2, 3, 4, 8):
            part = FLOAT * sum(-(-n // size) for n in PARAMS)
            for level, gradients in (("optimizer", whole + part), ("gradients", part), ("full", part)):
                memory, _ = self.plan("fsdp", fsdp__size=size, fsdp__level=level, data__micro_batches=1)
                self.near(memory["params"], part, len(PARAMS))
                self.near(memory["optimizer"], 2 * part, 2 * len(PARAMS))
                self.near(memory["gradients"], gradients, 2 * len(PARAMS) + 1)

    def test_other_axes_sum_parts(self):
        """Where replicas or parts of the sequence sum gradients as well, each rank sums only what fsdp leaves it (HSDP;
        Zhao et al. 2023, section 3.2.2): of two ranks, each sends as much as it holds."""
        for size in (2, 3):
            part = FLOAT * sum(-(-n // size) for n in PARAMS)
            for level in ("optimizer", "gradients", "full"):
                for axis in ("dp", "cp"):
                    sizes = {"fsdp.size": size, "fsdp.level": level, f"{axis}.size": 2}
                    report = self.report(f"{axis}, fsdp", **sizes, **{"data.batch": BATCH, "gpt.layers": LAYERS})
                    sent = sum(c["bytes"] for c in report["ranks"][0]["communication"]
                               if c["axis"] == axis and c["op"] == "all_reduce")
                    self.near(sent, part, len(PARAMS) + 3)

    def test_gathered_copies_of_each_level(self):
        """Beside its share of the batch a rank holds all of the gathered params, or with `full` units of them; where
        gradients are cut, those of two units are whole, one being reduced and one being made."""
        whole, unit, ends = FLOAT * sum(PARAMS), LAYER_BYTES, FLOAT * (2 * HEAD + HIDDEN)
        for size in (2, 3, 4, 8):
            alone = self.plan(data__batch=BATCH // size)[0]["activations"]
            held = {level: self.plan("fsdp", fsdp__size=size, fsdp__level=level)[0]["activations"] - alone
                    for level in ("optimizer", "gradients", "full")}
            self.near(held["optimizer"], whole - FLOAT * EMBEDDING, 2 * len(PARAMS))  # at the peak, the loss
            self.assertLessEqual(held["gradients"], whole + ends + unit)
            self.assertLessEqual(held["full"], 4 * unit + ends)

    def activations(self, **settings):
        return self.plan("fsdp", fsdp__size=2, **settings)[0]["activations"]

    def test_gathered_params_go_after_use(self):
        """At the peak, the loss: the head alone; with prefetch the next layers too; without reshard all of them."""
        alone = self.plan(data__batch=BATCH // 2)[0]["activations"]
        least = self.activations(fsdp__prefetch=0)
        self.assertLessEqual(least, alone + FLOAT * (2 * HEAD + HIDDEN) + 2 * LAYER_BYTES)
        for depth in (1, 2, 3):
            self.near(self.activations(fsdp__prefetch=depth), least + depth * LAYER_BYTES, len(LAYER) * depth)
        self.near(self.activations(fsdp__reshard="off"), least + LAYERS * LAYER_BYTES + FLOAT * HIDDEN, len(PARAMS))

    def test_gathered_params_do_not_pile_up(self):
        """A layer more keeps its activations, none of its params."""
        more = self.activations(gpt__layers=LAYERS + 1) - self.activations()
        alone = (self.plan(data__batch=BATCH // 2, gpt__layers=LAYERS + 1)[0]["activations"] -
                 self.plan(data__batch=BATCH // 2)[0]["activations"])
        self.near(more, alone, len(LAYER))

    def lifetimes(self, **settings):
        """Of each gathered param: region, its own layer, (layer, region) of the ops from the gather to its last use."""
        words = {"gpt.layers": 4, "strategies__chain": "fsdp", "fsdp.size": 2, **settings}
        region, ops = None, []
        for line in self.run_tenon("dump", "job.ini", "--after", "lower:fsdp", *overrides(words)).stdout.splitlines():
            region = line.split()[1] if line.startswith("region ") else region
            if region in ("forward", "backward") and " = " in line:
                layer = re.search(r" @layer=(\d+)", line)
                ops.append((region, int(layer.group(1)) if layer else None, line))
        for i, (region, layer, line) in enumerate(ops):
            if " = all_gather(" in line:
                name = line.split(":")[0].strip()
                users = [j for j, op in enumerate(ops) if re.search(r"[:] %s[,)]" % re.escape(name), op[2])]
                self.assertTrue(users, "nobody uses " + name)
                yield region, layer, {ops[j][:2] for j in range(i + 1, users[-1] + 1)
                                      if not re.search(r"= (all_gather|reduce_scatter|accumulate)\(", ops[j][2])}

    def test_gathered_params_live_around_their_use(self):
        """They are used in the region that gathers them, by their layer, at most `prefetch` layers later."""
        for depth, more in ((0, {}), (1, {}), (2, {}), (1, {"precision__compute": "bf16"}),
                            (0, {"strategies__chain": "ckpt, fsdp", "ckpt__recompute": "full"}),
                            (1, {"strategies__chain": "ckpt, fsdp"})):
            seen = 0
            for region, layer, span in self.lifetimes(fsdp__prefetch=depth, **more):
                self.assertEqual({r for r, _ in span}, {region})
                if layer is not None:
                    self.assertLessEqual({abs(other - layer) for _, other in span if other is not None},
                                         set(range(depth + 1)))
                    seen += 1
            self.assertEqual(seen, 2 * 4 * len(LAYER))

    def test_full_gathers_twice_and_reduces_once(self):
        """For each param and micro-batch, but that the embedding's gradient does not need the embedding."""
        for size in (2, 4):
            for parts in (1, 3):
                _, sent = self.plan("fsdp", fsdp__size=size, data__micro_batches=parts)
                share = FLOAT * (size - 1) / size * parts
                self.assertEqual(sent["all_gather"], ((2 * len(PARAMS) - 1) * parts,
                                                      share * (2 * sum(PARAMS) - EMBEDDING)))
                self.assertEqual(sent["reduce_scatter"], (len(PARAMS) * parts, share * sum(PARAMS)))
                self.assertEqual(sent["all_reduce"][0], 3)  # targets, loss and norm, once a step

    def test_collectives_of_the_other_levels(self):
        """Params once a step; gradients once a step or once a micro-batch."""
        for level, parts, settings in (("optimizer", 1, {}), ("gradients", 3, {}),
                                       ("full", 3, {"fsdp__reshard": "off"})):
            _, sent = self.plan("fsdp", fsdp__size=2, fsdp__level=level, data__micro_batches=3, **settings)
            gathers = 3 if level == "full" else 1
            half = FLOAT * sum(PARAMS) / 2
            self.assertEqual(sent["all_gather"], (len(PARAMS) * gathers, gathers * half))
            self.assertEqual(sent["reduce_scatter"], (len(PARAMS) * parts, parts * half))

    def test_gathers_in_compute_precision_and_reduces_in_fp32(self):
        """Weights of norms are used in fp32; they are few."""
        norms = (2 * LAYERS + 1) * HIDDEN
        _, whole = self.plan("fsdp", fsdp__size=2)
        _, half = self.plan("fsdp", fsdp__size=2, precision__compute="bf16")
        self.assertEqual(half["reduce_scatter"], whole["reduce_scatter"])
        self.assertEqual(half["all_gather"][0], whole["all_gather"][0])
        self.assertEqual(half["all_gather"][1],
                         (2 * EMBEDDING + 2 * 4 * norms + 2 * 2 * (sum(PARAMS) - EMBEDDING - norms)) / 2)

    def test_a_tied_embedding_goes_between_its_uses(self):
        """It is gathered for the look-up, for the head and for the head's gradient; without reshard once. In bf16 too,
        where one cast serves both uses."""
        for more, item in (({}, FLOAT), ({"precision__compute": "bf16"}, 2)):
            tied = {"gpt__tied": "true", "fsdp__size": 2, **more}
            _, again = self.plan("fsdp", **tied)
            _, once = self.plan("fsdp", **tied, fsdp__reshard="off")
            others = len(PARAMS) - 2
            self.assertEqual(again["all_gather"][0], 2 * others + 3)
            self.assertEqual(once["all_gather"][0], others + 1)
            self.assertEqual(again["all_gather"][1] - 2 * once["all_gather"][1], item * EMBEDDING / 2)
        for region, layer, span in self.lifetimes(gpt__tied="true"):
            if layer is None:
                self.assertLessEqual(len({other for _, other in span if other is not None}), 1)

    def runs(self, opcode, **settings):
        """Lengths of the runs of an op that stand one behind the other, by region."""
        words = {"gpt.layers": 3, "strategies__chain": "fsdp", "fsdp.size": 2, **settings}
        region, before, runs = None, "", {}
        for line in self.run_tenon("dump", "job.ini", "--after", "lower:fsdp", *overrides(words)).stdout.splitlines():
            region = line.split()[1] if line.startswith("region ") else region
            if " = %s(" % opcode in line:
                lengths = runs.setdefault(region, [])
                if " = %s(" % opcode in before:
                    lengths[-1] += 1
                else:
                    lengths.append(1)
            before = line
        return runs

    def test_a_unit_is_gathered_and_reduced_together(self):
        """Embedding; each layer; last norm and head. No op stands between."""
        layers = 3 * [len(LAYER)]
        self.assertEqual(self.runs("all_gather", fsdp__prefetch=0),
                         {"forward": [1, *layers, 2], "backward": [2, *layers]})
        for depth in (0, 1, 2):
            self.assertEqual(self.runs("reduce_scatter", fsdp__prefetch=depth), {"backward": [2, *layers, 1]})
        self.assertEqual(self.runs("reduce_scatter", fsdp__level="gradients"), {"backward": [2, *layers, 1]})

    def test_units_by_list(self):
        """Of each layer: four of attention, three of the MLP, and two norms that no word names."""
        words = {"fsdp__units": "self_attn, mlp"}
        self.assertEqual(sorted(self.runs("reduce_scatter", **words)["backward"]), sorted([2, 1] + 3 * [4, 3, 2]))
        _, layers = self.plan("fsdp", fsdp__size=2)
        _, listed = self.plan("fsdp", fsdp__size=2, **words)
        self.assertEqual(layers, listed)
        self.assertLess(self.activations(**words), self.activations())

    def test_hybrid_reduces_parts_along_dp(self):
        """Cut along fsdp, whole along dp: the all_reduce is of 1/n of the gradients."""
        report = json.loads(self.run_tenon("check", "job.ini", "--json", *overrides(
            {"strategies.chain": "fsdp, dp", "fsdp.size": 2, "dp.size": 4, "data.batch": BATCH,
             "gpt.layers": LAYERS})).stdout)
        reduced, = [c["bytes"] for c in report["ranks"][0]["communication"]
                    if (c["axis"], c["op"]) == ("dp", "all_reduce")]
        formula = 2 * 3 / 4 * FLOAT * sum(PARAMS) / 2
        self.assertTrue(formula <= reduced < 1.02 * formula, (reduced, formula))

    def test_one_rank_is_the_plain_run(self):
        self.assertEqual(self.plan("fsdp", fsdp__size=1), self.plan())


class Ckpt(PlanTest):
    FULL = {"ckpt__recompute": "full"}

    def activations(self, chain="", **settings):
        return self.plan(chain, **settings)[0]["activations"]

    def test_full_keeps_a_layers_input(self):
        more = self.activations("ckpt", **self.FULL, gpt__layers=LAYERS + 4) - self.activations("ckpt", **self.FULL)
        self.near(more, 4 * LAYER_INPUT_BYTES, 4)

    def test_full_has_one_layer_at_a_time(self):
        """Inputs of all layers, and what one layer keeps without it."""
        layer = self.activations(gpt__layers=LAYERS + 1) - self.activations()
        one = self.activations("ckpt", **self.FULL, gpt__layers=1)
        self.assertLessEqual(self.activations("ckpt", **self.FULL), one + layer + (LAYERS - 1) * LAYER_INPUT_BYTES)
        self.assertLess(4 * self.activations("ckpt", **self.FULL), 2 * self.activations())

    def test_ratio_counts_layers(self):
        none = self.activations()
        layer = self.activations(gpt__layers=LAYERS + 1) - none - LAYER_INPUT_BYTES  # saved for each layer chosen
        self.assertEqual(self.activations("ckpt", **self.FULL, ckpt__ratio=0), none)
        for ratio in (0.25, 0.5, 0.75):
            self.near(self.activations("ckpt", **self.FULL, ckpt__ratio=ratio), none - ratio * LAYERS * layer,
                      40 * LAYERS)

    def test_selective_saves_what_its_ops_made(self):
        """swiglu's product alone: mlp elements of each token of each layer."""
        saved = self.activations() - self.activations("ckpt", ckpt__ops="swiglu")
        product = FLOAT * BATCH * SEQUENCE * MLP
        self.assertLessEqual(abs(saved - LAYERS * product), 2 * product)
        self.assertLess(self.activations("ckpt"), self.activations() - saved)

    def test_nothing_is_sent_again_unless_asked_for(self):
        for sp in ("off", "on"):
            tp = {"tp__size": 2, "tp__sequence_parallel": sp, "data__batch": 8}
            plain, kept = self.plan("tp", **tp)[1], self.plan("ckpt, tp", **self.FULL, **tp)[1]
            self.assertEqual(kept, plain)
            sent = self.plan("ckpt, tp", **self.FULL, **tp, ckpt__resend="on")[1]
            self.assertGreater(sum(calls for calls, _ in sent.values()), sum(calls for calls, _ in plain.values()))

    def test_copies_share_the_gathers_of_the_backward_pass(self):
        plain = self.plan("fsdp", fsdp__size=2)[1]
        for more in ({}, self.FULL):
            self.assertEqual(self.plan("ckpt, fsdp", fsdp__size=2, **more)[1], plain)

    def test_flops_are_of_a_second_forward_pass(self):
        def flops(chain="", **settings):
            words = {"gpt.layers": LAYERS, "strategies.chain": chain, **settings}
            report = json.loads(self.run_tenon("check", "job.ini", "--json", *overrides(words)).stdout)
            return report["ranks"][0]["flops"]
        share = flops("ckpt", **self.FULL) / flops()
        self.assertTrue(1.2 < share < 4 / 3, share)  # forward : backward = 1 : 2; the last product is not needed


class Refusals(PlanTest):
    def refused(self, message, chain, **settings):
        run = self.run_tenon("check", "job.ini", *overrides({"strategies.chain": chain, **settings}), code=2)
        self.assertIn(message, run.stderr)

    def test_batch_that_does_not_divide(self):
        self.refused("[fsdp] size: 3 does not divide the 8 sequences of a micro-batch; use a [data] batch such as 9",
                     "fsdp", fsdp__size=3)
        self.refused("use a [data] batch such as 12", "fsdp", fsdp__size=3, data__micro_batches=4)

    def test_batch_that_two_strategies_cut(self):
        """Each size divides the batch, their product does not."""
        self.refused("dp asks for shard(0) on axis dp = 4, which does not divide it; dimension 0 (batch) is 8, and "
                     "must be a multiple of 16", "fsdp, dp", fsdp__size=4, dp__size=4)

    def test_order(self):
        for other in ("tp", "fsdp"):
            self.refused("%s must come after ckpt, says ckpt; swap them" % other, "%s, ckpt" % other,
                         **{other + "__size": 2})

    def test_options(self):
        self.refused("[fsdp] level: ful is not a choice; did you mean full?", "fsdp", fsdp__level="ful")
        self.refused("[fsdp] prefetch: ", "fsdp", fsdp__prefetch=-1)
        self.refused("[fsdp] units: no param has atn in its name; tenon dump --after model shows them", "fsdp", fsdp__size=2, fsdp__units="atn, mlp")
        self.refused("[ckpt] recompute: ful is not a choice; did you mean full?", "ckpt", ckpt__recompute="ful")
        self.refused("[ckpt] ops: there is no op atention; did you mean attention?", "ckpt",
                     ckpt__ops="atention, rmsnorm")
        self.refused("[ckpt] ops: there is no op flash; docs/ops.md lists them", "ckpt", ckpt__ops="flash")
        self.refused("[ckpt] tags: no activation is tagged nrm; tenon dump --after model shows the tags", "ckpt",
                     ckpt__tags="norm, nrm")
        self.refused("[ckpt] ratio: 1.5 is out of range", "ckpt", ckpt__ratio=1.5)

    def test_two_sizes_left_to_the_world(self):
        self.refused("only one strategy may say auto", "fsdp, dp")


if __name__ == "__main__":
    unittest.main()
