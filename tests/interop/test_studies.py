"""scripts/studies: verdicts, pages and figures from summaries, and what its check finds; scripts/paper."""

import contextlib
import copy
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import tempfile
import unittest
import zipfile
from unittest import mock
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


studies = script("studies")
paper = script("paper")

TABLE = "fewer packets"


def row(name, published, ours, met=None):
    return {"row": name, "published": published, "ours": ours, "low_95": ours - 1, "high_95": ours + 1, "goal": None, "met": met,
            "failed": 0, "timeout": 0}


DATA = {"own": {
    "experiment": "own", "title": "Own", "seed": 7, "days": ["2026-12-01"], "version": "0.1.0", "options": ["--repetitions", "2"],
    "build": "release build", "note": "nothing else ran", "machine": {"cores": 2, "memory_gib": 4, "tcp": "bbr"},
    "samples": {"ok": 5, "timeout": 1}, "per_cell": [2, 2], "cells": 3, "load": [0.1, 0.2], "late_p99_ms": [0.1, 0.5],
    "tables": {TABLE: [row("wired", 40.0, 50.0, True), row("wireless", 40.0, 10.0, False)]},
    "goals": {"None lost": [{"cell": "way=quic", "unit": "messages", "failed": 1, "timeout": 0, "at_least": None, "at_most": 0.0,
                             "figure": 0.0, "low_95": 0.0, "high_95": 0.0, "worst_sample": 0.0, "met": False}]},
    "figures": [{"cell": "way=tcp", "measure": "seconds", "unit": "s", "figure": None, "low_95": None, "high_95": None, "ok": 0,
                 "failed": 0, "timeout": 2}],
}}

DOCUMENT = {
    "about": "About.", "reading": "- words", "repeat": "    make studies",
    "runs": [{"name": "own"}],
    "studies": [{
        "page": "first", "title": "First", "work": "A. Author, *Work* (2020)", "about": "It measured.", "summary": "It holds.",
        "differs": ["everything"], "not_reproduced": ["its hardware"],
        "findings": [
            {"title": "Fewer packets", "published": "40 %", "why": "Because.",
             "sources": [{"experiment": "own", "table": TABLE, "unit": "% fewer"}, {"experiment": "own", "goal": "None lost"}]},
            {"title": "Never seen", "published": "much", "why": "No such device."},
        ],
    }],
}

EXPERIMENT = """
title = "Own"
measures.seconds = { title = "Time", unit = "s", from = "lines" }
[[compare]]
title = "fewer packets"
[[goals]]
title = "None lost"
"""


class Rules(unittest.TestCase):
    def test_each_rule_judges_as_it_says(self):
        for rule, published, ours, expected in [
            ("reduction", 40, 36, True), ("reduction", 40, 35, False), ("reduction", -3, 10, None), ("reduction", 40, None, False), ("shown", 40, None, None), ("ratio 0.7..1.4", 100, None, None),
            ("direction", 40, 1, True), ("direction", 40, -1, False), ("direction", 0, 5, None),
            ("ratio 0.7..1.4", 100, 140, True), ("ratio 0.7..1.4", 100, 69, False), ("ratio 0.7..1.4", None, 69, None), ("ratio 0.7..1.4 5", 4, 4, None), ("ratio 0.7..1.4", 0, 1, None),
            ("bound 1..", None, 0.5, False), ("bound ..0", None, 0, True), ("shown", 1, 1, None),
            ("slow 20", None, None, True), ("slow 20", None, 19, False), ("slow 20", 6.6, 5, None), ("slow 20", 29, None, True),
            ("most 5", 10, 11, True), ("most 5", 10, 12, False), ("most 5", 4, 9, None), ("most 5", 4.6, 5, True),
        ]:
            self.assertIs(studies.agrees(rule, published, ours), expected, (rule, published, ours))
        # At 50 % loss, nothing arrives in less than twice the time.
        self.assertIsNone(studies.agrees("most 5 lossy", 9, 12, "50"))
        self.assertIs(studies.agrees("most 5 lossy", 9, 12, "10"), False)
        with self.assertRaisesRegex(studies.Mistake, "unknown rule `best`"):
            studies.agrees("best", 1, 1)

    def test_a_reduction_below_zero_is_an_increase(self):
        for low, high, unit, expected in [(-190, -6, "% less", "6 to 190 % more"), (-7, 25, "% less", "7 % more to 25 % less"), (4, 4, "% fewer", "4 % fewer"),
                                          (-3, 2, "ms", "−3 to 2 ms")]:
            self.assertEqual(studies.amount(low, high, unit), expected)

    def test_numbers_have_three_digits(self):
        told = [studies.number(value) for value in (None, 0, 1234.5, 56.78, 5.678, 0.1234, -3.0)]
        self.assertEqual(told, ["–", "0", "1,234", "56.8", "5.68", "0.123", "−3"])


class Pages(unittest.TestCase):
    def finding(self, **sources):
        return list(studies.measured({"sources": [{"experiment": "own", **sources}]}, DATA))

    def test_a_page_has_each_figure_the_verdict_and_what_was_not_measured(self):
        files = studies.rendered(DOCUMENT, DATA)
        page = files[studies.STUDIES / "first.md"]
        self.assertIn("| 40 % | 10 to 50 % fewer | none computed | **confirmed in part (1 of 2)** | missed in 2 of 3 |", page)
        self.assertIn("| wired | 40 | 50 (49 to 51) | % fewer | yes | met |", page)
        self.assertIn("| None lost, way quic (goal ≤ 0) (1 failed, 0 timed out) |", page)
        self.assertIn("| much | not measured | none computed | **not measured** | none |", page)
        self.assertIn("5 good, 0 failed, 1 timed out", page)
        self.assertIn("nothing else ran", page)
        overview = files[studies.STUDIES / "README.md"]
        self.assertIn("[2. Never seen](first.md#2-never-seen) | much | not measured | not measured | none |", overview)
        self.assertIn("| [First](first.md) | 2 | 0 | 0 | 1 | 0 | 0 | 0 | 1 |", overview)
        self.assertEqual(list(studies.incomplete(DOCUMENT, files)), [])

    def test_a_verdict_says_how_many_rows_agree_and_whether_only_in_sign(self):
        rows = [studies.Row("a", 1, 1, None, None, "s", agrees, None) for agrees in (True, False, False)]
        self.assertEqual(studies.verdict({}, rows), "mostly not confirmed (1 of 3)")
        self.assertEqual(studies.verdict({}, rows[:2]), "confirmed in part (1 of 2)")
        self.assertEqual(studies.verdict({}, rows[1:]), "not confirmed (0 of 2)")
        self.assertEqual(studies.verdict({"sources": [{"agrees": "direction"}]}, rows[:1]), "confirmed in sign only")
        self.assertEqual(studies.verdict({"verdict": "not comparable"}, [rows[0]._replace(agrees=None)]), "not comparable")

    def test_what_was_fitted_is_no_confirmation(self):
        rows = [studies.Row("a", 1, 1, None, None, "s", agrees, None) for agrees in (True, False)]
        self.assertEqual(studies.verdict({"fitted": True}, rows), "not comparable (a fit: 1 of 2 within)")
        self.assertEqual(studies.goal({"aim": "half", "share": 0.5, "fitted": True}, rows), "met: half")

    def test_an_estimate_is_a_line_in_what_was_measured(self):
        data = copy.deepcopy(DATA)
        data["own"]["figures"][0] |= {"figure": 10.0, "low_95": 9.0, "high_95": 11.0}
        [row] = studies.measured({"sources": [{"experiment": "own", "measure": "seconds", "cell": "way=tcp", "scale": 0.5, "offset": 3}]}, data)
        self.assertEqual((row.low, row.ours, row.high), (7.5, 8, 8.5))

    def test_a_share_is_of_the_goal_not_of_the_verdict(self):
        rows = [studies.Row("a", 1, 1, None, None, "s", agrees, None) for agrees in (True, True, False)]
        self.assertEqual(studies.goal({"aim": "most", "share": 0.6}, rows), "met: most")
        self.assertEqual(studies.verdict({"aim": "most", "share": 0.6}, rows), "confirmed in part (2 of 3)")

    def test_a_reduction_whose_interval_has_zero_in_it_does_not_agree(self):
        data = copy.deepcopy(DATA)
        data["own"]["tables"][TABLE][0]["low_95"] = -1
        rows = list(studies.measured({"sources": [{"experiment": "own", "table": TABLE}]}, data))
        self.assertEqual([row.agrees for row in rows], [None, False])

    def test_an_interval_ends_where_nothing_can_be(self):
        data = copy.deepcopy(DATA)
        data["own"]["figures"][0] |= {"figure": 40.0, "low_95": -5.0, "high_95": 85.0}
        source = {"experiment": "own", "measure": "seconds", "cell": "way=tcp", "most": 60}
        self.assertEqual([(row.low, row.high) for row in studies.measured({"sources": [source]}, data)], [(0, 60)])

    def test_labels_and_headlines_name_rows(self):
        finding = {"headlines": ["packets by", "seconds"], "none": "no end", "sources": [
            {"experiment": "own", "table": TABLE, "label": "packets by {row}", "names": {"wired": "Ethernet"}, "unit": "%"},
            {"experiment": "own", "measure": "seconds", "cell": "way=tcp", "label": "seconds over {way}"}]}
        rows = list(studies.measured(finding, DATA))
        self.assertEqual([row.name for row in rows], ["packets by Ethernet", "packets by wireless", "seconds over tcp (0 failed, 2 timed out)"])
        self.assertEqual(studies.ours(finding, rows), "packets by: 10 to 50 %; seconds: no end")

    def test_a_cell_without_a_time_counts_as_slow_and_shows_why(self):
        rows = self.finding(measure="seconds", cell="way=tcp", agrees="slow 20")
        self.assertEqual([(row.name, row.ours, row.agrees) for row in rows], [("way tcp (0 failed, 2 timed out)", None, True)])
        self.assertEqual(studies.verdict({}, rows), "confirmed")

    def test_many_rows_are_those_that_miss_the_goal(self):
        data = copy.deepcopy(DATA)
        data["own"]["tables"][TABLE] = [row(f"cell-{place}", 40.0, 50.0, place != 7) for place in range(studies.MAX_ROWS + 1)]
        page = studies.rendered(DOCUMENT, data)[studies.STUDIES / "first.md"]
        self.assertIn(f"{studies.MAX_ROWS} of {studies.MAX_ROWS + 2} rows meet the goal", page)
        self.assertIn("| cell-7 |", page)
        self.assertNotIn("| cell-8 |", page)

    def test_an_aim_is_met_if_the_finding_is_confirmed(self):
        rows = self.finding(table=TABLE)
        for chosen, expected in [(rows[:1], "met: half"), (rows, "missed: half"), ([], "not measured: half")]:
            self.assertEqual(studies.goal({"aim": "half"}, chosen), expected)

    def test_a_limit_may_be_the_share_of_one_row_in_another(self):
        rows = self.finding(table=TABLE)
        self.assertEqual(studies.limit({"limit_share": ["wireless", "wired"]}, rows), "20 % (wireless of wired)")
        self.assertEqual(studies.limit({"limit_share": ["wireless", "none"]}, rows), "not measured")

    def test_two_tables_give_a_reduction(self):
        data = copy.deepcopy(DATA)
        data["own"]["tables"]["other"] = [row("wired", 80.0, 100.0)]
        finding = {"sources": [{"experiment": "own", "table": TABLE, "than": "other", "unit": "% less", "agrees": "direction"}]}
        rows = list(studies.measured(finding, data))
        self.assertEqual([(row.published, row.ours, row.agrees) for row in rows], [(50, 50, True)])

    def test_two_cells_give_a_reduction(self):
        data = copy.deepcopy(DATA)
        data["own"]["figures"] = [{**DATA["own"]["figures"][0], "cell": f"way={way}", "figure": figure} for way, figure in [("quic", 1), ("tcp", 4)]]
        source = {"experiment": "own", "measure": "seconds", "cell": "way=quic", "than_cell": "way=tcp", "published": 10, "agrees": "direction"}
        rows = list(studies.measured({"sources": [source]}, data))
        self.assertEqual([(row.published, row.ours, row.agrees) for row in rows], [(10, 75, True)])

    def test_a_figure_is_an_image_with_all_points(self):
        files = studies.rendered(DOCUMENT, DATA)
        image = ElementTree.fromstring(files[studies.STUDIES / "figures" / "first-1.svg"])
        # Two of the legend, two per row.
        self.assertEqual(len(image.findall(".//{http://www.w3.org/2000/svg}circle")), 2 + 2 * 2)

    def test_no_figure_without_most_of_its_rows(self):
        for ended, drawn in [(2, False), (3, True)]:
            data = copy.deepcopy(DATA)
            data["own"]["tables"][TABLE] = [row(f"{place}", 40.0, 50.0) for place in range(5)]
            for late in data["own"]["tables"][TABLE][ended:]:
                late |= {"ours": None, "low_95": None, "high_95": None, "timeout": 3}
            self.assertEqual(studies.STUDIES / "figures" / "first-1.svg" in studies.rendered(DOCUMENT, data), drawn)

    def test_a_figure_of_one_value_and_of_negative_ones(self):
        for values in [(0, 0), (5, 5), (-3, 2), (0.01, 900)]:
            rows = [studies.Row("a", values[0], values[1], values[1], values[1], "s", None, None)] * 2
            ElementTree.fromstring(studies.drawing("<title> & more", rows, "s"))


class Paper(unittest.TestCase):
    """Files for a paper, from a report in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results, self.out = pathlib.Path(folder.name, "results"), pathlib.Path(folder.name, "out")
        (self.results / "figures").mkdir(parents=True)
        (self.results / "figures/1-1.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><style>:root { --ink: #1b1f24; }\n'
            "@media (prefers-color-scheme: dark) { :root { --ink: #ffffff; } }\n"
            '</style><rect width="9" height="9" fill="var(--ink)"/></svg>', encoding="utf-8")
        rows = [["experiment", "conditions", "measure", "unit", "figure", "low_95", "high_95", "samples", "ok", "failed", "timeout", "way", "loss"],
                ["own", "way=tcp loss=5%", "took_s", "s", "1.5", "1.25", "-2", "2", "2", "0", "0", "tcp", "5%"],
                ["own", "way=quic_0 loss=5%", "took_s", "s", "", "", "", "0", "0", "1", "1", "quic_0", "5%"],
                ["own", "way=none loss=5%", "took_s", "s", "", "", "", "0", "0", "0", "0", "none", "5%"]]
        (self.results / "report.csv").write_text("\n".join(",".join(row) for row in rows), encoding="utf-8")

    def paper(self, folder):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            return paper.main([str(folder), str(self.out)]), said.getvalue()

    def test_tables_have_what_differs_in_latex(self):
        self.paper(self.results)
        tables = (self.out / "tables.tex").read_text(encoding="utf-8")
        self.assertIn(r"\caption{own: took\_s in s}", tables)
        self.assertIn(r"way & took\_s & 95 \% interval & good samples \\", tables)
        self.assertIn(r"tcp & 1.5 & 1.25 to $-$2 & 2 of 2 \\", tables)
        self.assertIn(r"quic\_0 & -- & -- & 0 of 2 \\", tables)
        self.assertNotIn("none", tables)

    def test_a_figure_is_in_its_light_colours(self):
        svg = paper.plain((self.results / "figures/1-1.svg").read_text(encoding="utf-8"))
        self.assertIn('fill="#1b1f24"', svg)
        self.assertNotIn("#ffffff", svg)

    def test_figures_are_pdf_files_where_something_makes_them(self):
        status, said = self.paper(self.results)
        if paper.converter() is None:
            self.assertEqual(status, 1)
            self.assertIn("install librsvg2-bin", said)
            self.skipTest("nothing here makes PDF files")
        self.assertEqual(status, 0)
        self.assertTrue((self.out / "1-1.pdf").read_bytes().startswith(b"%PDF"))

    def test_without_a_converter_the_tables_are_written(self):
        with mock.patch.object(paper, "converter", lambda: None):
            self.assertEqual(self.paper(self.results)[0], 1)
        self.assertTrue((self.out / "tables.tex").is_file())

    def test_the_studies_have_a_table_for_each_finding_with_rows(self):
        tables = "".join(paper.of_studies())
        self.assertIn("Meter reading over HTTP/3, 6. Request completion times on 2G: not comparable", tables)

    def test_a_folder_without_a_report_is_refused(self):
        status, said = self.paper(self.out)
        self.assertEqual(status, 1)
        self.assertIn("fulmar lab report", said)


class Check(unittest.TestCase):
    """A repository of its own, with one experiment and one study."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for name, path in [("ROOT", root), ("STUDIES", root / "docs/studies"), ("EXPERIMENTS", root / "experiments")]:
            patch = mock.patch.object(studies, name, path)
            patch.start()
            self.addCleanup(patch.stop)
        studies.STUDIES.mkdir(parents=True)
        studies.EXPERIMENTS.mkdir()
        (studies.EXPERIMENTS / "own.toml").write_text(EXPERIMENT, encoding="utf-8")
        studies.write(DOCUMENT, DATA)

    def wrong(self, document=DOCUMENT, data=None):
        return "\n".join(studies.check(document, DATA if data is None else data))

    def test_pages_of_the_data_pass(self):
        self.assertEqual(self.wrong(), "")

    def test_other_data_than_the_pages_is_found(self):
        data = copy.deepcopy(DATA)
        data["own"]["tables"][TABLE][0]["ours"] = 51.0
        found = self.wrong(data=data)
        for name in ("first.md", "README.md", "figures/first-1.svg"):
            self.assertIn(f"docs/studies/{name} is not that of the data", found)

    def test_a_changed_page_and_a_stray_one_are_found(self):
        page = studies.STUDIES / "first.md"
        page.write_text(page.read_text(encoding="utf-8").replace("## 2. Never seen", ""), encoding="utf-8")
        (studies.STUDIES / "old.md").write_text("old", encoding="utf-8")
        found = self.wrong()
        self.assertIn("first.md: finding 2 has no section", found)
        self.assertIn("docs/studies/old.md belongs to no finding", found)

    def test_names_that_do_not_exist_are_found(self):
        for change, expected in [
            ({"experiment": "none", "table": TABLE}, "there is no experiment none"),
            ({"experiment": "own", "table": "more packets"}, 'own has no table "more packets"'),
            ({"experiment": "own", "goal": "All lost"}, 'own has no goal "All lost"'),
            ({"experiment": "own", "measure": "hours", "cell": ""}, "own has no measure hours"),
        ]:
            document = copy.deepcopy(DOCUMENT)
            document["studies"][0]["findings"][0]["sources"] = [change]
            self.assertIn(expected, "\n".join(studies.names_wrong(document, {})))
        document = copy.deepcopy(DOCUMENT)
        document["studies"][0]["findings"][1]["ours"] = "42"
        self.assertIn("needs its `source`", "\n".join(studies.names_wrong(document, {})))
        document["studies"][0]["findings"][1]["verdict"] = "likely"
        self.assertIn('there is no verdict "likely"', "\n".join(studies.names_wrong(document, {})))
        self.assertIn("data/stray.json: no finding uses it", "\n".join(studies.names_wrong(DOCUMENT, {"stray": {}})))

    def test_the_repository_passes(self):
        mock.patch.stopall()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(script("studies").main(["--check"]), 0, said.getvalue())


class Run(unittest.TestCase):
    def test_an_experiment_that_cannot_be_run_is_named_and_the_others_run(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(studies, "RESULTS", pathlib.Path(folder)), \
                mock.patch.object(studies, "collect") as collect, mock.patch.object(studies.subprocess, "run") as run:
            run.side_effect = [mock.Mock(returncode=1), mock.Mock(returncode=0)]
            runs = [{"name": "bad"}, {"name": "good", "short": ["--repetitions", "1"]}]
            self.assertEqual(studies.execute(runs, True, "fulmar", "release build", "alone"), ["bad"])
            collect.assert_called_once_with([runs[1]])
            self.assertEqual(run.call_args.args[0][-2:], ["--repetitions", "1"])
            told = json.loads(pathlib.Path(folder, "good.json").read_text(encoding="utf-8"))
            self.assertEqual(told, {"options": ["--repetitions", "1"], "build": "release build", "note": "alone"})


class Collect(unittest.TestCase):
    def test_a_workbook_is_read_by_its_headings(self):
        space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
        texts = ["row", "ours", "wired"]
        cells = ('<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>'
                 '<row r="2"><c r="A2" t="s"><v>2</v></c><c r="B2"><v>3.5</v></c></row><row r="3"><c r="A3" t="s"><v>2</v></c></row>')
        with tempfile.TemporaryDirectory() as folder:
            book = pathlib.Path(folder) / "report.xlsx"
            with zipfile.ZipFile(book, "w") as file:
                file.writestr("xl/workbook.xml", f'<workbook {space}><sheets><sheet name="Published"/></sheets></workbook>')
                file.writestr("xl/sharedStrings.xml", f"<sst {space}>{''.join(f'<si><t>{text}</t></si>' for text in texts)}</sst>")
                file.writestr("xl/worksheets/sheet1.xml", f"<worksheet {space}><sheetData>{cells}</sheetData></worksheet>")
            self.assertEqual(studies.sheet(book, "Published"), [{"row": "wired", "ours": 3.5}, {"row": "wired", "ours": ""}])

    def test_a_row_whose_samples_failed_is_kept(self):
        compare = {"title": TABLE, "measure": "ms", "match": {"testbed": "network"}, "where": {"way": "quic"}, "against": {"way": "tls"}}
        cells = [{"measure": "ms", "network": "long-distance", "way": way, "figure": figure, "failed": failed, "timeout": "0"}
                 for way, figure, failed in [("quic", "", "2"), ("tls", "5", "1")]]
        self.assertEqual(studies.lost(compare, "long_distance", cells), [2, 0])
        self.assertEqual(studies.lost(compare, "wired", cells), [0, 0])
        self.assertTrue(studies.same("10", "10.0") and not studies.same("10", "20"))

    def test_summaries_are_json_with_few_digits(self):
        self.assertEqual([studies.rounded(value) for value in ("", None, 1234.567, "0.00012345")], [None, None, 1235.0, 0.0001234])
        for path in (ROOT / "docs" / "studies" / "data").glob("*.json"):
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(kept["experiment"], path.stem)
            self.assertTrue(sum(kept["samples"].values()), path)


if __name__ == "__main__":
    unittest.main()
