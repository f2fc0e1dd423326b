"""The page is whole, needs nothing from elsewhere, and claims no more than the run bears."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import BASE_S, cells, counts, made_run, made_sample

from blockdraft.bench.speed.records import Run
from blockdraft.bench.speed.report import render_report, write_report
from blockdraft.errors import ConfigError

_EMPTY = {"meta", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Reads a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.titles: list[str] = []
        self.counts: dict[str, int] = {}
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)
        if not {"style", "svg"} & set(self.open):
            self.text += data


def rich_run(**more) -> Run:
    def long(sample):
        factor = 1 if sample.chunk_s[1] - sample.chunk_s[0] > BASE_S * 0.99 else 1.5
        return made_sample(BASE_S / factor, prompt=sample.prompt_id, repeat=sample.repeat, num_tokens=200)

    drafts = {"speculative": counts(300, 150, accepted_at=(80, 50, 20), reached_at=(100, 80, 50)), "baseline": None}
    ratios = dict.fromkeys(cells("code", "chat", depths=(0, 4096), concurrencies=(1, 4)), 1.5)
    return made_run(ratios, drafts=drafts, samples={"speculative": long, "baseline": long}, **more)


def test_a_page_has_every_picture_and_table_and_needs_no_other_file() -> None:
    text = render_report(rich_run())
    page = Page(text)
    assert page.titles == [
        "What drafting brings, by kind of prompt",
        "Speeds",
        "How the gain changes with load",
        "How the gain changes with depth",
        "What the target keeps",
        "Speed inside answers",
        "Depth and load",
        "Speeds and ratios",
        "Latency and load",
        "Drafts",
        "What the words mean",
        "How it was measured",
    ]
    assert page.counts["svg"] == 12  # for wide and for narrow screens
    assert page.counts["table"] == 4
    assert page.counts.get("script", 0) == 0
    # What is linked is inside the page.
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_names_of_elements_are_there_once() -> None:
    page = Page(render_report(rich_run()))
    assert len(page.ids) == len(set(page.ids))


def test_colours_are_those_of_the_page_light_and_dark() -> None:
    text = render_report(rich_run())
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--ink)" in pictures
    assert re.findall(r"#0[1-6]0[1-6]0[1-8]", pictures) == []
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    light, dark = (set(re.findall(r"--([\w-]+):", block)) for block in re.findall(r":root \{(.*?)\}", text, re.DOTALL))
    assert used <= light == dark


def test_every_kind_of_prompt_has_its_line_however_many_there_are() -> None:
    names = [f"kind{number}" for number in range(13)]
    drafts = {"speculative": counts(300, 150, accepted_at=(80, 50), reached_at=(100, 80)), "baseline": None}
    text = render_report(made_run(dict.fromkeys(cells(*names), 1.5), drafts=drafts, repeats=1))
    [picture] = re.findall(r"What the target keeps</h2>.*?</svg>", text, re.DOTALL)
    assert all(f">{name}<" in picture for name in names)


def test_places_that_hardly_any_draft_reached_are_not_drawn() -> None:
    def widest(reached: tuple[int, ...]) -> int:
        drafts = {"speculative": counts(300, 90, accepted_at=(60, 4, 3), reached_at=reached), "baseline": None}
        text = render_report(made_run(dict.fromkeys(cells("code"), 1.5), drafts=drafts, num_prompts=1, repeats=1))
        found = re.findall(r"What the target keeps</h2>.*?</svg>", text, re.DOTALL)
        return len(re.findall(r'id="acceptance-xtick_\d+"', found[0])) if found else 0

    assert [widest(reached) for reached in ((100, 60, 9), (100, 60, 4), (4, 3, 3))] == [3, 2, 0]


def test_what_drafts_was_asked_and_is_slower_stands_on_top() -> None:
    run = made_run({cells("code")[0]: 1.6, cells("chat")[0]: 0.7})
    native = {
        "spec": {"types": ["ngram-simple", "draft-dspark"], "policy": "fixed"},
        "drafter": {"max_draft_tokens": 7},
    }
    sides = tuple(replace(side, details=native if side.role == "speculative" else {}) for side in run.sides)
    plan = {"prompts": {"code": ["c/1", "c/2"], "chat": ["d/1"]}, "repeats": 3}
    text = Page(render_report(replace(run, sides=sides, settings={**run.settings, "plan": plan}))).text
    assert "ngram-simple, then draft-dspark, up to 7 tokens, fixed policy" in text
    assert "code 2, chat 1; 3 times by each side" in text
    assert "slower with drafts: chat (0.70)" in text


HEADLINES = {
    "gain": ({}, 1.6, r"^1\.\d\d \(1\.\d\d to 1\.\d\d\) times as fast as the baseline \(no prefix, 1 at once\)$"),
    "loss": ({}, 0.7, "^Slower than the baseline: 0"),
    "open": ({"jitter": 0.2}, 1.05, "^Neither clearly faster nor clearly slower"),
    "little": ({"num_prompts": 1, "repeats": 1}, 1.6, "^Too few pairs to tell gain from loss"),
    "alone": ({"has_baseline": False}, 1.6, "no speed-up"),
    "not plain": ({"drafts": {"baseline": counts(9, 3)}}, 1.6, "^No speed-up can be claimed"),
}


@pytest.mark.parametrize("name", HEADLINES)
def test_the_headline_says_what_the_run_bears(name: str) -> None:
    changes, ratio, expected = HEADLINES[name]
    text = render_report(made_run(dict.fromkeys(cells("code", "chat"), ratio), **changes))
    [headline] = re.findall(r"<h1>(.*?)</h1>", text)
    assert re.search(expected, headline)
    Page(text)


def test_without_a_baseline_no_ratio_is_on_the_page() -> None:
    page = Page(render_report(made_run(dict.fromkeys(cells("code", concurrencies=(1, 2)), 1.6), has_baseline=False)))
    assert "What drafting brings, by kind of prompt" not in page.titles
    assert "nothing was measured beside it" in page.text
    assert page.counts["svg"] == 2


def test_text_of_others_is_text() -> None:
    run = made_run(dict.fromkeys(cells("<b>code"), 1.6))
    text = render_report(replace(run, command=("x", "<script>alert(1)</script>")))
    page = Page(text)
    assert "A <processor>" in page.text
    assert page.counts.get("script", 0) == 0
    assert "b" not in page.counts


def test_runs_with_next_to_nothing_in_them_have_a_page_too() -> None:
    run = made_run(dict.fromkeys(cells("code"), 1.6), num_prompts=1, repeats=1)
    Page(render_report(run))
    Page(render_report(replace(run, passes=run.passes[:1], is_complete=False)))
    Page(render_report(replace(run, passes=(), is_complete=False)))


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    run = made_run(dict.fromkeys(cells("code"), 1.6))
    write_report(run, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(run, tmp_path / "nowhere" / "r.html")
