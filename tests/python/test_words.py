"""The typed words against the library's table of fields."""

import collections.abc
import re
import typing
import unittest

from support import MODELS, SMALL, PythonTest, attnsmith

from attnsmith import words

LLAMA = str(MODELS / "llama-3.1-8b.json")
NONSENSE = "no such word"


def members(annotation):
    """The types that a Union is of, None left out."""
    found = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Union else (annotation,)
    return [one for one in found if one is not type(None)]


def literal_words(annotation):
    return [word for one in members(annotation) if typing.get_origin(one) is typing.Literal
            for word in typing.get_args(one)]


def listed(accepted):
    """The names in "a, b or c"."""
    return re.findall(r"\w+", re.sub(r"\(.*?\)|\bone of\b|\bor\b", " ", accepted))


class Table(PythonTest):
    def accepted(self, function, *arguments, **options):
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            function(*arguments, **options)
        return caught.exception.accepted

    def test_the_words_of_a_request(self):
        known = listed(self.accepted(attnsmith.plan, **SMALL, zzzzzz=1, sm=90))
        self.assertEqual(sorted(known), sorted([*typing.get_type_hints(words.Request), "sm"]))

    def test_the_options_of_a_model(self):
        known = sorted(listed(self.accepted(attnsmith.plan_model, LLAMA, zzzzzz=1, sm=90)))
        self.assertEqual(sorted(typing.get_type_hints(words.ModelOptions)), known)
        # Strictness is an argument of its own of what does work first.
        self.assertEqual(sorted([*typing.get_type_hints(words.ModelChoices), "strict"]), known)

    def test_their_types(self):
        """What the library says that it wants of a word is what its annotation is."""
        for name, annotation in typing.get_type_hints(words.Request).items():
            with self.subTest(word=name):
                given = {**SMALL, "head_dim": None, "head_dim_qk": 64, "head_dim_vo": 64, name: NONSENSE}
                if name == "head_dim":
                    del given["head_dim_qk"], given["head_dim_vo"]
                wanted = self.accepted(attnsmith.plan, **given, sm=90)
                if literal_words(annotation):
                    self.assertLessEqual(set(listed(wanted)), set(literal_words(annotation)))
                elif members(annotation) == [bool]:
                    self.assertEqual(wanted, "true or false")
                elif members(annotation) == [words.Integer]:
                    self.assertRegex(wanted, "integer|16, 8, 4 or 2")
                else:
                    self.assertEqual(set(members(annotation)), set(members(words.Number)))
                    self.assertEqual(wanted, "a number")

    def test_every_word_of_a_choice_is_known(self):
        for name, annotation in typing.get_type_hints(words.Request).items():
            for word in literal_words(annotation):
                with self.subTest(word=name, choice=word):
                    given = {**SMALL, name: word}
                    if name == "page_order" or word == "paged":
                        given.update(kv="paged", page_size=16)
                    if name in ("o_dtype", "kv_dtype") and word.endswith("16"):
                        given["dtype"] = word  # o, k and v may be of no other type of 16 bits
                    if name == "kv_scale":
                        given["kv_dtype"] = "e4m3"
                    if name in ("slots", "rope", "rope_table", "q_dtype"):
                        given = {"op": "append", "head_dim": 64, "q_heads": 8, "rope": "half", name: word}
                        if name == "q_dtype" and word.endswith("16"):
                            given["dtype"] = word
                    try:
                        attnsmith.plan(**given, sm=90)
                    except attnsmith.Unsupported:
                        pass  # a word of the vocabulary all the same
                    except attnsmith.InvalidRequest as error:
                        self.assertNotEqual(error.field, name, str(error))

    def test_words_that_may_be_several(self):
        """One of them is what it is in a request; beside it stand several of the same."""
        for several, single in ((words.RequestChoices, words.Request), (words.ModelChoices, words.ModelOptions)):
            one = typing.get_type_hints(single)
            self.assertEqual(set(typing.get_type_hints(several)), set(one) - {"strict"})
            for name, annotation in typing.get_type_hints(several).items():
                kinds = members(annotation)
                lists = [kind for kind in kinds if typing.get_origin(kind) is collections.abc.Collection]
                self.assertEqual(set(kinds) - set(lists), set(members(one[name])), name)
                for kind in lists:
                    self.assertEqual(set(members(typing.get_args(kind)[0])), set(members(one[name])), name)

    def test_the_library_takes_several_of_just_these(self):
        for name, annotation in typing.get_type_hints(words.RequestChoices).items():
            listed = any(typing.get_origin(kind) is collections.abc.Collection for kind in members(annotation))
            given = {**SMALL, "kv": "paged", "page_size": 16}
            if name in ("slots", "rope_table", "q_dtype", "check_slots"):
                given.update(op="append", rope="half")
            value = attnsmith.plan(**given, sm=90)["request"].get(name, 64)
            given.pop("head_dim" if name.startswith("head_dim") else name, None)
            if name.startswith("head_dim_"):
                given.update(head_dim_qk=64, head_dim_vo=64)
            with self.subTest(word=name):
                try:
                    self.runtime().coverage({**given, name: [value]})
                    self.assertTrue(listed)
                except attnsmith.InvalidRequest as error:
                    self.assertFalse(listed, str(error))


if __name__ == "__main__":
    unittest.main()
