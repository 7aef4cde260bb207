"""Every public declaration is documented, and Doxygen makes the reference without a warning. Exits 77 without Doxygen."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

DOXYFILE = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else None
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
SKIPPED = 77

HEADER = """// A header of a test.
#pragma once

namespace attnsmith {

// What a value is called.
const char* to_string(int value);
const char* to_string(long value);

// A window of keys, as in i - left <= j, with #tags, <brackets> and \\x1b.
struct Window {
    int left = 0, right = 0;  // keys on
                              // each side
    bool operator==(const Window&) const = default;
};

}  // namespace attnsmith
"""

C_HEADER = """/* A header of a test. */

/* ---- Windows ---- */

/* A window of keys. */
typedef struct attnsmith_window {
    size_t size; /* sizeof as the caller has it */
    /* Keys before
     * the query. */
    int left;
} attnsmith_window;
"""


class Reference(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def doxygen(self, **headers):
        """What Doxygen says of the public headers, or of these instead, with the project's own settings."""
        settings = DOXYFILE.read_text(encoding="utf-8") + f'OUTPUT_DIRECTORY = "{self.folder}"\nGENERATE_XML = YES\n'
        if headers:
            (self.folder / "headers").mkdir(exist_ok=True)
            for name, text in headers.items():
                (self.folder / "headers" / name.replace("_", ".")).write_text(text, encoding="utf-8")
            settings += f'INPUT = "{self.folder}/headers"\n'
        return subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True, check=False)

    def page(self, name):
        return (self.folder / "xml" / name).read_text(encoding="utf-8")

    def test_the_public_headers_give_no_warning(self):
        done = self.doxygen()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        spec = self.page("structattnsmith_1_1AttentionSpec.xml")
        self.assertIn("divides q_heads; 0 means q_heads", spec)  # behind a field
        self.assertIn("joins states s of the same queries", spec)  # in front of a struct
        index = (self.folder / "html/index.html").read_text(encoding="utf-8")
        for name in ("Runtime::prewarm()", "attnsmith_model_coverage_json()"):  # on the first page, as links
            self.assertTrue(re.search(f'<a class="el" href="[^"]+"[^>]*>(attnsmith::)?{re.escape(name)}</a>', index), name)
        for function in ("attnsmith_prepare", "attnsmith_launch"):
            self.assertIn(f"<name>{function}</name>", self.page("attnsmith_8h.xml"))

    def test_plain_comments_are_read(self):
        done = self.doxygen(window_hpp=HEADER, window_h=C_HEADER)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        window = self.page("structattnsmith_1_1Window.xml")
        self.assertEqual(window.count("keys on each side"), 2)
        self.assertIn("#tags, &lt;brackets&gt; and \\x1b", window)
        self.assertNotIn("operator==", window)
        self.assertEqual(self.page("namespaceattnsmith.xml").count("What a value is called."), 2)
        in_c = self.page("structattnsmith__window.xml")
        self.assertIn("Keys before the query.", " ".join(in_c.split()))
        self.assertIn("sizeof as the caller has it", in_c)

    def assert_refused(self, what, **headers):
        done = self.doxygen(**headers)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(what, done.stderr)

    def test_a_declaration_without_a_word_is_refused_by_name(self):
        silent = "".join(line for line in HEADER.splitlines(keepends=True) if not line.startswith("// A window"))
        self.assert_refused("Window", window_hpp=silent)
        self.assert_refused("left", window_hpp=HEADER.replace("  // keys on", "").replace("// each side", ""))
        self.assert_refused("to_string", window_hpp=HEADER.replace("// What a value is called.\n", ""))
        self.assert_refused("size", window_h=C_HEADER.replace(" /* sizeof as the caller has it */", ""))

    def test_each_comment_in_c_can_be_read_alone(self):
        """An editor shows one comment, and not the one above it."""
        text = (REPOSITORY / "runtime/include/attnsmith/attnsmith.h").read_text(encoding="utf-8")
        comments = [" ".join(re.sub(r"^\s*\* ?", "", comment, flags=re.MULTILINE).split())
                    for comment in re.findall(r"/\*(.*?)\*/", text, re.DOTALL)]
        self.assertGreater(len(comments), 300)
        leaning = re.compile(r"\b(likewise|the same (of|as)|as (above|below|the next|the previous)|see above)\b|^(as|the same)\b",
                             re.IGNORECASE)
        self.assertEqual([comment for comment in comments if leaning.search(comment)], [])


if __name__ == "__main__":
    if shutil.which("doxygen") is None:
        print("skipped: Doxygen is not installed")
        sys.exit(SKIPPED)
    unittest.main()
