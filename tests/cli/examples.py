#!/usr/bin/env python3
"""Every manifest of examples/ is accepted as it is, and those of one strategy each train ten steps. Those of
examples/cluster are checked in seconds of the processor, with the memory of each stage's rank.

usage: examples.py TENON FOLDER"""
import pathlib
import re
import resource
import subprocess
import sys

SHORT = ("tp", "dp", "fsdp", "pp", "cp", "ckpt", "offload")


STAGES = {"10b": 2, "70b": 4, "405b": 16}
SECONDS = 60  # at most 12 here


def tenon(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def spent():
    """Seconds of the processor by all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_cluster(program, folder):
    for name, stages in STAGES.items():
        before = spent()
        done = tenon(program, "check", folder / f"{name}.ini")
        if spent() - before > SECONDS:
            yield f"check {name}.ini: {spent() - before:.0f} s of the processor"
        rows = re.findall(r"^  \d+( +\d+\.\d\d){6}$", done.stdout, re.M)
        size = re.search(r"^model: (\d+)\.\d+ M params", done.stdout, re.M)
        if done.returncode != 0 or len(rows) != stages or not size or int(size.group(1)) // 1000 != int(name[:-1]):
            yield f"check {name}.ini: exit code {done.returncode}, {len(rows)} ranks, model {size and size.group(1)}\n{done.stderr}"


def main(program, folder):
    manifests = sorted(pathlib.Path(folder).glob("*.ini"))
    missing = set(SHORT) - {manifest.stem for manifest in manifests}
    failures = [f"no example of {name}" for name in sorted(missing)]
    for manifest in manifests:
        done = tenon(program, "check", manifest)
        if done.returncode != 0 or done.stderr:
            failures.append(f"check {manifest.name}: exit code {done.returncode}\n{done.stderr}")
        if manifest.stem not in SHORT:
            continue
        done = tenon(program, "run", manifest, "--steps", 10)
        if done.returncode != 0 or not re.search(r"^training loss \d+\.\d+ -> \d+\.\d+ \(step 10\)$", done.stdout, re.M):
            failures.append(f"run {manifest.name}: exit code {done.returncode}\n{done.stderr}{done.stdout}")
    failures += check_cluster(program, pathlib.Path(folder) / "cluster")
    print("\n".join(failures) or f"{len(manifests) + len(STAGES)} examples")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
