"""Spellings of earlier versions still work, with a DeprecationWarning that says the new one, at the caller's line."""

import unittest
import warnings

from support import MODELS, PythonTest, attnsmith

LLAMA = str(MODELS / "llama-3.1-8b.json")


class Deprecated(PythonTest):
    def warned(self, function, *arguments, **words):
        """What a call gives, and the text of its one warning."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(*arguments, **words)
        self.assertEqual([(one.category, one.filename) for one in caught], [(DeprecationWarning, __file__)])
        return result, str(caught[0].message)

    def test_options_of_a_runtime_by_position(self):
        runtime, text = self.warned(attnsmith.Runtime, self.folder, False)
        self.addCleanup(runtime.close)
        self.assertEqual(text, "attnsmith: Runtime() takes use_cache by name")
        with self.assertRaisesRegex(attnsmith.CacheError, "switched off"):
            runtime.cache("dir")

    def test_the_sm_of_plan_model_by_position(self):
        for plan_model in (attnsmith.plan_model, self.runtime().plan_model):
            plans, text = self.warned(plan_model, LLAMA, 90)
            self.assertIn("takes sm by name", text)
            self.assertEqual(plans, plan_model(LLAMA, sm=90))

    def test_an_argument_by_position_and_by_name(self):
        self.assert_refused("sm", attnsmith.plan_model, LLAMA, 90, sm=80)

    def test_new_spellings_do_not_warn(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.runtime(use_cache=False).plan_model(LLAMA, sm=90)

    def test_types_by_their_earlier_names(self):
        for module, name, now in ((attnsmith.words, "Coverage", attnsmith.RequestChoices),
                                  (attnsmith.words, "ModelCoverage", attnsmith.ModelChoices),
                                  (attnsmith, "ModelCoverage", attnsmith.ModelChoices)):
            kind, text = self.warned(getattr, module, name)
            self.assertIs(kind, now)
            self.assertIn(f"{name} is now called {now.__name__}", text)
        with self.assertRaises(AttributeError):
            attnsmith.words.Coverages


if __name__ == "__main__":
    unittest.main()
