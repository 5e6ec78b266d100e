#!/usr/bin/env python3
"""Writes unicode_ranges.def: the letters and numbers of the Unicode version that this Python has."""
import unicodedata


def ranges(major):
    found = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] == major:
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    return found


def rows(macro, found):
    items = ["%s(0x%X, 0x%X)" % (macro, first, last) for first, last in found]
    line = ""
    for item in items:
        if len(line) + len(item) > 118:
            print(line.rstrip())
            line = ""
        line += item + " "
    print(line.rstrip())


print("/* Made by unicode_ranges.py from Unicode %s: code points of the categories L* and N*. */"
      % unicodedata.unidata_version)
rows("LETTERS", ranges("L"))
rows("NUMBERS", ranges("N"))
