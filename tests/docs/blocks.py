#!/usr/bin/env python3
"""Output that a page of docs/ shows is what the command prints today.

usage: blocks.py TENON [--bless] PAGE...

A block to hold follows a comment with the command and, behind bars, filters, in whose order its output is made what is
shown:

    <!-- tenon dump examples/composition.ini --after resolve | mlp.down -->
    <!-- tenon dump examples/composition.ini --after resolve | mlp.down | cut @\\S+ | first 3 -->

    REGEX             keeps the lines in which it is found
    cut REGEX         removes what matches from each line
    s/REGEX/TEXT/     puts a text in its place, as for figures that differ from machine to machine
    first N           keeps so many lines
    prompt            puts the command above
    exit N            says that the command ends with this code; stderr is shown then

The build folder is shown as `build`. --bless writes the blocks instead of comparing them."""
import difflib
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BLOCK = re.compile(r"(<!-- tenon (?P<command>.*?) -->\n\n?)(?P<text>(?:(?:    .*)?\n)*?)(?=\S|\Z)")


def run(tenon, arguments, code):
    done = subprocess.run([tenon, *arguments.split()], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=200, check=False)
    if done.returncode != code:
        sys.exit("tenon %s: exit code %d: %s" % (arguments, done.returncode, done.stderr))
    text = done.stderr if code else done.stdout
    return text.replace(os.path.dirname(os.path.dirname(tenon)), "build").splitlines()


def output(tenon, command):
    arguments, *filters = command.split(" | ")
    code = next((int(word[5:]) for word in filters if word.startswith("exit ")), 0)
    lines = run(tenon, arguments, code)
    for word in filters:
        if word.startswith("exit "):
            continue
        if word == "prompt":
            lines = ["$ build/tools/tenon " + arguments, "", *lines]
        elif word.startswith("cut "):
            lines = [re.sub(word[4:], "", line).rstrip() for line in lines]
        elif word.startswith("s/"):
            old, new = word[2:-1].split("/")
            lines = "\n".join(re.sub(old, new, line) for line in lines).split("\n")
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
