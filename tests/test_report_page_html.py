"""The page itself: one whole file, nothing from outside, every text a text; and the verb."""

import base64
import hashlib
import io
import itertools
import json
import math
import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree.ElementTree import fromstring

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from audits import EVIL, KKT, NTK, N, audit, evil_audit, sides
from remnant.auditing.assess import without_truth
from remnant.bundle import Verdict
from remnant.cli import Parser
from remnant.cli import report as verb
from remnant.cli.common import carry_out
from remnant.errors import InputError, StoreError
from remnant.report.charts import (
    curve_chart,
    exposure_chart,
    percent,
    power,
    spectrum_chart,
)
from remnant.report.figures import Exposure, Series, Spectrum
from remnant.report.page import PAGE_FILE, data_uri, page, picture_side
from remnant.report.page.facts import words
from remnant.report.page.files import Pictures, blur, read_bundle, redact, write_bundle
from remnant.store import finish, open_run

VOID = {"meta", "img", "input", "link", "br", "hr"}


class Reader(HTMLParser):
    """Tags with attributes, texts by the tag around them, and whether tags are nested well."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def said(self, *, but=("style", "script")):
        return "".join(text for tag, text in self.texts if tag not in but)


def drawn(whole, train, candidates):
    pictures = Pictures(
        ids=train.ids,
        originals=train.inputs,
        candidates={name: c.inputs for name, c in candidates.items()},
        bounds=train.bounds,
    )
    return page(whole, pictures)


def pixels(uri):
    assert uri.startswith("data:image/png;base64,")
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_the_page_says_what_the_audit_found():
    made = Reader(drawn(*audit()))
    said = made.said()
    whole = audit()[0]
    for text in (
        whole.sentence, whole.command, "two checkpoints", "14 of 14 records recovered",
        "no gradient was given", "Do not release both checkpoints.", "held-out records",
        "14 counted", "1 of 2", "Exposed", "Inconclusive", "Not applicable", "ab" * 32,
        "Reconstruction curve", "Exposure against margin", "Bound beside measurement",
        f"All {2 * N} are on this page", *(row["id"] for row in whole.exposed),
    ):  # fmt: skip
        assert text in said, text
    assert {a.get("id") for a in made.named("section")} == {
        "records", "next", "adversaries", "evidence", "exposed", "preflight", "reproduce",
    }  # fmt: skip


def test_the_same_audit_gives_the_same_bytes():
    assert drawn(*audit()) == drawn(*audit())


def test_nothing_comes_from_outside():
    text = drawn(*audit())
    made = Reader(text)
    for _, attributes in made.tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert not made.named("link") + made.named("iframe")
    assert not re.search(r"https?://|url\(", text)


def test_the_policy_lets_only_this_style_and_script_run():
    made = Reader(drawn(*evil_audit()))
    policy = next(a["content"] for a in made.named("meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (body,) = [text for name, text in made.texts if name == tag]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_evil_texts_stay_texts():
    made, plain = Reader(drawn(*evil_audit())), Reader(drawn(*audit()))
    assert len(made.named("script")) == 1
    assert made.said().count(EVIL) > 20
    assert not [a for a in made.named("img") if a.get("src") == "x"]
    assert {name for name, _ in made.tags} == {name for name, _ in plain.tags}


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_and_attribute_comes_back(text):
    whole = audit()[0]
    good = whole.attacks[0].finding
    rows = [{**good.per_record[0], "id": text}]
    row = replace(whole.attacks[0], finding=replace(good, per_record=rows, nulls={text: {}}))
    shown = Pictures(candidates={NTK: torch.zeros(N, 1, 4, 4)})
    made = Reader(page(replace(whole, sentence=text, attacks=[row]), shown))
    kept = text.encode("utf-8", "replace").decode()
    kept = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", kept)
    assert "".join(words for tag, words in made.texts if tag == "h1") == kept
    assert made.named("code")[0]["title"] == kept


def test_originals_stand_beside_reconstructions():
    made = Reader(drawn(*audit()))
    images = [a for a in made.named("img") if a.get("src")]
    first = audit()[0].attacks[0].finding.per_record[0]
    assert images[0]["alt"] == f"original of {first['id']}"
    assert images[1]["alt"] == f"reconstruction of {first['id']}, correlation 1.000"
    assert pixels(images[0]["src"]).tobytes() == pixels(images[1]["src"]).tobytes()
    assert all(a["alt"] for a in images)
    assert made.said().count("not found") == N - 9
    kinds = {a.get("data-recovered") for a in made.named("li")} - {None}
    assert kinds == {"yes", "no"}


def test_an_image_keeps_its_pixels():
    image = torch.arange(12.0).reshape(3, 4) / 11
    picture = pixels(data_uri(image, (0.0, 1.0), 160))
    assert picture.mode == "L"
    assert picture.size == (4, 3)
    assert list(picture.tobytes()) == (image.flatten() * 255).round().int().tolist()
    assert pixels(data_uri(torch.rand(3, 300, 200), (0.0, 1.0), 60)).size == (40, 60)
    assert pixels(data_uri(torch.rand(3, 8, 8), (0.0, 1.0), 60)).mode == "RGB"
    wild = torch.tensor([[math.nan, -5.0, 9.0]])
    assert list(pixels(data_uri(wild, (-1.0, 1.0), 60)).tobytes()) == [0, 0, 255]


@pytest.mark.parametrize("count", [0, 1, 50, 300, 100_000])
def test_pictures_fit_into_their_bytes(count):
    side = picture_side(count, (3, 500, 400))
    assert side == 8 or 2 * count * 3 * side * side <= 6_000_000
    assert picture_side(count, (1, 25, 25)) <= 25


def test_redacted_pixels_are_blurred_pixels():
    whole, train, candidates = audit()
    shown = Pictures(
        ids=train.ids, originals=train.inputs,
        candidates={name: c.inputs for name, c in candidates.items()},
    )  # fmt: skip
    text = page(*redact(whole, shown))
    made = Reader(text)
    images = [a for a in made.named("img") if a.get("src")]
    assert images[0]["alt"].startswith("blurred original")
    assert "Originals are blurred" in made.said()
    for i in range(N):
        assert data_uri(train.inputs[i], (0.0, 1.0), 25) not in {
            a["src"] for a in images if a["alt"].startswith("blurred")
        }
        assert data_uri(blur(train.inputs)[i], (0.0, 1.0), 25) in text


def test_without_images_there_is_none():
    whole = replace(audit()[0], images=False)
    made = Reader(page(whole, Pictures()))
    assert not made.named("img")
    assert "data:image" not in str(made.tags)
    assert "left out of this page" in made.said()
    assert "holds no picture" in made.said()
    nothing = [replace(row, candidates=None) for row in whole.attacks]
    empty = page(replace(whole, images=True, attacks=nothing), Pictures())
    assert "No attack returned a reconstruction." in empty


def test_a_table_shows_features():
    made = Reader(drawn(*audit("breast_cancer")))
    said = made.said()
    assert not made.named("img")
    first = audit("breast_cancer")[0].attacks[0].finding.per_record[0]
    row = sides("breast_cancer").train
    value = float(row.inputs[row.ids.index(first["id"])][0])
    assert said.count(f"{value:.5g}") >= 2  # true and recovered
    assert f"The 24 most exposed of {2 * N}" in said


def test_an_audit_of_nothing_has_a_page():
    whole = audit()[0]
    bare = replace(
        whole, verdict="inconclusive", attacks=[whole.attacks[2]], exposed=[], advice=[],
        preflight=[], trials=[], target={}, spec={}, seeds={}, versions={}, hashes={},
    )  # fmt: skip
    made = Reader(page(bare, Pictures()))
    assert "That is not the same as safe." in made.said()
    assert {a["id"] for a in made.named("section")} == {"adversaries", "reproduce"}


def test_without_the_truth_there_are_candidates_and_no_scores():
    whole, _, candidates = audit()
    alone = replace(whole.attacks[0], finding=without_truth(candidates[NTK], attack="ntk"))
    shown = Pictures(candidates={NTK: candidates[NTK].inputs})
    made = Reader(page(replace(whole, attacks=[alone], exposed=[]), shown))
    assert len(made.named("img")) == N
    assert "confidence 1.000" in made.said()
    assert "nothing to score" in made.said()
    assert not made.named("dialog")


def test_many_records_are_cut_and_said_to_be():
    whole, _, _ = audit()
    finding = whole.attacks[0].finding
    rows = [{**finding.per_record[0], "id": f"r{k}"} for k in range(900)]
    many = replace(whole.attacks[0], finding=replace(finding, per_record=rows))
    exposed = [{"id": f"r{k}"} for k in range(900)]
    shown = Pictures(candidates={NTK: torch.rand(N, 1, 25, 25)})
    made = Reader(page(replace(whole, attacks=[many], exposed=exposed), shown))
    said = made.said()
    assert "The 300 most exposed of 900 are on this page" in said
    assert "The 400 most exposed of 900." in said
    (link,) = [a for a in made.named("a") if a.get("download")]
    assert link["href"].count("%0A") == 900


def test_verdicts_differ_by_more_than_colour():
    whole = audit()[0]
    drawn_as = set()
    for verdict in Verdict:
        made = Reader(page(replace(whole, verdict=verdict, attacks=[]), Pictures()))
        drawn_as.add(tuple(a["d"] for a in made.named("path")))
        assert verdict.capitalize() in made.said()
    assert len(drawn_as) == len(Verdict)


@pytest.mark.parametrize(
    "distances", [(), (0.0,), (1e-300, 1.0), (0.0, 1e-28, 50.0), tuple(map(float, range(1, 400)))]
)
def test_any_curve_can_be_drawn(distances):
    data = [
        Series(name="candidates", distances=distances, unmatched=2),
        Series(name="held_out", distances=(3.0, 4.0), unmatched=0),
    ]
    numbers_are_finite(curve_chart(data))


@pytest.mark.parametrize(
    ("values", "counted"),
    [((3.0, 2.0, 1e-9), 2), ((1.0,), 1), ((0.0, 0.0), 0), ((2.0, 2.0), None), ((3.0, 1.0), 99)],
)
def test_any_spectrum_can_be_drawn(values, counted):
    gap = 2e9 if counted == 2 else None
    made = numbers_are_finite(
        spectrum_chart(Spectrum(values=values, counted=counted, gap=gap), len(values))
    )
    assert ("counted" in "".join(made.itertext())) == (counted == 2)  # one without a gap was told


@pytest.mark.parametrize("points", [((1.0, 0.5, True),) * 2, ((-3.0, -1.0, False), (9e9, 1, True))])
def test_any_exposure_can_be_drawn(points):
    made = numbers_are_finite(exposure_chart(Exposure(across="loss", points=points, threshold=0.9)))
    assert len(made.findall("circle")) == 2


def test_losses_decades_apart_are_drawn_on_a_log_axis():
    points = tuple((10.0**-k, 0.5, False) for k in range(5))
    made = fromstring(exposure_chart(Exposure(across="loss", points=points, threshold=None)))
    places = [float(c.get("cx")) for c in made.iter("circle")]
    gaps = [a - b for a, b in itertools.pairwise(places)]
    assert gaps == [pytest.approx(gaps[0], abs=0.2)] * 4
    assert "10⁻⁴" in "".join(made.itertext())


def test_a_bound_is_drawn_to_scale():
    bars = [a for a in Reader(drawn(*audit())).named("rect") if a["height"] == "8"]
    widths = {a["class"]: float(a["width"]) for a in bars}
    assert widths["bar allowed"] == pytest.approx(0.4 * widths["track"])


def numbers_are_finite(svg):
    assert not re.search(r"\b(nan|inf)\b", svg)
    return fromstring(svg)


def test_numbers_are_short():
    assert [percent(s) for s in (0.0, 1.0, 0.5, 0.071, 0.929)] == [
        "0%", "100%", "50%", "7.1%", "92.9%",
    ]  # fmt: skip
    assert [power(k) for k in (-10, 0, 1, 2)] == ["10⁻¹⁰", "1", "10", "10²"]
    assert [words(v) for v in (None, True, 12345, 0.123456, [1, 25], ["a", "b"], {"a": 1})] == [
        "–", "yes", "12\u202f345", "0.1235", "1 × 25", "a, b", '{"a": 1}',
    ]  # fmt: skip


def arguments(*given):
    top = Parser()
    verb.add(top.add_subparsers(parser_class=Parser))
    return top.parse_args(["report", *map(str, given)])


def test_the_verb_draws_the_page_from_the_bundle(tmp_path, capsys):
    run = open_run(tmp_path / "run", {})
    write_bundle(run, *audit())
    with pytest.raises(StoreError, match="expected a finished audit, got a begun one"):
        carry_out(arguments(run.path))
    finish(run)
    assert carry_out(arguments(run.path)) == 0
    assert carry_out(arguments(run.path, "--quiet")) == 0  # what it drew is not what it reads
    written = run.path / PAGE_FILE
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert written.read_text() == page(*read_bundle(run.path))
    out = capsys.readouterr().out
    assert "exposed: All 14 records come back." in out
    assert str(written) in out


def test_the_verb_leaves_out_and_blurs(tmp_path, capsys):
    run = open_run(tmp_path / "run", {})
    write_bundle(run, *audit())
    finish(run)
    other = tmp_path / "to" / "share"
    assert carry_out(arguments(run.path, "--no-images", "--out", other, "--json")) == 0
    assert "data:image" not in (other / PAGE_FILE).read_text()
    assert not (run.path / PAGE_FILE).exists()
    assert '"verdict": "exposed"' in capsys.readouterr().out
    assert carry_out(arguments(run.path, "--redact", "--out", other, "--quiet")) == 0
    assert "blurred original" in (other / PAGE_FILE).read_text()
    assert capsys.readouterr().out == ""
    with pytest.raises(StoreError, match=r"expected a run with run\.json"):
        carry_out(arguments(tmp_path / "nothing"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match="choose another --out"):
        carry_out(arguments(run.path, "--out", blocked / "x"))


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda attack: attack["finding"].update(nulls=["edited"]), "finding.nulls"),
        (lambda attack: attack.update(settings=["edited"]), "settings"),
        (lambda attack: attack["control"].update(reason=None), "control.reason"),
    ],
)
def test_a_bundle_edited_by_hand_is_one_line(tmp_path, edit, place):
    run = open_run(tmp_path / "run", {})
    write_bundle(run, *audit())
    file = run.path / "finding.json"
    values = json.loads(file.read_text())
    edit(values["attacks"][1])
    file.write_text(json.dumps(values))
    finish(run)
    with pytest.raises(InputError, match=rf"do not fit remnant.audit/1: attacks.1.{place}: exp"):
        carry_out(arguments(run.path))


def test_a_bundle_edited_after_it_was_finished_draws_no_page(tmp_path):
    run = open_run(tmp_path / "run", {})
    write_bundle(run, *audit())
    finish(run)
    file = run.path / "finding.json"
    file.write_text(file.read_text().replace('"exposed"', '"not exposed"'))
    for act in (lambda: carry_out(arguments(run.path)), lambda: read_bundle(run.path)):
        with pytest.raises(StoreError, match=r"finding\.json: expected the file that the run"):
            act()
    assert not (run.path / PAGE_FILE).exists()


def test_notes_on_the_data_and_the_control_are_told():
    whole, train, candidates = audit(notes=["3 held-out records are near copies."])
    said = drawn(whole, train, candidates)
    assert said.index("3 held-out records are near copies.") < said.index("Who could do this")
    assert "not passed, so finding nothing here proves nothing" in said
    passed = replace(whole.attacks[1].control, passed=True, recovered=9)
    other = replace(whole, attacks=[replace(whole.attacks[1], control=passed)])
    assert "passed: 9 of 14 records" in drawn(other, train, {KKT: candidates[KKT]})


def test_a_count_that_was_told_is_not_said_to_be_read_off():
    whole, train, candidates = audit()
    found = whole.attacks[0].finding
    flat = replace(found, trace={"singular_values": [1.0 - 0.01 * k for k in range(34)]})
    told = replace(whole, attacks=[replace(whole.attacks[0], finding=flat)])
    clear = replace(whole, attacks=whole.attacks[:1])
    only = {NTK: candidates[NTK]}
    said, read_off = drawn(told, train, only), drawn(clear, train, only)
    assert f"The attack took it for {N}, as it was told." in said
    assert "without seeing the data" not in said
    assert f"gives away that {N} records" in read_off
    assert f"{N} records, without seeing the data" in read_off


def test_the_page_says_which_file_of_the_user_s_code_was_imported():
    whole, train, candidates = audit(spec={"spec": {"model": "net.py:make"}})
    assert "one file was imported, and no other: net.py:make." in drawn(whole, train, candidates)
    assert "was imported" not in drawn(*audit(spec={"spec": {"model": "mlp:4-3-2"}}))
