#!/usr/bin/env python3
"""Golden dumps: what `tenon dump` prints of a small block after each arrow, layout by layout, byte for byte.

usage: dumps.py TENON FOLDER [--bless]

A change of a pass shows here as a change of text, to be read before it is blessed. The line of the arena's size is left
out, for scratch depends on the processor."""
import difflib
import os
import re
import subprocess
import sys

TP = ["strategies.chain=tp", "tp.size=2"]
SP = TP + ["tp.sequence_parallel=on"]
DP = ["strategies.chain=dp", "dp.size=2", "data.micro_batches=2"]
FSDP = ["strategies.chain=fsdp", "fsdp.size=2"]
CKPT = ["strategies.chain=ckpt", "ckpt.recompute=full"]
PP = ["strategies.chain=pp", "pp.size=2", "gpt.layers=2", "data.micro_batches=2"]
OFFLOAD = ["strategies.chain=ckpt, offload", "ckpt.ops=layernorm, rmsnorm", "offload.min_size=1K", "offload.optimizer=disk"]
BOTH = ["strategies.chain=tp, dp", "tp.size=2", "dp.size=2"]

# name, manifest, rank, settings, stages
LAYOUTS = [
    ("gpt2.alone", "gpt2", 0, ["data.micro_batches=2"], ["model", "bound"]),
    ("llama.alone", "llama", 0, ["precision.compute=bf16"], ["grad"]),
    ("llama.tp", "llama", 1, TP, ["place:tp", "resolve", "lower"]),
    ("llama.tp-sp", "llama", 0, SP, ["resolve", "lower:tp"]),
    ("gpt2.dp", "gpt2", 0, DP, ["lower:dp", "schedule"]),
    ("llama.fsdp", "llama", 0, FSDP, ["lower:fsdp"]),
    ("llama.ckpt", "llama", 0, CKPT, ["lower:ckpt"]),
    ("llama.offload", "llama", 0, OFFLOAD, ["lower:offload"]),
    ("llama.cp", "llama", 1, ["strategies.chain=cp", "cp.size=2"], ["place:cp", "lower:cp"]),
    ("llama.tp-dp", "llama", 3, BOTH, ["lower", "bound"]),
    ("gpt2.pp", "gpt2", 0, PP, ["lower:pp", "schedule"]),
    ("llama.pp-zero-bubble", "llama", 1, PP + ["pp.schedule=zero-bubble"], ["schedule"]),
]

# What one block costs, by region (docs/decisions/resolve.md).
BLOCKS = {
    "llama.tp.resolve": {"forward": {"all_reduce": 2}, "backward": {"all_reduce": 2}},
    "llama.tp-sp.resolve": {"forward": {"all_gather": 2, "reduce_scatter": 2},
                            "backward": {"all_gather": 2, "reduce_scatter": 2}, "step": {"all_reduce": 2}},
    "llama.tp-sp.lower-tp": {"forward": {"all_gather": 2, "reduce_scatter": 2},
                             "backward": {"all_gather": 4, "reduce_scatter": 2}},
    "gpt2.dp.lower-dp": {},
    "llama.fsdp.lower-fsdp": {"forward": {"all_gather": 9}, "backward": {"all_gather": 9, "reduce_scatter": 9}},
    "llama.ckpt.lower-ckpt": {},
}


def dump(tenon, manifest, rank, settings, stage):
    command = [tenon, "dump", manifest, "--after", stage, "--rank", str(rank)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr))
    lines = done.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# arena "))


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def compare(path, text, bless):
    expected = read(path)
    if text == expected:
        return True
    if bless:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        print("blessed", os.path.basename(path))
        return True
    diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), path, "now", lineterm="", n=1)
    for line in list(diff)[:60]:
        print(line)
    return False


def count_collectives(text):
    """By region, those of layer 0: but for the embedding's, which enter it."""
    counts, region = {}, ""
    for line in text.splitlines():
        if line.startswith("region "):
            region = line.split()[1]
        made = re.search(r" = (all_reduce|all_gather|reduce_scatter|all_to_all)\(", line)
        if made and "@layer=0" in line and not line.strip().startswith("embed."):
            of_region = counts.setdefault(region, {})
            of_region[made.group(1)] = of_region.get(made.group(1), 0) + 1
    return counts


def main(tenon, folder, bless):
    same, seen = True, set()
    for name, model, rank, settings, stages in LAYOUTS:
        for stage in stages:
            text = dump(tenon, os.path.join(folder, model + ".ini"), rank, settings, stage)
            file = "%s.%s.program" % (name, stage.replace(":", "-"))
            same &= compare(os.path.join(folder, "expected", file), text, bless)
            seen.add(file)
            block = file[:-len(".program")]
            if block in BLOCKS and count_collectives(text) != BLOCKS[block]:
                print("%s: a block costs %s, not %s" % (block, count_collectives(text), BLOCKS[block]))
                same = False
    stale = set(os.listdir(os.path.join(folder, "expected"))) - seen
    if stale:
        print("no layout makes", ", ".join(sorted(stale)))
    if not same:
        print("if this is meant: %s TENON %s --bless" % (sys.argv[0], folder))
    return 0 if same and not stale else 1


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:] == ["--bless"]))
