"""The public headers: each compiles alone, as C11 -pedantic and as C++17, with every compiler that is there; each is
under 150 lines; none includes anything of ours outside abi/.

usage: test_headers.py ABI_FOLDER
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ABI = pathlib.Path(sys.argv[1])
HEADERS = sorted((ABI / "tenon").glob("*.h"))
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-pedantic-errors", "-fsyntax-only"]
COMPILERS = [(c, ["-std=c11", "-Wstrict-prototypes"], ".c") for c in ("gcc", "clang")] + \
            [(c, ["-std=c++17"], ".cpp") for c in ("g++", "clang++")]


class Headers(unittest.TestCase):
    def test_there_are_headers(self):
        self.assertGreater(len(HEADERS), 10)

    def test_compile_alone(self):
        used = 0
        with tempfile.TemporaryDirectory() as folder:
            for compiler, options, suffix in COMPILERS:
                if not shutil.which(compiler):
                    continue
                used += 1
                sources = []
                for header in HEADERS:  # twice: the guard holds
                    source = pathlib.Path(folder) / (header.stem + suffix)
                    source.write_text(f"#include <tenon/{header.name}>\n#include <tenon/{header.name}>\n"
                                      "typedef int not_empty;\n")
                    sources.append(str(source))
                done = subprocess.run([compiler, *options, *STRICT, f"-I{ABI}", *sources],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, f"{compiler}:\n{done.stderr}")
        self.assertGreater(used, 0, "no compiler found")

    def test_are_short(self):
        for header in HEADERS:
            self.assertLess(len(header.read_text().splitlines()), 150, header.name)

    def test_include_nothing_of_ours(self):
        for file in [*HEADERS, *(ABI / "tenon").glob("*.def")]:
            for name in re.findall(r'^\s*#\s*include\s*([<"][^>"]+[>"])', file.read_text(), re.M):
                self.assertRegex(name, r"^<(tenon/\w+\.(h|def)|stdint\.h|stddef\.h)>$", f"{file.name} includes {name}")

    def test_no_field_whose_size_differs_between_compilers(self):
        for header in HEADERS:
            code = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
            for struct in re.findall(r"struct \w+ \{(.*?)\n\};", code, re.S):
                self.assertNotRegex(struct, r"\b(long|short|bool|_Bool|size_t|unsigned|wchar_t)\b", header.name)
                self.assertNotRegex(struct, r"\benum\s+\w+\s+\w+\s*;", header.name)
                self.assertNotRegex(struct, r"\w\s*:\s*\d+\s*[;,]", f"{header.name}: a bit-field")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
