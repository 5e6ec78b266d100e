#!/usr/bin/env python3
"""Links between pages lead somewhere, every page is linked, and ARCHITECTURE.md names what is in the tree.

usage: links.py ROOT

A link's file exists, and a heading of the page it leads to has its anchor. From README.md every page of docs/ can be
reached. The table of ARCHITECTURE.md names each folder of runtime/ and each plugin."""
import os
import re
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(text):
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def pages(root):
    """Path -> text of the pages at the root and below docs/."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if folder != root or name == "docs"]
        for name in names:
            if name.endswith(".md"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    found[os.path.relpath(path, root)] = file.read()
    return found


def named(text):
    """Folders that a page names in backticks: `a/b`, and `a/{b,c}` for both."""
    for word in re.findall(r"`([^`]+)`", text):
        front, names, back = re.fullmatch(r"([^{]*)\{?([^}]*)\}?(.*)", word).groups()
        for name in names.split(","):
            yield (front + name + back).rstrip("/")


def parts(root):
    """Folders that the table of ARCHITECTURE.md has to name."""
    for above, prefix in ("runtime", ""), ("plugins/strategies", "strategies/"), ("plugins/collectives", "collectives/"):
        for name in sorted(os.listdir(os.path.join(root, above))):
            if os.path.isdir(os.path.join(root, above, name)):
                yield prefix + name


def main(root):
    texts, wrong, leads = pages(root), [], {}
    for page, text in texts.items():
        leads[page] = set()
        for target, anchor in LINK.findall(text):
            if "://" in target:
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
            leads[page].add(path)
            if not os.path.exists(os.path.join(root, path)):
                wrong.append("%s: there is no %s" % (page, target))
            elif anchor and path in texts and anchor not in anchors(texts[path]):
                wrong.append("%s: no heading of %s is #%s" % (page, path, anchor))

    reached, edge = set(), {"README.md"}
    while edge:
        reached |= edge
        edge = set().union(*(leads.get(page, set()) for page in edge)) - reached
    wrong += ["%s: no page that README.md leads to links it" % page for page in sorted(set(texts) - reached)]

    table = set(named(texts["ARCHITECTURE.md"]))
    wrong += ["ARCHITECTURE.md: its table has no %s" % name for name in parts(root) if name not in table]
    print("\n".join(wrong) or "%d pages" % len(texts))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
