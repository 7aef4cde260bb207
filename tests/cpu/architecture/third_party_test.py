"""THIRD_PARTY_NOTICES names every header of others that is compiled into what is distributed, and nothing else."""

import pathlib
import re
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
NOTICES = REPOSITORY / "THIRD_PARTY_NOTICES"
# What is compiled into the library, the command and the JAX handler.
FOLDERS = ("cache", "runtime", "kernel_templates", "tools")
OURS = ("attnsmith/",)
# Of the C library, the kernel and the compiler: a system's own, which no binary holds.
SYSTEM = re.compile(r"(sys|asm|linux|net|netinet|arpa)/\w+\.h|(arm_neon|cpuid|dirent|dlfcn|elf|fcntl|immintrin|limits|link|poll|"
                    r"pthread|signal|spawn|stdbool|stddef|stdint|stdio|stdlib|string|time|unistd)\.h")


def included():
    """{header: a file that includes it}, without those of the C++ library, which have no dot."""
    found = {}
    for folder in FOLDERS:
        for file in sorted((REPOSITORY / folder).rglob("*")):
            if file.suffix in (".cpp", ".hpp", ".h", ".c", ".cuh", ".in"):
                for header in re.findall(r"^\s*#\s*include\s*<([^>]+)>", file.read_text(encoding="utf-8"), re.MULTILINE):
                    if "." in header and not SYSTEM.fullmatch(header) and not header.startswith(OURS):
                        found.setdefault(header, str(file.relative_to(REPOSITORY)))
    return found


def named():
    """The words of the lines Headers: folders, which end with a slash, and files."""
    lines = re.findall(r"^Headers: (.*)$", NOTICES.read_text(encoding="utf-8"), re.MULTILINE)
    return [word for line in lines for word in line.split()]


class ThirdParty(unittest.TestCase):
    def test_every_header_is_named(self):
        headers = included()
        self.assertIn("nlohmann/json.hpp", headers)
        for header, file in headers.items():
            self.assertTrue(any(header == word or (word.endswith("/") and header.startswith(word)) for word in named()),
                            f"{file} includes <{header}>: name it in THIRD_PARTY_NOTICES, with its licence")

    def test_nothing_else_is_named(self):
        headers = included()
        for word in named():
            self.assertTrue(any(header.startswith(word) for header in headers), word)

    def test_every_notice_has_a_copyright_and_terms(self):
        sections = re.split(r"^=+\n", NOTICES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        bodies = sections[1::2]
        self.assertEqual(len(sections), 2 * len(bodies))
        self.assertGreaterEqual(len(bodies), len(named()) - 1)
        for head, body in zip(sections[::2], bodies):
            with self.subTest(head.splitlines()[0]):
                self.assertIn("\nUsed in: ", head)
                self.assertRegex(body, r"Copyright (\(c\) )?\d{4}|Copyright \(c\) (NVIDIA|Free Software)")
                self.assertRegex(body, "Permission is hereby granted|Redistribution and use|Apache License|Only declarations|"
                                       "GCC Runtime Library Exception")

    def test_it_is_distributed(self):
        self.assertIn("THIRD_PARTY_NOTICES", (REPOSITORY / "tools/cmake/Install.cmake").read_text(encoding="utf-8"))
        self.assertRegex((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"),
                         r'license-files = \[.*"THIRD_PARTY_NOTICES"')
        for example in ("container", "fleet"):
            dockerfile = (REPOSITORY / "examples" / example / "Dockerfile").read_text(encoding="utf-8")
            served = dockerfile.rpartition("\nFROM ")[2]
            self.assertIn("pip install /dist/attnsmith-*.whl", served, "the wheel has the notices")
            self.assertNotRegex(served, "rm .*(dist-info|licenses)")


if __name__ == "__main__":
    unittest.main()
