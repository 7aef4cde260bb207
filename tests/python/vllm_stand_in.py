"""vLLM's modules as a table of tools/engines/vllm describes them, for tests of an attention backend on a machine without vLLM.

    with stand_in(load("0.33.0")) as vllm:
        from vllm.v1.attention.backend import AttentionBackend

The classes have the contract's bases, attributes, methods, arguments, fields and members. A method or function whose body is
one literal returns that. DEFAULTS has simple bodies for some others. __init__ assigns its arguments to attributes. Each of the
rest checks its arguments, then raises NotImplementedError, unless the test gives an answer. Special methods other than __init__
and __new__ are Python's own. register_backend() records into `vllm.registered`.

A name that the table lacks raises ImportError or AttributeError with the release and the name. Types of torch such as
torch.float16 are torch's own where it is installed, and otherwise equal to nothing but themselves.

Needs Python 3.10 (fields given by keyword alone).
"""

import abc
import ast
import builtins
import contextlib
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import logging
import pathlib
import sys
import types
import typing

TABLES = pathlib.Path(__file__).resolve().parents[2] / "tools/engines/vllm"
CONTRACT = "vllm.v1.attention.backend"
REGISTRY = "vllm.v1.attention.backends.registry"
# Enums of backends, and the functions that register others. The first is that of `vllm.registered`.
REGISTRIES = [("AttentionBackendEnum", "register_backend"), ("MLAPrefillBackendEnum", "register_mla_prefill_backend")]
T = typing.TypeVar("T")
_BASES = {"ABC": abc.ABC, "Enum": enum.Enum, "IntEnum": enum.IntEnum, "Flag": enum.Flag, "IntFlag": enum.IntFlag,
          "Generic": typing.Generic[T], "str": str, "int": int}
_FIELDS = ("fields", "keyword_fields", "fields_without_argument")


def releases():
    """The releases that have a table, oldest first."""
    return sorted((file.stem for file in TABLES.glob("*.json")), key=lambda release: [int(part) for part in release.split(".")])


def load(release):
    """The table of a release."""
    return json.loads((TABLES / f"{release}.json").read_text(encoding="utf-8"))


class Named:
    """Stands for a value that the table has by name only. It has no attributes."""

    def __init__(self, text, release):
        self._text, self._release = text, release

    def __repr__(self):
        return self._text

    def __getattr__(self, name):
        raise AttributeError(f"{self._text} of the stand-in of vllm {self._release} has no {name!r}: give an answer for it")


# ---- bodies of some methods ----


def _set_threshold(self, reorder_batch_threshold, *_):
    self.reorder_batch_threshold = reorder_batch_threshold


def _accepts(names):
    """A class method: whether the list of this attribute or method is empty or has a value. None is accepted."""
    def accepts(cls, value):
        listed = getattr(cls, names)
        listed = listed() if callable(listed) else listed
        return value is None or not listed or value in listed
    return accepts


# By "Class.method" or the name of a function. Arguments are those of the table, with defaults filled in.
DEFAULTS = {
    "AttentionBackend.customize_spec": lambda cls, spec: spec,
    "AttentionBackend.full_cls_name": lambda cls: (cls.__module__, cls.__qualname__),
    "AttentionBackend.supports_attn_type": lambda cls, attn_type: attn_type == "decoder",
    "AttentionBackend.supports_dcp": lambda cls: cls.get_impl_cls().supports_dcp,
    "AttentionBackend.supports_dtype": _accepts("supported_dtypes"),
    "AttentionBackend.supports_head_size": _accepts("get_supported_head_sizes"),
    "AttentionBackend.supports_kv_cache_dtype": _accepts("supported_kv_cache_dtypes"),
    "AttentionBackend.supports_pcp": lambda cls: cls.get_impl_cls().supports_pcp,
    "AttentionImplBase.get_impl_variants": lambda self: (self,),
    "AttentionMetadataBuilder._init_reorder_batch_threshold": _set_threshold,
    "AttentionMetadataBuilder.build_for_cudagraph_capture": lambda self, metadata: self.build(0, metadata),
    "AttentionMetadataBuilder.build_for_drafting": lambda self, metadata, draft_index: self.build(0, metadata, fast_build=True),
    "AttentionMetadataBuilder.get_cudagraph_support": lambda cls, vllm_config, kv_cache_spec: cls._cudagraph_support,
    "CommonAttentionMetadata.batch_size": lambda self: self.seq_lens.shape[0],
    "CommonAttentionMetadata.replace": lambda self, **changes: dataclasses.replace(self, **changes),
    "init_logger": logging.getLogger,
}


# ---- values and signatures of the table ----


class Values:
    """Makes values of a table's texts. class_of: gives the class of a name, or None."""

    def __init__(self, release, class_of):
        self._release, self._class_of = release, class_of

    def value(self, text):
        return self._of(ast.parse(text, mode="eval").body)

    def _of(self, node):
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)](map(self._of, node.elts))
        if isinstance(node, ast.Dict):
            return {self._of(key): self._of(value) for key, value in zip(node.keys, node.values)}
        if isinstance(node, ast.Call):
            called = self._of(node.func)
            words = {word.arg: self._of(word.value) for word in node.keywords}
            if isinstance(called, Named):
                return Named(ast.unparse(node), self._release)
            return called(*map(self._of, node.args), **words)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(ast.unparse(node))
        value = ast.literal_eval(node)
        return Named("...", self._release) if value is ... else value

    def _named(self, text):
        first, *rest = text.split(".")
        try:
            found = self._class_of(first) or (
                importlib.import_module("torch") if first == "torch" else getattr(builtins, first))
            for name in rest:
                found = getattr(found, name)
            return found
        except (ImportError, AttributeError):
            return Named(text, self._release)

    def signature(self, arguments, first=None):
        """An inspect.Signature of a table's arguments, with self or cls before them."""
        kinds, kind = inspect.Parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD
        made = [inspect.Parameter(first, kind)] if first else []
        for text in arguments:
            name, _, default = text.partition("=")
            if text == "/":
                made = [one.replace(kind=kinds.POSITIONAL_ONLY) for one in made]
            elif text == "*":
                kind = kinds.KEYWORD_ONLY
            elif text.startswith("**"):
                made.append(inspect.Parameter(name[2:], kinds.VAR_KEYWORD))
            elif text.startswith("*"):
                made.append(inspect.Parameter(name[1:], kinds.VAR_POSITIONAL))
                kind = kinds.KEYWORD_ONLY
            else:
                made.append(inspect.Parameter(name, kind, default=self.value(default) if default else inspect.Parameter.empty))
        return inspect.Signature(made)

    def field(self, text, **options):
        """A dataclasses.field() of "name=default"."""
        default = text.partition("=")[2]
        if default:
            value = self.value(default)
            if default.endswith(")") or value.__class__.__hash__ is None:
                options["default_factory"] = lambda: self.value(default)
            else:
                options["default"] = value
        return dataclasses.field(**options)


# ---- classes and functions ----


class Maker:
    """Makes the classes and functions of a table. answers: {"Class.method" or function: callable, value's name: value}."""

    def __init__(self, table, answers):
        self.table, self.release, self.classes = table, table["release"], {}
        self.values = Values(self.release, lambda name: self._class(name) if name in table["classes"] else None)
        self.answers = {**DEFAULTS, **answers}
        for name in table["classes"]:
            self._class(name)

    def function(self, name, facts, first=None):
        """A function that checks its arguments. first: "self" or "cls", for a method "Class.method"."""
        signature = self.values.signature(facts["arguments"], first)

        def call(*arguments, **words):
            bound = signature.bind(*arguments, **words)
            bound.apply_defaults()
            if name in self.answers:
                return self.answers[name](*bound.args, **bound.kwargs)
            if name.endswith(".__init__"):
                return _assign(bound.arguments)
            if "returns" in facts:
                return self.values.value(facts["returns"])
            raise getattr(builtins, facts.get("raises", ""), NotImplementedError)(
                f"{name} of the stand-in of vllm {self.release} {'raises this' if 'raises' in facts else 'has no body'}: "
                "give an answer for it")

        call.__name__ = name.split(".")[-1]
        call.__qualname__, call.__signature__ = name, signature
        return abc.abstractmethod(call) if facts.get("abstract") else call

    def _method(self, owner, name, facts):
        kind = facts["kind"]
        made = self.function(f"{owner}.{name}", facts, {"static": None, "class": "cls"}.get(kind, "self"))
        return {"static": staticmethod, "class": classmethod, "property": property}.get(kind, lambda same: same)(made)

    def _class(self, name):
        if name not in self.classes:
            facts = self.table["classes"][name]
            outer = name.rpartition(".")[0]
            bases = self._bases(facts)
            made = types.new_class(name.split(".")[-1], bases, exec_body=lambda body: self._fill(name, facts, body))
            if "dataclass" in facts:
                options = {word: self.values.value(text) for word, text in facts["dataclass"].items() if word != "kw_only"}
                made = dataclasses.dataclass(**options)(made)
            self.classes[name] = made
            if outer:
                setattr(self._class(outer), made.__name__, made)
        return self.classes[name]

    def _bases(self, facts):
        made = []
        for base in (base.split(".")[-1] for base in facts["bases"]):
            found = self._class(base) if base in self.table["classes"] else _BASES.get(base)
            if found is not None:
                made.append(found[T] if getattr(found, "__parameters__", ()) and found is not typing.Generic[T] else found)
        return tuple(made)

    def _fill(self, name, facts, body):
        """Puts members, fields, attributes and methods into the namespace of a class."""
        body["__module__"], body["__qualname__"] = facts["module"], name
        for text in facts.get("members", ()):
            member, _, value = text.partition("=")
            body[member] = enum.auto() if value == "auto()" else self.values.value(value)
        body["__annotations__"] = annotations = {}
        for kind in _FIELDS:
            options = {"keyword_fields": {"kw_only": True}, "fields_without_argument": {"init": False}}.get(kind, {})
            for text in facts.get(kind, ()):
                field = text.partition("=")[0]
                annotations[field], body[field] = object, self.values.field(text, **options)
        for attribute, value in facts.get("attributes", {}).items():
            annotations.setdefault(attribute, typing.ClassVar[object])
            if value is not None:
                body[attribute] = self.values.value(value)
        for method, its_facts in facts.get("methods", {}).items():
            if method == "__new__":
                body[method] = _new(facts.get("instance", ()))
            elif method == "__init__" or not (method.startswith("__") and method.endswith("__")):
                body[method] = self._method(name, method, its_facts)


def _assign(arguments):
    """The body of an __init__ of the contract: each argument becomes an attribute."""
    values = dict(arguments)
    made = values.pop("self")
    for name, value in values.items():
        object.__setattr__(made, name, value)


def _new(attributes):
    """A __new__ for one rank: each *_world_size is 1 and each *_rank is 0. Other attributes keep the class's value."""
    def make(cls, *arguments, **words):
        made = object.__new__(cls)
        for name in attributes:
            if name.endswith(("_world_size", "_rank")):
                setattr(made, name, int(name.endswith("_world_size")))
        return made
    return make


# ---- the registry ----


class Registry:
    """A function that registers backends and the methods of its enum, over one record {member's name: class path}."""

    def __init__(self, maker, enum_name, function_name):
        self.registered = {}
        self._enum, self._function_name = maker.classes[enum_name], function_name
        self._has_dynamic_members = "register" in maker.table["classes"][enum_name].get("methods", {})
        self._release = maker.release

    def answers(self):
        answers = {"get_path": self._path, "get_class": self._class,
                   "is_overridden": lambda member: member.name in self.registered,
                   "clear_override": lambda member: self.registered.pop(member.name, None) and None}
        return {self._function_name: self.register,
                **{f"{self._enum.__name__}.{name}": answer for name, answer in answers.items()}}

    def register(self, backend, class_path=None, *_, **__):
        """Records a class path, or gives a decorator that does. A text becomes a new member in releases whose enum has
        register()."""
        if isinstance(backend, str) and self._has_dynamic_members:
            backend = self._new_member(backend, class_path or "")
        if not isinstance(backend, self._enum):
            raise TypeError(f"{self._function_name} of vllm {self._release} takes a member of {self._enum.__name__}, not "
                            f"{backend!r}")

        def record(cls):
            self.registered[backend.name] = f"{cls.__module__}.{cls.__qualname__}"
            return cls

        if class_path is None:
            return record
        self.registered[backend.name] = class_path
        return lambda cls: cls

    def _new_member(self, name, value):
        if name in self._enum.__members__:
            raise ValueError(f"{name} is a member of {self._enum.__name__} already")
        member = object.__new__(self._enum)
        member._name_, member._value_ = name, value
        setattr(self._enum, name, member)
        self._enum._member_map_[name] = member
        self._enum._member_names_.append(name)
        return member

    def _path(self, member, include_classname=True):
        path = self.registered.get(member.name, member.value)
        if not path:
            raise ValueError(f"{member.name} is not registered")
        return path if include_classname else path.rpartition(".")[0]

    def _class(self, member):
        module, _, name = self._path(member).rpartition(".")
        return getattr(importlib.import_module(module), name)


# ---- modules ----


class StandInModule(types.ModuleType):
    """A module whose errors about missing names say the release."""

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{self.__name__} of the stand-in of vllm {self.__dict__['_release']} has no {name!r}")


class Modules(importlib.abc.MetaPathFinder):
    """The modules by name, and the finder that refuses all others of the package."""

    def __init__(self, release):
        self.release, self.made = release, {}
        self.module("vllm").__version__ = release

    def module(self, name):
        """A module, with the packages that it is in."""
        if name not in self.made:
            origin = f"the stand-in of vllm {self.release}"  # "cannot import name ... from ..." shows it
            made = self.made[name] = StandInModule(name)
            made._release, made.__file__, made.__path__ = self.release, origin, []
            made.__spec__ = importlib.util.spec_from_loader(name, None, origin=origin, is_package=True)
            package, _, last = name.rpartition(".")
            if package:
                setattr(self.module(package), last, made)
        return self.made[name]

    def put(self, full, value):
        module, _, name = full.rpartition(".")
        setattr(self.module(module), name, value)

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "vllm" or fullname.startswith("vllm."):
            raise ModuleNotFoundError(f"the stand-in of vllm {self.release} has no module {fullname!r}", name=fullname)


def _fill_modules(maker, modules):
    """Puts classes, functions, literals, variables and groups of plugins, then the names that the built-in backends import."""
    table = maker.table
    for name, made in maker.classes.items():
        if "." not in name:
            modules.put(f"{made.__module__}.{name}", made)
    known = dict(maker.classes)
    for name, facts in table["functions"].items():
        known[name] = maker.function(name, facts)
        modules.put(f"{facts['module']}.{name}", known[name])
    for name, facts in table["literals"].items():
        known[name] = typing.Literal[tuple(facts["values"])]
        modules.put(f"{facts['module']}.{name}", known[name])
    for name, facts in table["variables"].items():
        modules.put(f"{facts['module']}.{name}", maker.answers.get(name, ast.literal_eval(facts["value"])))
    for name, group in table["plugins"].items():
        modules.put(f"vllm.plugins.{name}", group)
    for facts in table["backends"].values():
        for full, kind in facts["imports"].items():
            name = full.rpartition(".")[2]
            if kind == "module":
                modules.module(full)
            else:
                modules.put(full, known[name] if name in known else _unknown(maker, full, kind))


def _unknown(maker, full, kind):
    """An object for a name about which the table has no facts: the answer for it, a class, a function or a Named."""
    name = full.rpartition(".")[2]
    made = {"class": lambda: type(name, (), {"__module__": full.rpartition(".")[0]}),
            "function": lambda: maker.function(name, {"arguments": ["*arguments", "**words"]})}
    return maker.answers[name] if name in maker.answers else made.get(kind, lambda: Named(full, maker.release))()


@contextlib.contextmanager
def stand_in(table, answers=None, fresh=()):
    """Puts the modules of a table into sys.modules, and takes them out again.

    answers: {"Class.method" or a function's name: callable, a value's name: value}; names that the release lacks are ignored.
    fresh: modules to be imported anew within, such as the adapter's. They are forgotten before and after.
    Gives the module vllm; its attribute `registered` is {member of AttentionBackendEnum: class path}.
    """
    maker = Maker(table, answers or {})
    registries = [Registry(maker, *names) for names in REGISTRIES if names[0] in maker.classes]
    for registry in registries:
        maker.answers = {**registry.answers(), **maker.answers}
    modules = Modules(table["release"])
    _fill_modules(maker, modules)
    modules.made["vllm"].registered, *_ = [registry.registered for registry in registries]
    kept = {name: sys.modules.pop(name) for name in list(sys.modules)
            if name == "vllm" or name.startswith("vllm.") or name in fresh}
    sys.modules.update(modules.made)
    sys.meta_path.insert(0, modules)
    try:
        yield modules.made["vllm"]
    finally:
        sys.meta_path.remove(modules)
        for name in [*modules.made, *fresh]:
            sys.modules.pop(name, None)
        sys.modules.update({name: module for name, module in kept.items() if name not in fresh})


# ---- checks of a subclass ----


def signature_problems(cls, table):
    """Lines about overrides that cannot be called as the contract's methods are: all arguments by position, all by name, and
    only those without a default. __init__ is compared with that of the contract's own module, which the engine calls."""
    problems = []
    for base in cls.__mro__[1:]:
        facts = table["classes"].get(base.__qualname__, {}) if base.__module__.startswith("vllm.") else {}
        for name, method in facts.get("methods", {}).items():
            if name == "__init__" and base.__module__ != CONTRACT:
                continue
            own = inspect.getattr_static(cls, name)
            if own is not inspect.getattr_static(base, name, None) and name != "__new__":
                problems += [f"{cls.__name__}.{name}: {problem}" for problem in _override_problems(own, method)]
    return sorted(set(problems))


def _override_problems(own, method):
    kind = {staticmethod: "static", classmethod: "class", property: "property"}.get(type(own), "instance")
    if kind != method["kind"] and {kind, method["kind"]} != {"static", "class"}:
        return [f"expected kind {method['kind']}, not {kind}"]
    if kind == "property" or any(text.startswith("*") for text in method["arguments"]):
        return []
    names = [text.partition("=")[0] for text in method["arguments"] if text != "/"]
    signature = inspect.signature(getattr(own, "__func__", own))
    first = [] if kind == "static" else [None]
    needed = [text for text in method["arguments"] if "=" not in text and text != "/"]
    calls = [(first + names, {}), (first + needed, {})] + [(first, dict.fromkeys(names))] * ("/" not in method["arguments"])
    found = []
    for arguments, words in calls:
        try:
            signature.bind(*arguments, **words)
        except TypeError as error:
            found.append(f"expected ({', '.join(method['arguments'])}): {error}")
    return found[:1]
