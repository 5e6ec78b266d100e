#!/usr/bin/env python3
"""docs/pitfalls.md names tests that exist.

usage: pitfalls.py ROOT

A row names files in backticks, each followed by what in it shows the matter: names of tests, or words of a table."""
import os
import re
import sys


def rows(text):
    """(line, what is here) of each row of each table."""
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 2 and cells[0] != "elsewhere" and set(cells[0]) != {"-"}:
            yield number, cells[1]


def main(root):
    wrong, found = [], 0
    with open(os.path.join(root, "docs", "pitfalls.md"), encoding="utf-8") as file:
        text = file.read()
    for number, here in rows(text):
        content = None
        for word in re.findall(r"`([^`]+)`", here):
            if word.startswith("tests/"):
                found += 1
                try:
                    with open(os.path.join(root, word), encoding="utf-8") as file:
                        content = file.read()
                except OSError as error:
                    wrong.append("%d: %s: %s" % (number, word, error.strerror))
                    content = None
            elif content is not None and word not in content:
                wrong.append("%d: there is no %s in the file before it" % (number, word))
        if "`tests/" not in here and "cannot occur" not in here:
            wrong.append("%d: neither a test nor a reason why it cannot occur" % number)
    print("\n".join("docs/pitfalls.md:" + line for line in wrong) or "%d files named" % found)
    return 1 if wrong or found < 50 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
