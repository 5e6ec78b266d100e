#!/usr/bin/env python3
"""Output that a page of docs/ shows is what the command prints today.

usage: blocks.py TENON [--bless] PAGE...

A block to hold follows a comment with the command and, behind a bar, a regular expression: of the output, the lines in
which it is found are shown. `cut` removes what matches from each line, `first N` keeps so many lines.

    <!-- tenon dump examples/composition.ini --after resolve | mlp.down -->
    <!-- tenon dump examples/composition.ini --after resolve | mlp.down | cut @\\S+ | first 3 -->

--bless writes the blocks instead of comparing them."""
import difflib
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BLOCK = re.compile(r"(<!-- tenon (?P<command>.*?) -->\n\n?)(?P<text>(?:(?:    .*)?\n)*?)(?=\S|\Z)")


def output(tenon, command):
    arguments, *filters = command.split(" | ")
    done = subprocess.run([tenon, *arguments.split()], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)
    if done.returncode:
        sys.exit("tenon %s: exit code %d: %s" % (arguments, done.returncode, done.stderr))
    lines = done.stdout.splitlines()
    for word in filters:
        if word.startswith("cut "):
            lines = [re.sub(word[4:], "", line).rstrip() for line in lines]
        elif word.startswith("first "):
            lines = lines[:int(word[6:])]
        else:
            lines = [line for line in lines if re.search(word, line)]
    if not lines:
        sys.exit("tenon %s: nothing is left to show" % command)
    return "".join("    %s\n" % line if line else "\n" for line in lines)


def main():
    tenon, bless, pages = os.path.abspath(sys.argv[1]), "--bless" in sys.argv, [page for page in sys.argv[2:] if page != "--bless"]
    code = 0
    for page in pages:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        shown = BLOCK.sub(lambda block: "<!-- tenon %s -->\n\n%s\n" % (block["command"], output(tenon, block["command"])), text)
        if len(BLOCK.findall(text)) != text.count("<!-- tenon "):
            sys.exit("%s: a command without a block behind it" % page)
        if bless:
            with open(page, "w", encoding="utf-8") as file:
                file.write(shown)
        elif shown != text:
            code = 1
            sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), shown.splitlines(True), page, "what is printed"))
    if code:
        print("write it anew with: tests/docs/blocks.py TENON --bless PAGE")
    return code


if __name__ == "__main__":
    sys.exit(main())
