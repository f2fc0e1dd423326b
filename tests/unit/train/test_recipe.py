"""Recipes: every key is known, every value is checked, overrides are typed."""

from pathlib import Path

import pytest

from blockdraft.errors import ConfigError
from blockdraft.train.recipe import Recipe, dump_recipe, load_recipe, parse_recipe

PROJECT = Path(__file__).parents[3]


def test_what_is_left_out_has_the_defaults_and_the_dump_says_all(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[drafter]\nmethod = "dflash"\ntarget_layer_ids = [1, 3]\n[loss]\nce = 1\n')
    recipe = load_recipe(path, ["run.seed=7", "run.out=runs/x y", "optimizer.learning_rate=1e-4"])
    assert recipe.drafter.method == "dflash"
    assert recipe.drafter.target_layer_ids == (1, 3)
    assert recipe.loss.ce == 1.0
    assert (recipe.run.seed, recipe.run.out, recipe.optimizer.learning_rate) == (7, "runs/x y", 1e-4)
    path.write_text(dump_recipe(recipe))
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("drafter.num_layer=2", r"no key `drafter.num_layer` \(did you mean 'num_layers'\?\)"),
        ("draft.num_layers=2", r"no key `draft` \(did you mean 'drafter'\?\)"),
        ("drafter.num_layers=two", r"`drafter.num_layers` must be of type int, not 'two'"),
        ("drafter.num_layers=0", r"`drafter.num_layers` must be at least 1"),
        ("drafter.method=medusa", r"one of 'dflash', 'dspark', 'eagle3', 'ngram', not 'medusa'"),
        ("loss.ce_labels=hard", r'`loss.ce_labels` must be "soft", "top1" or "token"'),
        ("data.held_out=1.0", r"`data.held_out` must be in \[0, 1\)"),
        ("run.epochs=true", r"`run.epochs` must be of type int"),
        ("optimizer.momentum=0.9", r"`optimizer.momentum` must be left out with \"adamw\", which has beta1"),
        ("run.seed", r"write section.key=value"),
        ("seed=1", r"write section.key=value"),
        ("drafter.markov_rank=0", r"needs a Markov head"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, override: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=message):
        load_recipe(path, [override])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no recipe"):
        load_recipe(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(broken)


def test_a_section_is_a_table() -> None:
    with pytest.raises(ConfigError, match="is a section"):
        parse_recipe({"run": 3})
    assert parse_recipe({}) == Recipe()


@pytest.mark.parametrize("path", sorted((PROJECT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_the_recipes_of_the_project_are_read(path: Path) -> None:
    assert load_recipe(path).run.out
