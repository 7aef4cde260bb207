"""A comment of a public header can be read alone, as an editor shows it: it points at no comment near it."""

import pathlib
import re
import unittest

HEADERS = pathlib.Path(__file__).resolve().parents[3] / "runtime/include/attnsmith"
COMMENT = re.compile(r"//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# What begins in the middle of a sentence, and what is said of a neighbour.
BEGINNING = re.compile(r"(?:[Aa]s|of|that|[Ll]ikewise|[Tt]he same)\b")
NEIGHBOUR = re.compile(r"\b(?:[Ll]ikewise|as above|as below|[Tt]he same (?:with|of|again|as)|(?:as|and|of) the (?:last|next)"
                       r"(?: (?:one|two|three|four|five|six|seven))?|its first element|this and the next)\b")


def comments(source):
    """(line, text) of each comment; that of a line which only goes on is a part of the one before."""
    source = STRING.sub(lambda found: '"' + " " * (len(found[0]) - 2) + '"', source)
    for found in COMMENT.finditer(source):
        text = " ".join(re.sub(r"^(?://|/\*|\*/|\*)|\*/$", "", line.strip()).strip() for line in found[0].split("\n"))
        yield source.count("\n", 0, found.start()) + 1, text.strip()


def faults(source):
    return [f"{line}: {text[:90]}" for line, text in comments(source) if BEGINNING.match(text) or NEIGHBOUR.search(text)]


class PublicComments(unittest.TestCase):
    def test_each_can_be_read_alone(self):
        headers = sorted(header for header in HEADERS.glob("*.h*"))
        self.assertGreater(len(headers), 5)
        for header in headers:
            self.assertEqual(faults(header.read_text(encoding="utf-8")), [], header.name)

    def test_what_points_at_a_neighbour_is_found(self):
        for text in ("as k, with head_dim_vo", "of it, likewise", "The same with other addresses", "[rows], likewise.",
                     "deleted, and the next three", "its first element", "that nobody holds"):
            self.assertEqual(len(faults(f"int a;  // {text}\n")), 1, text)
            self.assertEqual(len(faults(f"int a; /* {text} */\n")), 1, text)
        self.assertEqual(len(faults("// A sentence\n// that goes on,\n// of two lines.\nint a;\n")), 0)
        self.assertEqual(faults('const char* a = "// as k";  // Keys of the cache.\n'), [])


if __name__ == "__main__":
    unittest.main()
