"""Doxygen's input filter: the public headers' plain comments, with the marks by which Doxygen knows documentation.

A comment in front of a declaration, or behind it on the same line, documents it; the comment that opens a file documents
the file. The headers need no marks of Doxygen's for that: this filter prints a marked copy of one. Three rules save the
headers words that would say nothing new:

- The comment of the first of several overloads in a row is that of all.
- Moves and memberwise comparisons are left out, since they do what they always do.
- Specialisations of a template are left out, since the template's comment is theirs; so are attributes.
"""

import pathlib
import re
import sys

LINE = re.compile(r"^(?P<code>.*?)//(?P<text>.*)$")
BLOCK = re.compile(r"/\*(?P<text>.*?)\*/", re.DOTALL)
SECTION = re.compile(r"^\s*-{3,}\s*(?P<title>.*?)\s*-{3,}\s*$")
OVERLOAD = re.compile(r"^\w[\w:*& ]*[ *&](?P<name>\w+)\(")
SEVERAL = re.compile(r"^(?P<type>\s*[\w:]+\s+)(?P<names>\w+(?: = \w+)?(?:, \w+(?: = \w+)?)+);")
ORDINARY = re.compile(r"^\s*(?:bool operator==\(const \w+&\) const = default|(\w+)\(\1&&\) noexcept|"
                      r"\w+& operator=\(\w+&&\) noexcept);$")
SPECIALISATION = re.compile(r"(?:^//.*\n)*^template <>\n[^;]*;\n", re.MULTILINE)
ATTRIBUTE = re.compile(r'\[\[\w+(?:\("[^"]*"\))?\]\] ?')
CODE_INDENT = 3  # a comment's text that is indented by this much is code


def escaped(text):
    """Text in which Doxygen finds no commands, links or tags."""
    return re.sub(r"([\\@<>#])", r"\\\1", text)


def marked_text(lines):
    """A comment's lines of text: words escaped, indented ones as code."""
    marked, in_code = [], False
    for line in lines:
        is_code = len(line) - len(line.lstrip()) >= CODE_INDENT and line.strip() != ""
        if is_code != in_code and (is_code or line.strip()):
            marked.append("@code" if is_code else "@endcode")
            in_code = is_code
        marked.append(line if in_code else escaped(line))
    return marked + (["@endcode"] if in_code else [])


def one_a_line(line):
    """`int a, b;  // text` as a line for each name, so that each has the text."""
    found = SEVERAL.match(line)
    if not found:
        return [line]
    return [found["type"] + name + ";" + line[found.end():] for name in found["names"].split(", ")]


def overloads(lines):
    """The lines of comments, with those of an overload set's first function before each of the others."""
    comment, name = [], None
    for line in lines:
        found = OVERLOAD.match(line)
        if found and found["name"] == name and comment:
            yield from comment
        elif line.startswith("//"):
            comment = (comment if name is None else []) + [line]
            name = None
            yield line
            continue
        yield line
        if found:
            name = found["name"]
        elif not line.startswith(" "):
            comment, name = [], None


def joined(lines):
    """Comments behind code that go on below, in their own column, as one line."""
    whole, column = [], None
    for line in lines:
        found = LINE.match(line)
        at = len(found["code"]) if found else None
        if found and not found["code"].strip() and at == column:
            whole[-1] += found["text"]
        else:
            whole.append(line)
            column = at if found and found["code"].strip() else None
    return whole


def cxx(source):
    """A header of C++: // becomes ///, or ///< behind code."""
    marked, block = [], []

    def close():
        if block:
            head = ["@file"] if not any(line.strip() for line in marked) else []
            marked.extend("/// " + line for line in head + marked_text(block))
        block.clear()

    source = ATTRIBUTE.sub("", SPECIALISATION.sub("", source))
    lines = joined([line for line in source.splitlines() if not ORDINARY.match(line)])
    for line in (part for whole in overloads(lines) for part in one_a_line(whole)):
        found = LINE.match(line)
        if found and not found["code"].strip():
            block.append(found["text"][1:])
        else:
            close()
            marked.append(found["code"] + "///<" + escaped(found["text"]) if found else line)
    close()
    return "\n".join(marked) + "\n"


def c(source):
    """A header of C: /* becomes /**, or /**< behind code; a line of dashes with words opens a section."""
    def replace(found):
        before = source[source.rfind("\n", 0, found.start()) + 1:found.start()]
        section = SECTION.match(found["text"])
        if section:
            return "/** @name " + section["title"] + " */"
        lines = [re.sub(r"^\s*\* ?", "", line) if i else line[1:] for i, line in enumerate(found["text"].split("\n"))]
        if before.strip():
            return "/**< " + escaped(" ".join(line.strip() for line in lines)) + " */"
        head = ["@file"] if found.start() == 0 else []
        return "/** " + "\n".join(head + marked_text(lines)) + " */"

    return BLOCK.sub(replace, source)


def main():
    path = pathlib.Path(sys.argv[1])
    source = path.read_text(encoding="utf-8")
    mark = {".h": c, ".hpp": cxx}.get(path.suffix, str)  # a page is left as it is
    sys.stdout.write(mark(source))


if __name__ == "__main__":
    main()
