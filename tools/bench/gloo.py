#!/usr/bin/env python3
"""The collectives of PyTorch's Gloo, with the columns of `tenon bench comm`.

usage: gloo.py [OPERATION...] [-p RANKS] [-b BYTES] [-e BYTES] [-f FACTOR] [-n ITERS] [-w ITERS] [--json FILE]
operations: all_reduce (default), all_gather, broadcast

Starts RANKS processes on this host, or joins under RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Needs python3-torch.
What the columns mean is said by `tenon bench comm --help`. Gloo reduces and broadcasts in place; its all_gather is out
of place. Run it in turns with `tenon bench comm`: both then meet the same load of the machine."""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else int(text)


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ops", nargs="*", default=["all_reduce"], metavar="OPERATION")
    p.add_argument("-p", "--ranks", type=int, default=2)
    p.add_argument("-b", "--minbytes", type=size, default=8)
    p.add_argument("-e", "--maxbytes", type=size, default=16 << 20)
    p.add_argument("-f", "--stepfactor", type=int, default=4)
    p.add_argument("-n", "--iters", type=int, default=20)
    p.add_argument("-w", "--warmup_iters", type=int, default=5)
    p.add_argument("--json")
    return p.parse_args()


def start_ranks(n):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable] + sys.argv, env=dict(
        os.environ, RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        OMP_NUM_THREADS="1")) for rank in range(n)]

    def end(number, _):
        for rank in ranks:
            rank.kill()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    return max(rank.wait() for rank in ranks)


class Call:
    """One operation of `elements` floats in all on this rank."""

    def __init__(self, torch, op, elements, rank, n):
        self.torch, self.op, self.rank, self.n = torch, op, rank, n
        self.count = elements // n if op == "all_gather" else elements
        self.send = torch.zeros(self.count)
        self.recv = [torch.zeros(self.count) for _ in range(n)] if op == "all_gather" else None

    def run(self):
        dist = self.torch.distributed
        if self.op == "all_reduce":
            dist.all_reduce(self.send)
        elif self.op == "broadcast":
            dist.broadcast(self.send, 0)
        else:
            dist.all_gather(self.recv, self.send)

    def wrong(self):
        """Elements that are not exactly what they must be."""
        torch = self.torch

        def values(rank):
            return torch.remainder(torch.arange(self.count) * 7 + rank * 3, 11).float() - 5

        self.send.copy_(values(self.rank))
        self.run()
        if self.op == "all_reduce":
            return int((self.send != sum(values(r) for r in range(self.n))).sum())
        if self.op == "broadcast":
            return int((self.send != values(0)).sum())
        return sum(int((self.recv[r] != values(r)).sum()) for r in range(self.n))


def measure(torch, args, op, nbytes, rank, n):
    dist = torch.distributed
    call = Call(torch, op, nbytes // 4, rank, n)
    wrong = torch.tensor([call.wrong()])
    dist.all_reduce(wrong)
    call.send.zero_()
    for _ in range(args.warmup_iters):
        call.run()
    dist.barrier()
    took = []
    before = time.perf_counter()
    for _ in range(args.iters):
        call.run()
        now = time.perf_counter()
        took.append(now - before)
        before = now
    slowest = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    took = sorted(slowest.tolist())
    seconds, nbytes = statistics.median(took), call.count * 4 * (n if op == "all_gather" else 1)
    factor = {"all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n, "broadcast": 1}[op]
    return {"op": op, "ranks": n, "size": nbytes, "count": call.count, "type": "f32",
            "redop": "sum" if op == "all_reduce" else "none", "root": 0 if op == "broadcast" else -1,
            "place": "out_of_place" if op == "all_gather" else "in_place", "backend": "gloo", "cache": "warm",
            "iterations": args.iters, "time_us": seconds * 1e6, "p99_us": took[-(-99 * len(took) // 100) - 1] * 1e6,
            "algbw": nbytes / seconds * 1e-9, "busbw": nbytes / seconds * 1e-9 * factor, "wrong": int(wrong)}


def print_line(line):
    figures = " %9.2f %7.2f %7.2f %6d" % (line["time_us"], line["algbw"], line["busbw"], line["wrong"])
    absent = " %9s %7s %7s %6s" % ("N/A", "N/A", "N/A", "N/A")
    places = (figures, absent) if line["place"] == "out_of_place" else (absent, figures)
    print("  %10d %11d %5s %6s %5d%s%s  %-14s %9.2f" % (line["size"], line["count"], line["type"], line["redop"],
                                                        line["root"], *places, line["backend"], line["p99_us"]),
          flush=True)


def print_head(op):
    print("#\n# %s\n# %51s %37s" % (op, "out-of-place", "in-place"))
    print("# %10s %11s %5s %6s %5s %9s %7s %7s %6s %9s %7s %7s %6s  %-14s %9s" % (
        "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
        "backend", "p99"))


def main():
    args = parse()
    if "RANK" not in os.environ:
        sys.exit(start_ranks(args.ranks))
    import torch  # noqa: E402: the parent needs none
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, n, lines = dist.get_rank(), dist.get_world_size(), []
    if rank == 0:
        print("# gloo of PyTorch %s, %d ranks, %d cores" % (torch.__version__, n, os.cpu_count()))
    for op in args.ops:
        if rank == 0:
            print_head(op)
        nbytes = args.minbytes
        while nbytes <= args.maxbytes:
            lines.append(measure(torch, args, op, nbytes, rank, n))
            if rank == 0:
                print_line(lines[-1])
            nbytes *= args.stepfactor
    if rank == 0 and args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"results": lines}, file, indent=1)
    dist.destroy_process_group()
    sys.exit(any(line["wrong"] for line in lines))


main()
