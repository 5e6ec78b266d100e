#!/usr/bin/env python3
"""Equivalence: whatever the layout, training is the one-rank run.

    matrix.py RUN SUITE [--backend NAME] [--hosts LETTERS] [--table FILE] [--only WORDS] [--keep]
    matrix.py RUN backends --backends NAME...
    matrix.py covers
    matrix.py apart TENON
    matrix.py page FILE...

Trains tiny models in every layout of the suite with RUN (run.c) and compares each with one rank that computes the
batch in one part: initial parameters bit for bit, loss and gradient norm of every step on every rank, parameters
after the last step on every rank, validation losses and the closing sample. --table writes what ran and how far it
was off, `page` makes docs/equivalence.md from such tables. --only runs the layouts whose text has all the words;
--keep leaves the files and says where. `covers` fails if two ways of strategies are together in no layout,
`apart` if TENON check takes what cannot be together, or does not say why.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import mixes
from layouts import (BF16, BOUNDS, GPT2, HARDLY_ANY, LLAMA, MASKED, PRINTED, QWEN, SPACE, TIED, UNTIED, Chain, Group,
                     Layout, grid)

STEPS, BATCH, SEQUENCE = 10, 8, 16
SECONDS_A_RUN = 300
WORKERS = 2
HOSTS = "aaabbabbccdcddab"  # of ranks on hier, which on one host would be what is inside
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n"]

MANIFEST = f"""\
[job]
steps = {STEPS}
[model]
plugin = gpt
[gpt]
layers = 2
hidden = 32
heads = 8
mlp = 64
vocab = 64
positions = {SEQUENCE}
init_std = 0.08
[data]
source = tokens
path = corpus
sequence = {SEQUENCE}
batch = {BATCH}
validation = 0
[optimizer]
schedule = constant
lr = 1e-3
eps = 1e-5
[comm]
timeout = 100s
[device]
plugin = cpu
"""

# eps is not 1e-8 because the gradient of GPT-2's key bias is zero but for rounding, which AdamW would blow up to whole
# steps, in any two runs differently.
#


def family_suite(name, model):
    return [Group(f"{name}, {head}", {**model, **tied}, grid()) for head, tied in (("tied", TIED), ("untied", UNTIED))]


def mixed_suite():
    some = [Layout(2, 2), Layout(2, 2, "on", 4), Layout(4, 1, "on"), Layout(4, 2, parts=4)]
    kv = {"gpt.kv_heads": 2}
    uneven = [Layout(1, 2, dp__shares="3, 1"), Layout(2, 2, parts=2, dp__shares="3, 1"),
              Layout(2, 2, "on", dp__shares="1, 3")]
    buckets = [Layout(1, 2, dp__bucket=0), Layout(1, 2, parts=4, dp__bucket=300), Layout(2, 2, "on", dp__bucket="5K"),
               Chain("cp", parts=2, cp=2, cp__bucket=0), Chain("dp, cp", dp=2, cp=2, dp__bucket="5K"),
               Chain("tp, cp, dp", parts=2, tp=2, cp=2, dp=2, tp__sequence_parallel="on", cp__bucket="5K")]
    first = [Layout(2, 2, "on", 4, order="dp, tp"), Layout(4, 2, order="dp, tp")]
    dropout = {"gpt.dropout": 0.2}
    odd_sizes = {"gpt.hidden": 40, "gpt.heads": 4, "gpt.mlp": 72, "gpt.vocab": 61}  # no multiples of dp's alignment
    groups = [
        Group("llama, fewer key heads than tp", {**LLAMA, **kv, **UNTIED}, grid(tps=(4,)) + grid(tps=(8,), dps=(1,))),
        Group("llama, one key head", {**QWEN, "gpt.kv_heads": 1, **TIED}, some + [Layout(2, 1, "on")]),
        Group("llama, q/k/v biases and normed heads", {**QWEN, **UNTIED}, grid(dps=(2,)) ),
        Group("llama, fewer key heads than tp, biases, normed heads", {**QWEN, **kv, **TIED}, some),
        Group("llama, dp first", {**LLAMA, **UNTIED}, first),
        Group("llama, fewer key heads than tp, dp first", {**LLAMA, **kv, **UNTIED, **MASKED}, first),
        Group("gpt2, dp first", {**GPT2, **TIED, **MASKED}, first),
    ]
    for vocab in (61, 257):
        odd = {"gpt.vocab": vocab}
        groups += [Group(f"gpt2, vocabulary of {vocab}", {**GPT2, **TIED, **odd}, some),
                   Group(f"llama, vocabulary of {vocab}", {**LLAMA, **UNTIED, **odd}, some),
                   Group(f"llama, fewer key heads than tp, vocabulary of {vocab}", {**LLAMA, **kv, **TIED, **odd},
                         some)]
    for name, model in (("gpt2", {**GPT2, **TIED}), ("llama", {**LLAMA, **UNTIED})):
        groups += [
            Group(f"{name}, masked targets", {**model, **MASKED}, grid(tps=(1, 2))),
            Group(f"{name}, hardly any target", {**model, **HARDLY_ANY}, [Layout(1, 4, parts=2), Layout(2, 2, "on", 4)]),
            Group(f"{name}, unequal shares", {**model, **MASKED}, uneven),
            Group(f"{name}, buckets", {**model, **odd_sizes}, buckets),
            Group(f"{name}, validation and sample", {**model, **PRINTED}, some + uneven[:1]),
            Group(f"{name}, SGD", {**model, "optimizer.kind": "sgd", "optimizer.lr": 0.05}, some),
            Group(f"{name}, no clipping", {**model, "optimizer.clip": 0}, some[:2]),
            Group(f"{name}, always clipped", {**model, "optimizer.clip": 0.1}, some[:2]),
            Group(f"{name}, dropout", {**model, **dropout}, [Layout(2), Layout(4, 2, "on"), Layout(1, 2)]),
            Group(f"{name}, dropout, 4 parts", {**model, **dropout},
                  [Layout(2, 1, "on", 4), Layout(4, 2, "off", 4), Layout(1, 2, "off", 4)],
                  reference={"data.micro_batches": 4}),
        ]
    return groups


def bf16_suite():
    some = [Layout(1, 1, parts=4), Layout(1, 2), Layout(2), Layout(4), Layout(2, 2, "on", 4), Layout(4, 2, "on")]
    models = {"gpt2": {**GPT2, **TIED}, "llama": {**LLAMA, **UNTIED},
              "llama, fewer key heads than tp, biases, normed heads": {**QWEN, "gpt.kv_heads": 2, **TIED}}
    return [Group(f"{name}, bf16", {**model, **BF16, **MASKED}, some, precision="bf16")
            for name, model in models.items()]


def levels(ranks=(2, 3, 4), parts=(1, 2), **more):
    """Every level on every number of ranks."""
    return [Chain("fsdp", n, fsdp=size, fsdp__level=level, **more) for level in ("optimizer", "gradients", "full")
            for size in ranks for n in parts]


def beside_others():
    """fsdp with a strategy that cuts something else, in both orders, and with dp: hybrid sharding."""
    return [
        Chain("fsdp, dp", fsdp=2, dp=2), Chain("dp, fsdp", 2, dp=2, fsdp=2),
        Chain("fsdp, dp", 2, fsdp=3, dp=2, fsdp__level="gradients"),
        Chain("dp, fsdp", dp=2, fsdp=2, fsdp__level="optimizer"),
        Chain("tp, fsdp", 2, tp=2, fsdp=2), Chain("fsdp, tp", fsdp=3, tp=2),
        Chain("tp, fsdp", tp=2, fsdp=2, tp__sequence_parallel="on"),
        Chain("fsdp, tp", 2, fsdp=2, tp=2, tp__sequence_parallel="on", fsdp__level="gradients"),
        Chain("tp, fsdp", tp=2, fsdp=3, fsdp__level="optimizer"),
        Chain("tp, fsdp, dp", tp=2, fsdp=2, dp=2),
        Chain("dp, fsdp", 2, dp=2, fsdp=3, dp__shares="3, 1"),
    ]


def lifetimes():
    """How long gathered params live, and a group of one rank."""
    return [Chain("fsdp", 2, fsdp=2, fsdp__reshard="off"), Chain("fsdp", 2, fsdp=2, fsdp__prefetch=0),
            Chain("fsdp", fsdp=3, fsdp__prefetch=2), Chain("fsdp", 2, fsdp=2, fsdp__prefetch=0, fsdp__reshard="off"),
            Chain("fsdp", 2, fsdp=1), Chain("fsdp, dp", fsdp=1, dp=2, fsdp__level="gradients"),
            Chain("fsdp", 2, fsdp=3, fsdp__units="attn, mlp"), Chain("fsdp, dp", fsdp=2, dp=2, fsdp__units="mlp", fsdp__prefetch=3)]


def recomputing():
    """ckpt by itself and before each strategy."""
    full, half = {"ckpt__recompute": "full"}, {"ckpt__recompute": "full", "ckpt__ratio": 0.5}
    return [
        Chain("ckpt", **full), Chain("ckpt", 2), Chain("ckpt", 2, **half), Chain("ckpt", ckpt__ratio=0),
        Chain("ckpt", ckpt__recompute="selective", ckpt__ops="linear"),
        Chain("ckpt, dp", 2, dp=2, **full), Chain("dp, ckpt", dp=2),
        Chain("ckpt, tp", tp=2, **full), Chain("ckpt, tp", 2, tp=4, tp__sequence_parallel="on", **full),
        Chain("ckpt, tp", tp=2, **full, ckpt__resend="on"),
        Chain("ckpt, tp", tp=2, tp__sequence_parallel="on", **half, ckpt__resend="on"),
        Chain("ckpt, fsdp", 2, fsdp=2, **full), Chain("ckpt, fsdp", fsdp=3),
        Chain("ckpt, fsdp", 2, fsdp=2, fsdp__prefetch=0, **half),
        Chain("ckpt, fsdp", fsdp=2, fsdp__reshard="off", **full),
        Chain("ckpt, fsdp", fsdp=2, fsdp__level="gradients", **full),
        Chain("ckpt, tp, fsdp, dp", tp=2, fsdp=2, dp=2, tp__sequence_parallel="on", **full),
    ]


def sharded_suite():
    batch = {"data.batch": 24}  # for 2, 3, 4 and 8 ranks in one and two parts
    gpt2, llama = {**GPT2, **TIED, **batch}, {**LLAMA, **UNTIED, **batch, **MASKED}
    odd_sizes = {"gpt.hidden": 40, "gpt.heads": 4, "gpt.kv_heads": 4, "gpt.mlp": 72, "gpt.vocab": 61}
    some = [Chain("fsdp", 2, fsdp=3), Chain("fsdp", fsdp=2, fsdp__level="optimizer"),
            Chain("fsdp, tp", 2, fsdp=2, tp=2, fsdp__level="gradients"),
            Chain("tp, fsdp", tp=2, fsdp=3, tp__sequence_parallel="on")]
    kv = [Chain("tp, fsdp", 2, tp=4, fsdp=2), Chain("fsdp, tp", fsdp=2, tp=4, tp__sequence_parallel="on"),
          Chain("ckpt, fsdp, tp", fsdp=2, tp=4, ckpt__recompute="full")]
    half = [Chain("fsdp", 2, fsdp=2), Chain("fsdp", fsdp=3, fsdp__level="gradients"),
            Chain("fsdp", fsdp=2, fsdp__level="optimizer"), Chain("ckpt", ckpt__recompute="full"),
            Chain("ckpt, tp, fsdp", 2, tp=2, fsdp=2, tp__sequence_parallel="on")]
    groups = []
    for name, model in (("gpt2, tied", gpt2), ("llama, untied, masked targets", llama)):
        groups += [Group(f"{name}", model, levels()), Group(f"{name}, beside others", model, beside_others()),
                   Group(f"{name}, lifetimes", model, lifetimes()), Group(f"{name}, ckpt", model, recomputing()),
                   Group(f"{name}, odd sizes", {**model, **odd_sizes}, some),
                   Group(f"{name}, bf16", {**model, **BF16}, half, precision="bf16")]
    groups += [
        Group("gpt2, untied", {**gpt2, **UNTIED}, some), Group("llama, tied", {**llama, **TIED}, some),
        Group("llama, fewer key heads than tp", {**llama, "gpt.kv_heads": 2}, kv),
        Group("llama, normed heads of 2, parameters smaller than the group",
              {**QWEN, **UNTIED, **batch, "gpt.head_dim": 2}, levels(ranks=(8,), parts=(1,)) + levels((3,), (2,))),
        Group("gpt2, validation and sample", {**gpt2, **PRINTED}, some[:1] + some[2:] + [Chain("ckpt, fsdp", fsdp=2)]),
        Group("gpt2, dropout", {**gpt2, "gpt.dropout": 0.2},
              [Chain("fsdp", fsdp=3), Chain("ckpt", ckpt__recompute="full"), Chain("ckpt, tp, fsdp", tp=2, fsdp=2)]),
        Group("llama, SGD", {**llama, "optimizer.kind": "sgd", "optimizer.lr": 0.05}, some),
        Group("llama, 16 ranks", {**llama, "data.batch": 16},
              [Chain("ckpt, tp, fsdp, dp", tp=2, fsdp=4, dp=2, tp__sequence_parallel="on", ckpt__recompute="full")]),
        Group("gpt2, no clipping", {**gpt2, "optimizer.clip": 0}, some[:2]),
    ]
    return groups


SCHEDULES = ({"pp__schedule": "gpipe"}, {"pp__schedule": "1f1b"}, {"pp__schedule": "interleaved"},
             {"pp__schedule": "zero-bubble"})
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = SCHEDULES


def orders():
    """Each schedule on two stages, with fewer micro-batches than stages, and with a number that does not divide."""
    return ([Chain("pp", n, pp=2, **s) for s in SCHEDULES for n in (1, 3, 4)] +
            [Chain("pp", n, pp=4, **s) for s in SCHEDULES if s is not INTERLEAVED for n in (2, 6)])


def pipelines():
    """pp by itself, with uneven stages, and with each other strategy."""
    full, sp = {"ckpt__recompute": "full"}, {"tp__sequence_parallel": "on"}
    return [
        Chain("pp", 4, pp=2, pp__layers="1, 3"), Chain("pp", 2, pp=3, pp__layers="1, 2, 1", **ZERO_BUBBLE),
        Chain("pp", 2, pp=3, pp__layers="cost"), Chain("pp", 2, pp=1, **ZERO_BUBBLE),
        Chain("tp, pp", 4, tp=2, pp=2), Chain("tp, pp", 2, tp=2, pp=2, **sp, **INTERLEAVED),
        Chain("tp, pp", 3, tp=2, pp=2, **sp, **ZERO_BUBBLE),
        Chain("dp, pp", 4, dp=2, pp=2), Chain("dp, pp", 4, dp=2, pp=2, **ZERO_BUBBLE),
        Chain("dp, pp", 2, dp=2, pp=2, **INTERLEAVED),
        Chain("fsdp, pp", 2, fsdp=2, pp=2), Chain("fsdp, pp", 4, fsdp=3, pp=2, fsdp__level="gradients", **ZERO_BUBBLE),
        Chain("fsdp, pp", 2, fsdp=2, pp=2, fsdp__level="optimizer", **INTERLEAVED),
        Chain("fsdp, pp", 4, fsdp=2, pp=2, **ZERO_BUBBLE), Chain("fsdp, pp", 3, fsdp=2, pp=2, **INTERLEAVED),
        Chain("ckpt, pp", 4, pp=2, **full), Chain("ckpt, pp", 4, pp=2, **full, **ZERO_BUBBLE),
        Chain("ckpt, pp", 4, pp=2, **INTERLEAVED), Chain("pp, offload", 4, pp=2, offload__min_size=0, **ZERO_BUBBLE),
        Chain("cp, pp", 3, cp=2, pp=2, **INTERLEAVED), Chain("tp, cp, pp", 4, tp=2, cp=2, pp=2, **ZERO_BUBBLE),
        Chain("tp, dp, pp", 4, tp=2, dp=2, pp=2, **sp), Chain("ckpt, tp, fsdp, pp", 2, tp=2, fsdp=2, pp=2, **sp, **full),
        Chain("ckpt, tp, fsdp, pp", 3, tp=2, fsdp=2, pp=2, **sp, **INTERLEAVED),
        Chain("ckpt, tp, fsdp, pp", 3, tp=2, fsdp=2, pp=2, **sp, **ZERO_BUBBLE),
    ]


def pipeline_suite():
    deep = {"data.batch": 24, "gpt.layers": 4}
    gpt2, llama = {**GPT2, **deep}, {**LLAMA, **deep, **MASKED}
    few = [Chain("pp", 4, pp=2), Chain("tp, pp", 2, tp=2, pp=2, **INTERLEAVED), Chain("fsdp, pp", 2, fsdp=2, pp=2, **ZERO_BUBBLE)]
    uneven = [Chain("pp", 6, pp=2, pp__chunks=3, **INTERLEAVED),
              Chain("pp", 8, pp=3, **INTERLEAVED, pp__layers="1, 2, 1, 1, 1, 1"),
              Chain("pp", 4, pp=3, **INTERLEAVED, pp__layers="cost"), Chain("pp", 2, pp=3, **INTERLEAVED)]
    return [
        Group("gpt2, tied", {**gpt2, **TIED}, orders() + pipelines()),
        Group("llama, untied, masked targets", {**llama, **UNTIED}, orders() + pipelines()),
        Group("gpt2, untied", {**gpt2, **UNTIED}, few), Group("llama, tied", {**llama, **TIED}, few),
        Group("gpt2, tied, seven layers", {**gpt2, **TIED, "gpt.layers": 7}, uneven),
        Group("gpt2, tied, validation and sample", {**gpt2, **TIED, **PRINTED}, few),
        *(Group(f"{name}, tied, bf16", {**model, **TIED, **BF16}, few, precision="bf16")
          for name, model in (("gpt2", gpt2), ("llama", llama))),
        Group("gpt2, dropout", {**gpt2, **TIED, "gpt.dropout": 0.2}, [Chain("pp", pp=2), Chain("tp, pp", tp=2, pp=4)]),
        Group("llama, SGD", {**llama, **UNTIED, "optimizer.kind": "sgd", "optimizer.lr": 0.05}, few),
    ]


def away(chain, parts=1, **options):
    return Chain(chain, parts, offload__min_size=0, **options)


def offload_suite():
    """Activations and optimizer state away, by themselves and with each other strategy."""
    deep = {"data.batch": 24, "gpt.layers": 3}
    gpt2, llama = {**GPT2, **TIED, **deep}, {**LLAMA, **UNTIED, **deep, **MASKED}
    disk, state = {"offload__activations": "disk"}, {"offload__activations": "off", "offload__optimizer": "host"}
    both = {"offload__activations": "disk", "offload__optimizer": "disk"}
    alone = [away("offload", 2), away("offload", **disk), away("offload", 2, **state), away("offload", 3, **both),
             away("offload", offload__share=0.5, offload__prefetch=0), away("offload", offload__tags="norm"),
             away("offload", offload__prefetch=2, offload__optimizer="disk")]
    mixed = [away("tp, offload", 2, tp=2, **both), away("tp, offload", tp=2, tp__sequence_parallel="on"),
             away("dp, offload", 2, dp=2, offload__optimizer="host"), away("fsdp, offload", 2, fsdp=2, offload__optimizer="host"),
             away("fsdp, offload", fsdp=3, fsdp__level="optimizer", **both), away("pp, offload", 4, pp=2, **both),
             away("pp, offload", 4, pp=2, pp__schedule="zero-bubble"),
             away("ckpt, offload", 2), away("ckpt, offload", ckpt__recompute="full", **both),
             away("ckpt, tp, fsdp, pp, offload", 2, tp=2, fsdp=2, pp=2, ckpt__ratio=0.5, offload__optimizer="host")]
    few = [away("offload", 2, offload__optimizer="host"), away("fsdp, offload", fsdp=2, **both)]
    return [Group("gpt2, tied, offload", gpt2, alone + mixed), Group("llama, untied, masked targets, offload", llama, alone[3:4] + mixed),
            Group("gpt2, tied, bf16, offload", {**gpt2, **BF16}, few + [
                away("tp, offload", 2, tp=2, offload__optimizer="host"), away("ckpt, fsdp, pp, offload", 2, fsdp=2, pp=2, **both)],
                precision="bf16"),
            Group("gpt2, tied, SGD, offload", {**gpt2, "optimizer.kind": "sgd", "optimizer.lr": 0.05}, few),
            Group("gpt2, tied, validation and sample, offload", {**gpt2, **PRINTED}, few)]


METHODS = ({"cp__method": "ring"}, {"cp__method": "all_gather"}, {"cp__method": "all_to_all"})
RING, GATHER, EXCHANGE = METHODS


def contexts():
    """cp by itself: each method on two and four ranks (three for the ring), with and without zigzag."""
    plain, zigzag = {"cp__zigzag": "off"}, {"cp__zigzag": "on"}
    return ([Chain("cp", n, cp=size, **m, **z) for m in METHODS for size, n, z in ((2, 2, plain), (2, 1, zigzag), (4, 1, zigzag))] +
            [Chain("cp", cp=4, **plain), Chain("cp", 2, cp=1), Chain("cp", cp=2, **GATHER, cp__regather="off")])


def context_mixes():
    """cp with each other strategy."""
    full, sp, plain = {"ckpt__recompute": "full"}, {"tp__sequence_parallel": "on"}, {"cp__zigzag": "off"}
    return ([Chain("tp, cp", tp=2, cp=2, **m) for m in METHODS] + [Chain("tp, cp", 2, tp=2, cp=2, **sp, **m) for m in METHODS] +
            [Chain("cp, dp", 2, cp=2, dp=2), Chain("dp, cp", dp=2, cp=2, **GATHER), Chain("cp, dp", cp=2, dp=2, **EXCHANGE, **plain),
             Chain("cp, fsdp", 2, cp=2, fsdp=2), Chain("fsdp, cp", fsdp=2, cp=2, **GATHER, fsdp__level="gradients"),
             Chain("cp, fsdp", cp=2, fsdp=2, **EXCHANGE, fsdp__level="optimizer"),
             Chain("cp, pp", 2, cp=2, pp=2), Chain("cp, pp", 2, cp=2, pp=2, **GATHER, pp__schedule="zero-bubble"),
             Chain("cp, pp", 2, cp=2, pp=2, **EXCHANGE), Chain("ckpt, cp", cp=2), Chain("ckpt, cp", 2, cp=2, **full),
             Chain("ckpt, cp", 2, cp=2, **full, ckpt__resend="on"), Chain("ckpt, cp", cp=2, **GATHER, ckpt__resend="on"),
             Chain("ckpt, cp", cp=2, **EXCHANGE, **full), Chain("cp, offload", 2, cp=2, offload__min_size=0),
             Chain("ckpt, tp, cp, fsdp, pp", 2, tp=2, cp=2, fsdp=2, pp=2, **sp, **full)])


def documents_suite(gpt2, llama):
    """Documents apart in one sequence, cut or not; and each alone in a sequence of its own, on one rank."""
    apart = {"data.documents": "separate"}
    even = {**apart, "data.path": "even", "data.shuffle": "false"}
    plain = {"cp__zigzag": "off"}
    cut = [Chain("cp", n, cp=size, **m, **z) for m in METHODS for size, n, z in ((2, 2, {}), (4, 1, plain))]
    mixed = [Chain("tp, cp", tp=2, cp=2, tp__sequence_parallel="on"), Chain("tp, cp", tp=2, cp=2, **EXCHANGE), Chain("dp", 2, dp=2),
             Chain("tp", tp=2), Chain("fsdp", fsdp=2), Chain("cp, pp", 2, cp=2, pp=2), Chain("ckpt, cp, fsdp", cp=2, fsdp=2, **GATHER)]
    alone = [Chain("dp", dp=1, data__sequence=8, data__batch=16), Chain("dp", 2, dp=1, data__sequence=8, data__batch=16)]
    return [
        Group("gpt2, tied, documents", {**gpt2, **apart}, cut), Group("llama, untied, masked targets, documents", {**llama, **apart}, cut + mixed),
        Group("gpt2, tied, documents alone", {**gpt2, **even}, alone), Group("llama, untied, documents alone", {**llama, **even}, alone),
        Group("llama, documents, bf16", {**llama, **apart, **BF16}, cut[:1] + mixed[:1], precision="bf16"),
        Group("gpt2, documents, validation and sample", {**gpt2, **apart, **PRINTED}, cut[:1] + cut[3:4]),
    ]


def context_suite():
    gpt2, llama = {**GPT2, **TIED}, {**LLAMA, **UNTIED, **MASKED}
    few = [Chain("cp", 2, cp=2), Chain("cp", cp=4, **GATHER), Chain("cp", cp=2, **EXCHANGE),
           Chain("tp, cp", tp=2, cp=2, tp__sequence_parallel="on")]
    kv = {"gpt.kv_heads": 2}
    return [
        Group("gpt2, tied", gpt2, contexts()), Group("llama, untied, masked targets", llama, contexts() + context_mixes()),
        Group("llama, fewer key heads than tp", {**llama, **kv}, [Chain("tp, cp", tp=4, cp=2), Chain("tp, cp", tp=4, cp=2, **GATHER)]),
        Group("llama, one key head, biases, normed heads", {**QWEN, "gpt.kv_heads": 1, **TIED}, few[:2] + few[3:]),
        Group("gpt2, tied, bf16", {**gpt2, **BF16, **MASKED}, few, precision="bf16"),
        Group("llama, untied, bf16", {**llama, **BF16}, few, precision="bf16"),
        Group("llama, SGD", {**llama, "optimizer.kind": "sgd", "optimizer.lr": 0.05}, few[:2]),
        Group("gpt2, hardly any target", {**gpt2, **HARDLY_ANY}, few),
        Group("gpt2, dropout", {**gpt2, "gpt.dropout": 0.2}, [Chain("cp", cp=2), *few[1:]]),
        Group("gpt2, validation and sample", {**gpt2, **PRINTED}, few),
        *documents_suite(gpt2, llama),
    ]


def on_backend(backend):
    """What each strategy asks of a backend: sums, gathers, scatters, exchanges, messages, and several groups at once."""
    sp, more = {"tp__sequence_parallel": "on"}, {"comm__backend": backend}
    return [Chain("tp", tp=4, **more), Chain("tp, dp", 2, tp=2, dp=2, **sp, **more),
            Chain("dp", 2, dp=3, dp__shares="2, 1, 1", **more), Chain("fsdp", 2, fsdp=3, **more),
            Chain("ckpt, tp, fsdp", tp=2, fsdp=2, ckpt__recompute="full", **sp, **more),
            Chain("cp", cp=2, **EXCHANGE, **more), Chain("cp", 2, cp=4, **more),
            Chain("pp", 4, pp=2, **ZERO_BUBBLE, **more),
            Chain("ckpt, tp, fsdp, pp", 3, tp=2, fsdp=2, pp=2, **sp, **INTERLEAVED, **more)]


def backend_suite(backends=()):
    batch = {"data.batch": 24}
    gpt2, llama = {**GPT2, **TIED, **batch, "gpt.layers": 4}, {**LLAMA, **UNTIED, **batch, **MASKED, "gpt.layers": 4}
    groups = []
    for backend in backends:
        layouts = on_backend(backend)
        groups += [Group(f"gpt2, bf16, on {backend}", {**gpt2, **BF16}, layouts[1:4], precision="bf16"),
                   Group(f"llama on {backend}", llama, layouts)]
    return groups


SUITES = {"backends": backend_suite, "context": context_suite, "offload": offload_suite, "pipeline": pipeline_suite, "gpt2": lambda: family_suite("gpt2", GPT2), "llama": lambda: family_suite("llama", LLAMA),
          "mixed": mixed_suite, "bf16": bf16_suite, "sharded": sharded_suite, **mixes.SUITES}


def all_groups():
    return [group for name, suite in SUITES.items() if name != "backends" for group in suite()]


# Runs.

def write_dataset(path, tokens, lengths, documents):
    """A Megatron indexed dataset: sequences of these lengths, documents that begin with these sequences."""
    pointers = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    path.with_suffix(".bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents) + 1) + struct.pack(f"<{len(lengths)}i", *lengths) +
        struct.pack(f"<{len(lengths)}q", *pointers) + struct.pack(f"<{len(documents) + 1}q", *documents, len(lengths)))


def write_corpus(folder):
    """Sums of small numbers; here and there many spaces, so that masking them leaves very different numbers of targets.
    One sum is a sequence, up to three a document; in `even`, each document is 8 tokens in two sequences."""
    rng, sums, length = random.Random(7), [], 0
    while length < 20000:
        a, b = rng.randrange(100), rng.randrange(100)
        sums.append(f"{a}+{b}:{a + b}" + " " * (rng.randrange(12) if length // 100 % 3 == 0 else 1))
        length += len(sums[-1])
    tokens, firsts = "".join(sums).encode(), [0]
    while firsts[-1] < len(sums) - 3:
        firsts.append(firsts[-1] + 1 + len(firsts) % 3)
    write_dataset(folder / "corpus", tokens, [len(s) for s in sums], firsts)
    write_dataset(folder / "even", tokens[:16000], [3, 5] * 2000, list(range(0, 4000, 2)))


def as_flags(overrides):
    return [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]


def run(command, env):
    """(exit code, stdout, stderr); kills the whole group of processes at the deadline."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True,
                               errors="replace", start_new_session=True)
    try:
        out, err = process.communicate(timeout=SECONDS_A_RUN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return -1, out, f"{err}\nstill running after {SECONDS_A_RUN} s"
    return process.returncode, out, err


class Record:
    """What a run's ranks wrote: steps[rank][step] = (loss, norm), findings[when][rank]; and what it printed."""

    def __init__(self, path, printed):
        lines = printed.splitlines()
        self.validation = [float(n) for line in lines if line.startswith("validation loss")
                           for n in re.findall(r"\d+\.\d+", line)]
        self.sample = lines[lines.index("sample:") + 1] if "sample:" in lines else None
        self.steps, self.findings = {}, {"start": {}, "end": {}}
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if "when" in entry:
                self.findings[entry["when"]][entry["rank"]] = entry
            else:
                self.steps.setdefault(entry["rank"], {})[entry["step"]] = (float(entry["loss"]), float(entry["norm"]))


class Runner:
    def __init__(self, program, folder, backend=None, hosts=None):
        self.program, self.folder, self.backend, self.hosts = program, folder, backend, hosts
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TENON_LAUNCHER"):
            self.env.pop(name, None)
        (folder / "job.ini").write_text(MANIFEST)
        write_corpus(folder)

    def train(self, name, params, mode, overrides, ranks=1):
        """The run's record, or a string that says how it failed."""
        record = self.folder / f"{name}.jsonl"
        command = [self.program, str(self.folder / "job.ini"), str(record), str(self.folder / params), mode]
        env, backend = dict(self.env), overrides.get("comm.backend")
        if mode == "compare" and self.backend:
            backend = overrides["comm.backend"] = self.backend
        if backend == "mpi":
            command = [*MPIRUN, str(ranks), *command]
            sessions = self.folder / f"{name}.mpi"  # of its own: two at a time get in each other's way
            sessions.mkdir()
            env["TMPDIR"] = str(sessions)
        if self.hosts or backend == "hier":
            env["TENON_SIMULATE_HOSTS"] = self.hosts or HOSTS
        code, out, err = run(command + as_flags(overrides), env)
        if code != 0:
            return f"exit code {code}:\n{err.strip()}"
        return Record(record, out)


# Judgement.

def relative(value, want):
    return abs(value - want) / abs(want) if value != want else 0.0


def exceeds(value, bound):
    return not value <= bound  # a NaN too


def check_steps(result, reference, bounds, problems, worst):
    for rank, steps in sorted(result.steps.items()):
        for step, want in reference.steps[0].items():
            for what, value, right in zip(("loss", "norm"), steps.get(step, (math.nan, math.nan)), want):
                off = relative(value, right)
                worst[what] = max(worst[what], off)
                if exceeds(off, bounds[what]):
                    problems.append(f"step {step}, rank {rank}: {what} is {value:.9g}, on one rank {right:.9g}: "
                                    f"off by {off:.2g}, more than {bounds[what]:g}")


def check_cover(findings, reference, problems):
    """All ranks' parts of a parameter together are the whole one, once or several times."""
    whole = reference.findings["start"][0]["elements"]
    held = [sum(counts) for counts in zip(*(finding["elements"] for finding in findings.values()))]
    if len(held) != len(whole) or any(h % w or h < w for h, w in zip(held, whole)):
        problems.append(f"the ranks hold {held} elements of the parameters; they have {whole}")


def check_params(result, reference, bounds, problems, worst):
    for rank, finding in sorted(result.findings["start"].items()):
        if finding["unequal"]:
            problems.append(f"rank {rank} starts with {finding['unequal']} other elements, in {finding['param']}")
    for rank, finding in sorted(result.findings["end"].items()):
        for what, off in (("param", float(finding["worst"])), ("rms", float(finding["rms"]))):
            worst[what] = max(worst[what], off)
            if exceeds(off, bounds[what]):
                where = finding["param"] if what == "param" else "the parameters as a whole"
                problems.append(f"rank {rank} ends with {where} off by {off:.2g}, more than {bounds[what]:g}")
    check_cover(result.findings["start"], reference, problems)


def check_printed(result, reference, problems):
    """Validation losses to the last digit printed but one, and the text that the trained model writes."""
    pairs = list(zip(result.validation, reference.validation))
    if len(result.validation) != len(reference.validation) or any(abs(a - b) > 1.01e-4 for a, b in pairs):
        problems.append(f"validation losses are {result.validation}, on one rank {reference.validation}")
    if result.sample != reference.sample:
        problems.append(f"the sample is {result.sample!r}, on one rank {reference.sample!r}")


def judge(result, reference, ranks, bounds):
    """(problems, worst deviations)"""
    worst = dict.fromkeys(bounds, 0.0)
    if isinstance(result, str):
        return [result], worst
    problems = []
    for name, seen in (("steps", result.steps), *result.findings.items()):
        if sorted(seen) != list(range(ranks)):
            problems.append(f"{name}: ranks {sorted(seen)} reported, of {ranks}")
    check_steps(result, reference, bounds, problems, worst)
    check_params(result, reference, bounds, problems, worst)
    if bounds is BOUNDS["fp32"]:
        check_printed(result, reference, problems)
    return problems, worst


def run_group(runner, number, group, only, pool):
    """Rows of the table: one a layout."""
    layouts = [l for l in group.layouts if all(w in f"{group.name}, {l.text}" for w in only)]
    if not layouts:
        return []
    reference = runner.train(f"{number}", f"{number}", "write", {**group.training, **group.reference})
    if isinstance(reference, str):
        print(f"FAIL  {group.name}, one rank\n      {reference}\n      {shlex.join(as_flags(group.training))}",
              flush=True)
        return [{"group": group.name, "layout": "one rank", "failed": True}]

    def one(item):
        index, layout = item
        return layout, runner.train(f"{number}-{index}", f"{number}", "compare", {**group.training, **layout.overrides},
                                     layout.ranks)

    rows = []
    for layout, result in pool.map(one, enumerate(layouts)):
        problems, worst = judge(result, reference, layout.ranks, group.bounds)
        rows.append({"group": group.name, "layout": layout.text, "ranks": layout.ranks, "failed": bool(problems),
                     "bounds": group.bounds, **worst})
        if problems:
            print(f"FAIL  {group.name}: {layout.text}")
            print("\n".join(f"      {line}" for p in problems[:4] for line in p.splitlines()))
            print(f"      {shlex.join(as_flags({**group.training, **layout.overrides}))}", flush=True)
    return rows


def run_suite(args):
    suite = SUITES[args.suite]
    if args.suite == "backends":
        found = [name for name in args.backends if name != "mpi" or shutil.which("mpirun")]
        if not found:
            print("none of the backends can be run here: skipped")
            return 77
        suite = lambda: backend_suite(found)  # noqa: E731
    began, folder = time.monotonic(), pathlib.Path(tempfile.mkdtemp(prefix="tenon-equivalence-"))
    try:
        runner = Runner(args.run, folder, args.backend, args.hosts)
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            rows = [row for number, group in enumerate(suite())
                    for row in run_group(runner, number, group, args.only, pool)]
    finally:
        if args.keep:
            print(f"files are in {folder}")
        else:
            shutil.rmtree(folder)
    if args.table:
        pathlib.Path(args.table).write_text(json.dumps({"suite": args.suite, "rows": rows}, indent=1) + "\n")
    failed = sum(row["failed"] for row in rows)
    worst = {key: max((row.get(key, 0) for row in rows), default=0) for key in BOUNDS["fp32"]}
    figures = ", ".join(f"{key} {value:.2g}" for key, value in worst.items())
    name = f"{args.suite} on {args.backend}" if args.backend else args.suite
    print(f"{name}: {len(rows)} layouts, {failed} failed; worst {figures}; {time.monotonic() - began:.0f} s")
    return 1 if failed or not rows else 0


# The page.

def summary(texts):
    """The layouts one by one, or of many only the values of each key."""
    if len(texts) <= 6:
        return "; ".join(texts)
    values = {}
    for key, value in (word.rsplit(" ", 1) for text in texts for word in text.split(", ")):
        values.setdefault(key, [])
        values[key] += [value] if value not in values[key] else []
    return "; ".join(f"{key} {', '.join(v)}" for key, v in values.items())


def together():
    """What is together in some layout, and what is refused."""
    groups = all_groups()
    found, possible = mixes.triples(groups)
    meaningless = "".join(f"| {a} | {b} | {why} |\n" for (a, b), why in mixes.IMPOSSIBLE.items())
    reasons = {}
    for one in mixes.apart():
        reasons.setdefault(one.why, []).append(one.what)
    refused = "".join(f"| {'; '.join(what)} | {why} |\n" for why, what in reasons.items())
    return (f"\n## Together\n\nEvery pair of two features from different rows of this table is in one layout below at least, pairs\n"
            f"without bf16 in fp32: {len(mixes.must_have()) - len(mixes.uncovered(groups))} of {len(mixes.must_have())}. "
            f"Of {possible} triples of ways of strategies {found} are. A test fails if a pair is lost.\n\n| | |\n|---|---|\n"
            + "".join(f"| {kind} | {', '.join(features)} |\n" for kind, features in mixes.KINDS.items()) +
            f"\nPairs that mean nothing:\n\n| | | |\n|---|---|---|\n{meaningless}\n## Not together\n\n`tenon check` refuses these, with "
            f"what would work, which a test holds it to. No two strategies\nexclude each other: orders do, and sizes.\n\n"
            f"| | because |\n|---|---|\n{refused}")


def page(files):
    text = PAGE_HEAD + together()
    for name in files:
        table = json.loads(pathlib.Path(name).read_text())
        text += (f"\n## {table['suite']}\n\n| trained | layouts | loss | norm | parameter | all |\n"
                 "|---|---|---|---|---|---|\n")
        groups = {}
        for row in table["rows"]:
            one_each = row["layout"] if table["suite"] in mixes.SUITES else ""
            groups.setdefault((row["group"], one_each), []).append(row)
        for (group, _), rows in groups.items():
            worst = " | ".join(f"{max(row[key] for row in rows):.1e}" for key in BOUNDS["fp32"])
            count = f"{len(rows)}: " if table["suite"] not in mixes.SUITES else ""
            text += f"| {group} | {count}{summary([row['layout'] for row in rows])} | {worst} |\n"
    return text


def numbers(precision):
    return " | ".join(f"{bound:g}" for bound in BOUNDS[precision].values())


PAGE_HEAD = f"""\
# Equivalence

Whatever the layout, training is the one-rank run. tests/equivalence trains models of two to seven layers for {STEPS} steps in
every layout below and compares each with one rank that computes the batch in one part: initial parameters are the same
bit for bit, losses, gradient norms and parameters within these bounds, on every rank. The figures are the worst
deviation of any layout, step and rank in one run of the tests.

| | loss | norm | parameter | all |
|---|---|---|---|---|
| fp32 | {numbers('fp32')} |
| bf16 | {numbers('bf16')} |

loss, norm: of each step, relative. parameter: one element after the last step, beside its tensor's largest, or beside
steps x lr if that is more. all: root mean square over the elements of all parameters, beside steps x lr.

Why bf16 needs as much as this is derived in tests/equivalence/layouts.py. The tests leave their tables in the build folder,
of which matrix.py makes this page:

    cd build/tests/equivalence
    ../../../tests/equivalence/matrix.py page {{gpt2,llama,mixed,bf16,sharded,pipeline,context,offload,pairs,large}}.json

Tables are of shm. A test runs what each strategy asks of a backend on ucx, mpi and hier too, hier over hosts that are
simulated; whole suites run there by hand, and were within the same bounds when this page was made:

    ../../../tests/equivalence/matrix.py $PWD/run mixed --backend ucx

`sp`: sequence_parallel; `parts`: micro-batches, 1 where nothing is said; `dp first`: dp is the fastest axis; `chain`:
strategies in order.
"""


def covers():
    """Fails, and says which pairs are missing, unless each is in some layout."""
    groups = all_groups()
    missing = mixes.uncovered(groups)
    for pair in missing:
        print(f"no layout has both {pair[0]} and {pair[1]}")
    print("{} of {} pairs, {} of {} triples of strategies".format(
        len(mixes.must_have()) - len(missing), len(mixes.must_have()), *mixes.triples(groups)))
    return 1 if missing else 0


def check_apart(tenon):
    """Fails unless each of mixes.apart() is refused with its reason, exit code 2."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tenon-equivalence-") as folder:
        runner = Runner(tenon, pathlib.Path(folder))
        for one in mixes.apart():
            flags = as_flags({**one.training, **one.layout.overrides})
            code, out, err = run([tenon, "check", str(runner.folder / "job.ini"), *flags], runner.env)
            if code != 2 or not re.search(one.says, err):
                failed += 1
                print(f"FAIL  {one.what}: exit code {code}, not {one.says!r}\n{err}\n      {shlex.join(flags)}")
    print(f"{len(mixes.apart()) - failed} of {len(mixes.apart())} refused with their reason")
    return 1 if failed else 0


def main():
    if sys.argv[1:2] == ["page"]:
        print(page(sys.argv[2:]), end="")
        return 0
    if sys.argv[1:2] == ["covers"]:
        return covers()
    if sys.argv[1:2] == ["apart"]:
        return check_apart(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--backend", help="instead of shm")
    parser.add_argument("--hosts", help="simulated: a letter for each rank")
    parser.add_argument("--backends", nargs="+", default=[], help="of the suite of that name")
    parser.add_argument("--table")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--keep", action="store_true")
    return run_suite(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
