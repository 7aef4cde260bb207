"""Which names a file uses that none of its includes declares.

Files are compiled several in one unit (tools/cmake/CompileTime.cmake), where a file can live on what another includes. This
finds it without compiling each file: a name of a library's namespace needs a header, reached from the file, that declares it,
as the compiler has it; a type or function of ours needs a reached file that mentions it.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import tempfile

import include_edges

# Namespaces whose headers are asked, and the first of those in them that are no type but namespaces again.
LIBRARIES = re.compile(r"\b(?:std|fmt|nlohmann|CLI)::(?:(?:chrono|filesystem|numbers|this_thread|ranges)::)?\w+")
NO_NAME = re.compile(r"\b(?:std::(?:chrono|filesystem|numbers|this_thread|ranges|literals)|std::chrono_literals)$")
HEADERS = re.compile(r"(?:[a-z_]+|fmt/.*|nlohmann/.*|CLI/.*)$")
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|R"(\w*)\(.*?\)\1"', re.DOTALL)
INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)

TYPE = re.compile(r"^(?:struct|enum class|class|enum|union|using) ([A-Z]\w*)(?= [{=:]|;|$)", re.MULTILINE)
FUNCTION = re.compile(r"^(?!using|return|template|#)[\w:<>,&* \[\]]*[\w>&*\]] [&*]*([a-z]\w*)\(", re.MULTILINE)
# Not of members, nor of a class or a library; a namespace of ours may be named.
USED = re.compile(r"(?<![.>\w:])((?:[a-z_]+::)*)(?:([A-Z]\w*)\b|([a-z]\w*)\()")
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
OF_C_TOO = {"raise"}


class Names:
    def __init__(self, texts):
        tree = include_edges.Tree(texts)
        self.files = [file for file in tree.sources() if include_edges.part_of(file) not in (None, "tests", "templates", "abi")
                      and file.endswith((".cpp", ".hpp"))]
        self.code = {file: NOT_CODE.sub(" ", text) for file, text in texts.items()}
        self.ours, self.system = {}, {}
        for file, text in texts.items():
            found = {name: tree.find(file, name) for name in INCLUDED.findall(text)}
            self.ours[file] = {target for target in found.values() if target in texts}
            self.ours[file] |= {target + ".in" for target in found.values() if target and target not in texts}
            self.system[file] = {name for name, target in found.items() if target is None}

    def reached(self, file):
        reached, waiting = {file}, [file]
        while waiting:
            new = self.ours[waiting.pop()] - reached
            reached |= new
            waiting.extend(new)
        return reached

    def library_names(self, file):
        return {name for name in LIBRARIES.findall(self.code[file]) if not NO_NAME.search(name)}

    def of_libraries(self, compile_command):
        """One line for each name of a library that a file uses and reaches no header of."""
        names = sorted(set().union(*map(self.library_names, self.files)))
        headers = sorted({header for file in self.files for header in self.system[file] if HEADERS.match(header)})
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            declared = dict(zip(headers, threads.map(lambda header: declared_by(header, names, compile_command), headers)))
        known = set().union(*declared.values())
        found = []
        for file in self.files:
            reached = set().union(*(declared.get(header, set()) for other in self.reached(file) for header in self.system[other]))
            reached |= {name for name in known if re.search(rf"^(class|struct) {name.split('::')[-1]};", self.code[file], re.MULTILINE)}
            found += [f"{file} uses {name} and includes no header of it" for name in sorted((self.library_names(file) & known) - reached)]
        return found

    def of_ours(self):
        """One line for each type or function of a header of ours that a file uses and reaches no mention of."""
        declared = {}
        for file in self.files:
            if file.endswith(".hpp"):
                for name in {*TYPE.findall(self.code[file]), *FUNCTION.findall(self.code[file])}:
                    declared.setdefault(name, []).append(file)
        namespaces = {"", *re.findall(r"\w+", " ".join(" ".join(NAMESPACE.findall(code)) for code in self.code.values()))}
        words = {file: set(re.findall(r"\w+", code)) for file, code in self.code.items()}
        found = []
        for file in self.files:
            reached = set().union(*(words[other] for other in self.reached(file) - {file}))
            used = {name or function for prefix, name, function in USED.findall(self.code[file])
                    if namespaces.issuperset(prefix.split("::"))}
            for name in sorted((used & declared.keys()) - reached - OF_C_TOO):
                if file not in declared[name] and not declares(self.code[file], name):
                    found.append(f"{file} uses {name} and includes nothing that mentions it ({', '.join(declared[name])} does)")
        return found


def declares(code, name):
    """Whether a file has a variable, a parameter or a function of its own of this name."""
    if name[0].islower() and re.search(rf"(?<![.>:\w]){name}\b(?!\()", code):
        return True
    return any(word not in {"return", "throw", "case", "else"} for word in re.findall(rf"([\w>&*]+)[ \n][&*]*{name}\b", code))


def declared_by(header, names, compile_command):
    """Those of the names that a file knows which includes the header alone."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "names.cpp"
        lines = [f"#include <{header}>", *(f"namespace n{at} {{ using {name}; }}" for at, name in enumerate(names))]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        run = subprocess.run([*compile_command, "-fsyntax-only", source], capture_output=True, text=True, timeout=240, check=False)
    wrong = {int(line) for line in re.findall(r"names\.cpp:(\d+):\d+: (?:fatal )?error", run.stderr)}
    return set() if 1 in wrong else {name for at, name in enumerate(names) if at + 2 not in wrong}
