"""Facts about classes and functions from their syntax trees: names, arguments, literals. Bodies and docstrings are left out.

Values are written as Python writes them: "'auto'" is a string, "torch.float16" a name and "1" a number. "..." stands for any
other expression, and null for an attribute that is declared without a value. Arguments and fields are lists of "name" and
"name=default", in their order, with "/" and "*" as in a signature. self and cls are left out.
"""

import ast

from contract_sources import module_of, statements

ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "ReprEnum"}
UNKNOWN = "..."
LONGEST = 160  # characters of a value
_KINDS = {"classmethod": "class", "staticmethod": "static", "property": "property", "cached_property": "property"}


def dotted(node):
    """"a.b.c" of a name or attribute, or None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and "%s.%s" % (base, node.attr)
    return None


def last_name(node):
    """"c" of a.b.c; "" of any other expression."""
    return (dotted(node) or "").split(".")[-1]


def is_plain(node):
    """Whether an expression is a literal, a name, a list of those, an object made of those (MultipleOf(16)) or auto()."""
    if isinstance(node, ast.Constant):
        return node.value is not Ellipsis
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(is_plain(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return all(item is not None and is_plain(item) for item in [*node.keys, *node.values])
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        return (name[:1].isupper() or name == "auto") and all(
            is_plain(item) for item in [*node.args, *(word.value for word in node.keywords)])
    return dotted(node) is not None


def notation(node):
    """The text of a plain value; "..." of another expression; None if there is no expression."""
    if node is None:
        return None
    text = ast.unparse(node) if is_plain(node) else UNKNOWN
    return text if len(text) <= LONGEST else UNKNOWN


def argument_list(arguments, without_first=False):
    """A signature's arguments. without_first: leaves out self or cls."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    listed = [_with_default(argument, default) for argument, default in zip(positional, defaults)]
    if arguments.posonlyargs:
        listed.insert(len(arguments.posonlyargs), "/")
    if without_first:
        listed = listed[1:]
    if arguments.vararg:
        listed.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        listed.append("*")
    listed += [_with_default(argument, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return listed + (["**" + arguments.kwarg.arg] if arguments.kwarg else [])


def _with_default(argument, default):
    return argument.arg if default is None else "%s=%s" % (argument.arg, notation(default))


def body_facts(function):
    """{"returns": value} of a body that only returns a literal or the name of a class, {"raises": name}, or {}."""
    body = [node for node in function.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if not body or all(isinstance(node, ast.Pass) for node in body):
        return {"returns": "None"}
    node = body[0]
    if len(body) > 1:
        return {}
    if isinstance(node, ast.Raise) and node.exc is not None:
        name = dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        return {"raises": name} if name else {}
    if isinstance(node, ast.Return):
        value = node.value or ast.Constant(None)
        local = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        names = {name.id for name in ast.walk(value) if isinstance(name, ast.Name)} - {"torch"}
        is_literal = is_plain(value) and not isinstance(value, ast.Call)
        if is_literal and all(name[0].isupper() and name not in local for name in names):
            return {"returns": notation(value)}
    return {}


def function_facts(function, file):
    """Module and arguments of a function, and what it returns if its body is one literal."""
    return {"module": module_of(file), "arguments": argument_list(function.args), **body_facts(function)}


def method_facts(function):
    """Kind (instance, class, static, property), arguments without self and cls, whether it is abstract or deprecated."""
    decorators = (node.func if isinstance(node, ast.Call) else node for node in function.decorator_list)
    names = {last_name(node) for node in decorators}
    kind = next((kind for name, kind in _KINDS.items() if name in names), "instance")
    if function.name == "__new__":
        kind = "class"
    facts = {"kind": kind, "arguments": argument_list(function.args, without_first=kind != "static"), **body_facts(function)}
    facts.update({word: True for word, name in (("abstract", "abstractmethod"), ("deprecated", "deprecated")) if name in names})
    return facts


def base_names(node):
    """The bases without their type arguments."""
    return [name for name in (dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases) if name]


def dataclass_options(node):
    """The arguments of a dataclass's decorator, such as {"frozen": "True"}; None of another class."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if last_name(call.func if call else decorator) == "dataclass":
            return {word.arg: notation(word.value) for word in (call.keywords if call else [])}
    return None


def is_class_variable(annotation):
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return last_name(base) == "ClassVar"


def field_text(node, is_keyword):
    """("name=default", whether it is a keyword-only argument, whether __init__ takes it) of a dataclass's field."""
    value, is_taken = node.value, True
    if isinstance(value, ast.Call) and last_name(value.func) == "field":
        words = {word.arg: word.value for word in value.keywords}
        is_keyword = _constant(words.get("kw_only"), is_keyword)
        is_taken = _constant(words.get("init"), True)
        value = words.get("default")
        if "default_factory" in words:
            factory = dotted(words["default_factory"])
            return "%s=%s" % (node.target.id, "%s()" % factory if factory else UNKNOWN), is_keyword, is_taken
    return node.target.id + ("" if value is None else "=%s" % notation(value)), is_keyword, is_taken


def _constant(node, otherwise):
    return node.value if isinstance(node, ast.Constant) else otherwise


def field_facts(node, options):
    """Positional fields, keyword-only fields, and those that __init__ does not take, each in their order."""
    lists = {"fields": [], "keyword_fields": [], "fields_without_argument": []}
    is_keyword = options.get("kw_only") == "True"
    for item in statements(node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if dotted(item.annotation) in ("KW_ONLY", "dataclasses.KW_ONLY"):
                is_keyword = True
            elif not is_class_variable(item.annotation):
                text, by_keyword, is_taken = field_text(item, is_keyword)
                lists["fields_without_argument" if not is_taken else "keyword_fields" if by_keyword else "fields"].append(text)
    return {name: listed for name, listed in lists.items() if listed}


def attribute_facts(node, has_fields):
    """{name: literal} of the attributes of a class. has_fields: only those annotated ClassVar are attributes, others fields."""
    found = {}
    for item in statements(node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if not has_fields or is_class_variable(item.annotation):
                found[item.target.id] = notation(item.value)
        elif isinstance(item, ast.Assign):
            found.update({target.id: notation(item.value) for target in item.targets if isinstance(target, ast.Name)})
    return found


def instance_attributes(node):
    """The attributes of self that __new__, __init__ and __post_init__ set."""
    names = set()
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name in ("__new__", "__init__", "__post_init__"):
            names |= {one.attr for one in ast.walk(function) if isinstance(one, ast.Attribute)
                      and isinstance(one.ctx, ast.Store) and dotted(one.value) == "self"}
    return sorted(names)


def class_facts(node, file):
    """Module, bases, attributes, methods, fields, members and attributes of instances. Empty ones are left out."""
    bases = base_names(node)
    last = {base.split(".")[-1] for base in bases}
    options = dataclass_options(node)
    facts = {"module": module_of(file), "bases": bases}
    attributes = attribute_facts(node, has_fields=options is not None or "NamedTuple" in last)
    if last & ENUMS:
        facts["members"] = ["%s=%s" % item for item in attributes.items() if not item[0].startswith("_")]
    elif attributes:
        facts["attributes"] = attributes
    if options is not None:
        facts["dataclass"] = options
    if options is not None or "NamedTuple" in last:
        facts.update(field_facts(node, options or {}))
    functions = (one for one in statements(node.body) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
    methods = {one.name: method_facts(one) for one in functions}
    instance = instance_attributes(node)
    return {**facts, **({"methods": methods} if methods else {}), **({"instance": instance} if instance else {})}


def nested_classes(node):
    """("Outer.Inner", node) of each class within a class."""
    for item in statements(node.body):
        if isinstance(item, ast.ClassDef):
            yield "%s.%s" % (node.name, item.name), item


def names_of(facts):
    """All names that a class of a table has."""
    fields = [text.partition("=")[0] for kind in ("fields", "keyword_fields") for text in facts.get(kind, ())]
    return {*facts.get("attributes", ()), *facts.get("methods", ()), *facts.get("instance", ()), *fields}
