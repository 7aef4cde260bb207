"""attnsmith cache stat --prometheus, read by the rules of the text format (version 0.0.4)."""

import os
import re

from support import CliTest, main

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
# A label's value: any character but a backslash, a quotation mark and a line feed, which are escaped.
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^\\"\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL},?)*)\}})?[ \t]+(\S+)(?:[ \t]+(-?\d+))?")


def unescaped(text):
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def parse(test, text):
    """{name: (type, help, {labels: value})}; fails the test for what a reader may refuse."""
    test.assertTrue(text.endswith("\n"), "the last line ends with a line feed")
    metrics, current = {}, None
    for line in text[:-1].split("\n"):
        if comment := re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.*)", line):
            kind, name, rest = comment.groups()
            if kind == "HELP":
                test.assertNotIn(name, metrics, "a metric stands in one place")
                test.assertNotRegex(rest, r"\\(?![\\n])")
                metrics[name] = [None, rest, {}]
                current = name
            else:
                test.assertEqual(name, current, "the type stands below the help")
                test.assertIsNone(metrics[name][0], "and before the samples, once")
                test.assertIn(rest, ("counter", "gauge", "histogram", "summary", "untyped"))
                metrics[name][0] = rest
            continue
        test.assertFalse(line.startswith("#"), line)
        found = SAMPLE.fullmatch(line)
        test.assertTrue(found, line)
        name, labels, value, stamp = found[1], found[2], found[5], found[6]
        test.assertEqual(name, current, "samples stand below their own metric")
        test.assertIsNotNone(metrics[name][0])
        test.assertIsNone(stamp, "node_exporter refuses samples with a time")
        pairs = [(label, unescaped(text)) for label, text in re.findall(LABEL, labels or "")]
        test.assertEqual(len(dict(pairs)), len(pairs), "no label twice")
        test.assertNotIn(frozenset(pairs), metrics[name][2], "no series twice")
        metrics[name][2][frozenset(pairs)] = float(value)
    for name, (_, _, samples) in metrics.items():
        test.assertTrue(samples, name)
    return metrics


class Prometheus(CliTest):
    def scrape(self, *places):
        flags = [word for place in places for word in ("--cache", place)]
        return parse(self, self.assert_ok(self.run_cli("cache", "stat", "--prometheus", *flags)).out)

    def value(self, metrics, name, **labels):
        for given, value in metrics[name][2].items():
            if labels.items() <= dict(given).items():
                return value
        self.fail(f"{name} has no sample with {labels}: {metrics[name]}")

    def test_it_says_what_the_json_says(self):
        self.prewarm_small("own")
        self.prewarm_small("own")
        (self.folder / "layer").mkdir()
        places = [str(self.folder / "own"), str(self.folder / "layer")]
        metrics = self.scrape(*places)
        json = self.run_cli("cache", "stat", "--json", "--cache", places[0], "--cache", places[1]).json()
        gauges = {"attnsmith_cache_entries": "entries", "attnsmith_cache_size_bytes": "bytes",
                  "attnsmith_cache_allocated_bytes": "allocated_bytes", "attnsmith_cache_limit_bytes": "max_bytes",
                  "attnsmith_cache_quarantined_entries": "quarantined", "attnsmith_cache_staging_files": "staging",
                  "attnsmith_cache_writable": "writable"}
        for name, field in gauges.items():
            self.assertEqual(metrics[name][0], "gauge")
            self.assertEqual(self.value(metrics, name, directory=places[0]), json[field], name)
        layer = json["layers"][0]
        self.assertEqual(self.value(metrics, "attnsmith_cache_entries", directory=places[1], layer="1"), layer["entries"])
        self.assertEqual(self.value(metrics, "attnsmith_cache_usable", layer="1"), 1)
        for field, value in json["counters"].items():
            if field == "since":
                continue
            name = re.sub("^bytes_(.*)", r"\1_bytes", field)
            self.assertEqual(self.value(metrics, f"attnsmith_cache_{name}_total"), value, name)
        self.assertGreater(json["counters"]["hits"], 0)
        self.assertGreater(self.value(metrics, "attnsmith_cache_counting_since_timestamp_seconds"), 1.6e9)

    def test_names_and_units(self):
        self.prewarm_small("own")
        for name, (kind, told, _) in self.scrape("own").items():
            with self.subTest(name):
                self.assertTrue(name.startswith("attnsmith_cache_"))
                self.assertEqual(name.endswith("_total"), kind == "counter")
                self.assertRegex(told, r"^[A-Z].*\.$")
                self.assertNotRegex(name, "_(ms|kb|mib|kibibytes|milliseconds)(_|$)")
                if "bytes" in name:
                    self.assertRegex(name, "_bytes(_total)?$")

    def test_a_directory_of_any_name(self):
        for name in ('a "b" c', "back\\slash\\n", "two\nlines", "r\u00e9seau", "esc\x1b", "comma,=}{"):
            with self.subTest(name):
                (self.folder / name).mkdir()
                metrics = self.scrape(str(self.folder / name))
                ((labels, _),) = metrics["attnsmith_cache_limit_bytes"][2].items()
                self.assertEqual(dict(labels)["directory"], str(self.folder / name).replace("\x1b", "\\x1b"))
        name = self.folder / os.fsdecode(b"\xff\xfe")
        name.mkdir()
        result = self.run_cli("cache", "stat", "--prometheus", "--cache", name)
        parse(self, self.assert_ok(result).out)

    def test_what_cannot_be_read_is_not_usable(self):
        """A file where a shard belongs, in the own directory or in a layer."""
        for folder in ("own", "layer"):
            (self.folder / folder).mkdir()
        for broken, usable in ((), (1, 1)), (("own",), (0, 1)), (("layer",), (1, 0)), (("own", "layer"), (0, 0)):
            with self.subTest(broken=broken):
                for folder in ("own", "layer"):
                    (self.folder / folder / "ab").unlink(missing_ok=True)
                for folder in broken:
                    self.write(f"{folder}/ab", "no directory")
                result = self.run_cli("cache", "stat", "--prometheus", "--cache", "own", "--cache", "layer")
                self.assertEqual(result.code, 1 if broken else 0, result.err)
                metrics = parse(self, result.out)
                self.assertEqual(tuple(self.value(metrics, "attnsmith_cache_usable", layer=layer) for layer in "01"), usable)

    def test_nothing_there_yet(self):
        metrics = parse(self, self.assert_ok(self.run_cli("cache", "stat", "--prometheus")).out)
        self.assertEqual(self.value(metrics, "attnsmith_cache_entries"), 0)
        self.assertEqual(self.value(metrics, "attnsmith_cache_hits_total"), 0)
        self.assertNotIn("attnsmith_cache_counting_since_timestamp_seconds", metrics)

    def test_one_format_at_a_time(self):
        result = self.run_cli("cache", "stat", "--prometheus", "--json")
        self.assert_refused(result, "--json cannot be given beside --prometheus")


if __name__ == "__main__":
    main()
