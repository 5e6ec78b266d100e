"""Every built plugin exports tn_plugin_query alone, links nothing of ours, and has no variables of a thread.

usage: test_symbols.py BUILD_FOLDER
"""
import pathlib
import shutil
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv[1])
PLUGINS = sorted(p for part in ("plugins", "kernels") for p in (BUILD / part).rglob("*.so") if p.is_file())
# What linkers and sanitizers put into every shared object.
OF_THE_LINKER = {"_init", "_fini", "_edata", "_end", "__bss_start"}


def of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@unittest.skipUnless(shutil.which("nm") and shutil.which("readelf"), "needs binutils")
class Symbols(unittest.TestCase):
    def test_there_are_plugins(self):
        self.assertGreater(len(PLUGINS), 0, f"no plugin is built in {BUILD}")

    def test_export_one_symbol(self):
        for plugin in PLUGINS:
            lines = of("nm", "-D", "--defined-only", "--format=posix", str(plugin)).splitlines()
            symbols = {line.split()[0].split("@")[0] for line in lines} - OF_THE_LINKER
            self.assertEqual(symbols, {"tn_plugin_query"}, plugin.name)

    def test_link_nothing_of_ours(self):
        for plugin in PLUGINS:
            needed = [line for line in of("readelf", "-d", str(plugin)).splitlines() if "(NEEDED)" in line]
            self.assertFalse([line for line in needed if "tenon" in line], plugin.name)

    def test_no_variables_of_a_thread(self):
        """The loader allocates them when a thread first comes by, be it in the step path."""
        for plugin in PLUGINS:
            self.assertNotRegex(of("readelf", "-S", "-W", str(plugin)), r"\.t(bss|data)\b", plugin.name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
