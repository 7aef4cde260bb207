"""The differences of two tables, one line for each fact."""

# Lists of "name" and "name=default", and the word for an item.
_LISTS = {"fields": "field", "keyword_fields": "keyword field", "fields_without_argument": "field without argument",
          "members": "member"}


def signature_text(method):
    """"static abstract (a, b='x') -> False"."""
    words = [method.get("kind"), *(word for word in ("abstract", "deprecated") if method.get(word))]
    text = " ".join([*filter(None, words), "(%s)" % ", ".join(method["arguments"])])
    if "returns" in method:
        return "%s -> %s" % (text, method["returns"])
    return text + (" raises " + method["raises"] if "raises" in method else "")


def listed_facts(word, items):
    """{"field x": default} of "x=default", and the order of the names."""
    pairs = [item.partition("=")[::2] for item in items]
    return {**{"%s %s" % (word, name): default or "-" for name, default in pairs},
            "order of each %s" % word: [name for name, _ in pairs]}


def facts_of_class(facts):
    found = {"module": facts["module"], "bases": ", ".join(facts["bases"])}
    if "dataclass" in facts:
        found["dataclass"] = ", ".join("%s=%s" % item for item in sorted(facts["dataclass"].items())) or "-"
    for name, word in _LISTS.items():
        found.update(listed_facts(word, facts.get(name, ())))
    found.update({"attribute " + name: value or "-" for name, value in facts.get("attributes", {}).items()})
    found.update({"method " + name: method for name, method in facts.get("methods", {}).items()})
    found.update({"instance attribute " + name: "-" for name in facts.get("instance", ())})
    return found


def facts_of_backend(facts):
    found = {"module": facts["module"]}
    for role in ("backend", "impl", "builder"):
        part = facts.get(role)
        if part:
            found[role] = part["class"]
            found.update({"%s overrides %s" % (role, name): "-" for name in part["overrides"]})
            found.update({"%s adds %s" % (role, name): method for name, method in part["adds"].items()})
    found.update({"imports " + name: kind for name, kind in facts["imports"].items()})
    return found


def facts_of_reads(files):
    """The ways of use, without the files: a move of the reader does not change the contract."""
    return {how: "-" for uses in files.values() for how in uses}


def facts_of(table):
    """{owner: {fact: value}}; a value is a text, a list or a method."""
    found = {"class " + name: facts_of_class(facts) for name, facts in table["classes"].items()}
    found.update({"function " + name: {"module": facts["module"], "arguments": facts}
                  for name, facts in table["functions"].items()})
    found.update({"literal " + name: {"module": facts["module"], **{"value " + value: "-" for value in facts["values"]}}
                  for name, facts in table["literals"].items()})
    found["variables"] = {name: facts["module"] + " = " + facts["value"] for name, facts in table["variables"].items()}
    found["plugins"] = {"group " + name: value for name, value in table["plugins"].items()}
    found.update({"layer " + name: facts_of_class({"bases": [], **facts}) for name, facts in table["layers"].items()})
    found.update({"backend " + name: facts_of_backend(facts) for name, facts in table["backends"].items()})
    for role, attributes in table["reads"].items():
        found.update({"engine reads %s.%s" % (role, name): facts_of_reads(files) for name, files in attributes.items()})
    return found


def text_of(value):
    if isinstance(value, dict):
        return signature_text(value)
    return ", ".join(value) if isinstance(value, list) else value


def summary_of(owner, facts):
    """The text for an owner that one table lacks: its module, or how it is used."""
    if "arguments" in facts:
        return "%s %s" % (facts["module"], text_of(facts["arguments"]))
    return facts.get("module") or ", ".join(sorted(facts))


def method_changes(before, after):
    """The differences of two methods, as a text."""
    one, two = (dict(text.partition("=")[::2] for text in method["arguments"]) for method in (before, after))
    changes = ["argument %s removed" % name for name in one if name not in two]
    changes += ["argument %s added" % text for text in after["arguments"] if text.partition("=")[0] not in one]
    changes += ["default of %s: %s -> %s" % (name, one[name] or "-", two[name] or "-")
                for name in one if name in two and one[name] != two[name]]
    if [name for name in one if name in two] != [name for name in two if name in one]:
        changes.append("order of arguments: %s" % ", ".join(two))
    for word in ("kind", "abstract", "deprecated", "returns", "raises"):
        if before.get(word) != after.get(word):
            changes.append("%s: %s -> %s" % (word, before.get(word, "-"), after.get(word, "-")))
    return "; ".join(changes)


def change_of(before, after):
    if isinstance(before, dict) and isinstance(after, dict):
        return method_changes(before, after)
    if isinstance(before, list):  # only the order of names that both have
        one, two = ([name for name in names if name in other] for names, other in ((before, after), (after, before)))
        return "" if one == two else "%s -> %s" % (", ".join(one), ", ".join(two))
    return "%s -> %s" % (text_of(before), text_of(after))


def compare(one, two):
    """Lines "added OWNER: FACT", "removed ..." and "changed ...", by owner. An owner that one table lacks is one line."""
    before, after = facts_of(one), facts_of(two)
    lines = []
    for owner in sorted({*before, *after}):
        if owner not in after or owner not in before:
            word, side = ("removed", before) if owner in before else ("added", after)
            lines.append("%-7s %s: %s" % (word, owner, summary_of(owner, side[owner])))
            continue
        old, new = before[owner], after[owner]
        for fact in sorted({*old, *new}):
            is_order = isinstance((old.get(fact), new.get(fact))[fact not in old], list)
            if fact not in old or fact not in new:
                if not is_order:
                    word, value = ("removed", old[fact]) if fact in old else ("added", new[fact])
                    lines.append("%-7s %s: %s%s" % (word, owner, fact, "" if value == "-" else " " + text_of(value)))
            elif old[fact] != new[fact]:
                change = change_of(old[fact], new[fact])
                if change:
                    lines.append("changed %s: %s: %s" % (owner, fact, change))
    return lines
