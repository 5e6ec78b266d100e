"""What Meson's logs of one or several test runs come to: the end of what each failed test printed, then the line that
counts all of them. Exits with 1 if one failed.

    summary.py build-check/*/meson-logs/testlog.json
"""

import json
import pathlib
import sys

PASSED, SKIPPED = {"OK", "EXPECTEDFAIL"}, {"SKIP"}
LINES = 40  # of a failed test's output


def results(log):
    build = log.parent.parent.name
    for line in log.read_text(errors="replace").splitlines():
        yield build, json.loads(line)


def tell(build, test):
    print(f"\n-- {test['name']} ({build}): {test['result']} after {test['duration']:.1f} s")
    for stream in "stdout", "stderr":
        lines = test.get(stream, "").splitlines()
        if lines:
            print(f"   the last of {len(lines)} lines of its {stream}:")
            print("\n".join("   | " + line for line in lines[-LINES:]))


def main():
    tests = [result for path in sys.argv[1:] for result in results(pathlib.Path(path))]
    passed = sum(test["result"] in PASSED for _, test in tests)
    skipped = sum(test["result"] in SKIPPED for _, test in tests)
    failed = [(build, test) for build, test in tests if test["result"] not in PASSED | SKIPPED]
    for build, test in failed:
        tell(build, test)
    if failed:
        print("\nfailed: " + ", ".join(f"{test['name']} ({build})" for build, test in failed))
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
