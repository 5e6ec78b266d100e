#!/usr/bin/env python3
"""Every manifest of examples/ is accepted as it is, and those of one strategy each train ten steps.

usage: examples.py TENON FOLDER"""
import pathlib
import re
import subprocess
import sys

SHORT = ("tp", "dp", "fsdp", "ckpt", "offload")


def tenon(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)


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
    print("\n".join(failures) or f"{len(manifests)} examples")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
