#!/usr/bin/env python3
"""A rank other than the first whose share of the batch does not fit into memory is found before any is started.

usage: budget.py TENON"""
import os
import re
import subprocess
import sys
import tempfile

JOB = """[job]
steps = 1
[model]
plugin = gpt
[gpt]
family = gpt2
layers = 1
hidden = 64
heads = 2
kv_heads = 2
head_dim = 32
mlp = 32
vocab = 1024
positions = 64
[data]
path = text.txt
sequence = 64
batch = 4
[device]
plugin = cpu
[strategies]
chain = dp
[dp]
size = 2
shares = 1, 3
"""


def run(tenon, folder, *arguments):
    command = [tenon, *arguments[:1], os.path.join(folder, "job.ini"), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def main(tenon):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "job.ini"), "w", encoding="utf-8") as file:
            file.write(JOB)
        with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
            file.write("how much wood would a woodchuck chuck\n" * 200)
        arenas = []
        for rank in ("0", "1"):
            dump = run(tenon, folder, "dump", "--after", "bound", "--rank", rank).stdout
            arenas.append(int(re.search(r"# arena (\d+) bytes", dump).group(1)))
        assert arenas[0] + 4096 < arenas[1], arenas
        between = "device.memory=%dK" % ((arenas[0] + arenas[1]) // 2048)
        done = run(tenon, folder, "run", "--set", between)
        assert done.returncode != 0, done
        assert "rank 1 needs" in done.stderr, done.stderr
        assert "rank 0 needs" not in done.stderr, done.stderr
        assert "exited" not in done.stderr, done.stderr  # no rank was started


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
