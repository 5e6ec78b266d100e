"""The forbidden edges of the source tree (design section 6):

- abi/ includes nothing of ours;
- plugins/ and kernels/ include abi/ and their own folder, nothing else of ours;
- runtime/ names no plugin and includes neither plugins/ nor kernels/ nor tools/;
- tools/ reach plugins only through runtime/.

Rule for "names": no string literal of runtime/ or tools/ is, or ends in "/" or ".so" about, the id of a plugin of this
tree. One file is free of it: settings.c, whose fallbacks are the manifest's defaults. Mesh axes and messages that
merely contain such letters are no names.

usage: test_edges.py SOURCE_FOLDER
"""
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1])
DEFAULTS = {pathlib.PurePath("runtime/config/settings.c")}
OURS = ("abi", "runtime", "kernels", "plugins", "tools")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.S)


def sources(part):
    folder = SOURCE / part
    return sorted(p for p in folder.rglob("*") if p.suffix in (".c", ".h", ".def", ".cc", ".cu") and p.is_file())


def included_file(file, quote, name):
    """The file of this tree that an include means, or None for the system's and the libraries'."""
    places = [file.parent] if quote == '"' else []
    places += [SOURCE / "abi", SOURCE / "runtime", SOURCE]
    for place in places:
        found = (place / name).resolve()
        if found.is_file() and SOURCE.resolve() in found.parents:
            return found.relative_to(SOURCE.resolve())
    return None


def edges(part):
    for file in sources(part):
        for quote, name in INCLUDE.findall(file.read_text(errors="replace")):
            target = included_file(file, quote, name)
            if target is not None:
                yield file.relative_to(SOURCE), target


def own_folder(file):
    """plugins/strategies/tp/x.c -> plugins/strategies/tp; kernels/cpu/x.c -> kernels/cpu."""
    parts = file.parts
    return pathlib.PurePath(*parts[: 3 if parts[0] == "plugins" and len(parts) > 3 else 2])


def plugin_ids():
    ids = set()
    for part in ("plugins", "kernels"):
        for file in sources(part):
            ids |= set(re.findall(r'\.id\s*=\s*"([a-z][a-z0-9_]*)"', file.read_text(errors="replace")))
    return ids


def literals(file):
    for token in TOKEN.findall(file.read_text(errors="replace")):
        if token.startswith('"'):
            yield token[1:-1]


class Edges(unittest.TestCase):
    def test_abi(self):
        for file, target in edges("abi"):
            self.assertEqual(target.parts[0], "abi", f"{file} includes {target}")

    def test_plugins_and_kernels(self):
        for part in ("plugins", "kernels"):
            for file, target in edges(part):
                allowed = target.parts[0] == "abi" or own_folder(file) in target.parents
                self.assertTrue(allowed, f"{file} includes {target}")

    def test_runtime(self):
        for file, target in edges("runtime"):
            self.assertIn(target.parts[0], ("abi", "runtime"), f"{file} includes {target}")

    def test_tools(self):
        for file, target in edges("tools"):
            self.assertIn(target.parts[0], ("abi", "runtime", "tools"), f"{file} includes {target}")

    def test_nobody_names_a_plugin(self):
        ids = plugin_ids()
        self.assertTrue(ids, "no plugin found in plugins/ and kernels/")
        for part in ("runtime", "tools"):
            for file in sources(part):
                if file.relative_to(SOURCE) in DEFAULTS or "bench" in file.parts:
                    continue
                for text in literals(file):
                    stem = text.removesuffix(".so").rsplit("/", 1)[-1]
                    self.assertNotIn(stem, ids, f'{file.relative_to(SOURCE)} names the plugin "{text}"')

    def test_the_build_gives_plugins_no_way_to_the_runtime(self):
        for part in ("plugins", "kernels"):
            for file in sorted((SOURCE / part).rglob("meson.build")):
                text = re.sub(r"#.*", "", file.read_text())
                self.assertNotRegex(text, r"\b(tenon_dep|libtenon|runtime_inc)\b", str(file.relative_to(SOURCE)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
