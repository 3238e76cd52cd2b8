"""The comparison with the oracle must notice when `decide` goes wrong: it is broken here on purpose, one place at a time.

A mutant that nobody can notice is listed with the reason why it cannot matter; the lists are checked too, so that an entry
does not outlive its reason.
"""

import ast
import copy
import inspect
import random
import textwrap
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType

import pytest

from domain.instance import decision
from domain.instance.decision import RULES, Rule
from domain.instance.situation import Case
from lab.oracle import decision as oracle
from tests.domain.decision_situations import A_NODE_IS_GONE, SOFTWARE, WITH_HARDWARE, answer_of_decide, answer_of_oracle, sampled

SWAPS_WITHOUT_EFFECT: dict[tuple[str, str], str] = {
    ("_rule_1_feature_off", "_rule_2_strategy_runs"): "rule 1 stands back while a strategy runs: there is one at a time",
    ("_rule_3_token_reinference", "_rule_4_removed_ranks"): "rule 4 only words the reason where nothing else is",
    ("_rule_4_removed_ranks", "_rule_5_no_group_or_no_mapping"): "rule 4 only words the reason where nothing else is",
    ("_rule_6_all_unhealthy", "_rule_7_all_dead"): "D = ∅ and D = active exclude each other",
    ("_rule_7_all_dead", "_rule_8_complete"): "U = ∅ and U ≠ ∅ exclude each other",
}
"""Neighbours in `RULES` whose order cannot matter, and why."""

OMISSIONS_WITHOUT_EFFECT: dict[str, str] = {
    "_rule_4_removed_ranks": "as a rule it only words the reason; what it drops is in every decision's `handled`, and compared",
}

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

FLIPS_WITHOUT_EFFECT: dict[str, str] = {
    "_person_forces: case.situation.owed_detail or 'ordered by a person'": "words for people",
    "_rule_8_complete: case.dead and case.unhealthy": "rules 6 and 7 have taken D = ∅ and U = ∅ where D ∪ U = active",
    "_rule_8_complete: abandoned >= ABANDONED_ROUNDS_ALLOWED": "the boundary is in tests of rule 8's own",
    "_rebuild: case.now < not_before": "the design gives no length of the back-off; it has tests of its own",
    "Case.within_window: at > self.now - self.config.reconfiguration_window_sec": "exactly one window ago may count or not",
}
"""Flipped comparisons that change no compared answer, and why."""


@cache
def examined() -> tuple[tuple[oracle.Situation, oracle.Verdict], ...]:
    """Situations in which anything may happen, shuffled, so that most mutants are met early."""
    situations = [
        *sampled(SOFTWARE, each=8, seed=5),
        *sampled(WITH_HARDWARE, each=16, seed=6),
        *sampled(A_NODE_IS_GONE, each=4, seed=7),
    ]
    random.Random(8).shuffle(situations)
    return tuple((situation, oracle.judge(situation)) for situation in situations)


def noticed() -> bool:
    """Whether some situation shows that `decide` is not what the design says."""
    return any(_differs(situation, verdict) for situation, verdict in examined())


def _differs(situation: oracle.Situation, verdict: oracle.Verdict) -> bool:
    try:
        return answer_of_decide(situation) != answer_of_oracle(situation, verdict)
    except Exception:
        return True  # `decide` never raises


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", str(rule))


def test_the_comparison_is_quiet_about_what_is_right() -> None:
    assert not noticed()


@pytest.mark.parametrize("place", range(len(RULES) - 1), ids=lambda place: _name(RULES[place]))
def test_a_rule_that_changes_places_with_the_next_is_noticed(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RULES[place], RULES[place + 1]
    monkeypatch.setattr(decision, "RULES", (*RULES[:place], second, first, *RULES[place + 2 :]))
    assert noticed() == ((_name(first), _name(second)) not in SWAPS_WITHOUT_EFFECT)


@pytest.mark.parametrize("place", range(len(RULES)), ids=lambda place: _name(RULES[place]))
def test_a_rule_that_is_left_out_is_noticed(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "RULES", (*RULES[:place], *RULES[place + 1 :]))
    assert noticed() == (_name(RULES[place]) not in OMISSIONS_WITHOUT_EFFECT)


WORDS_ONLY = ("decide", "_faults", "_listed", "_nothing", "_preempt", "_rule_4_removed_ranks", "_told")
"""What flows into no compared answer, but into what people read."""


def _judging_functions() -> dict[str, FunctionType]:
    """The rules, what they share, and the meaning of their words, by name."""
    found = {name: member for name, member in vars(decision).items() if inspect.isfunction(member)}
    for name, member in vars(Case).items():
        function = getattr(member, "func", None) or getattr(member, "fget", None) or member
        if inspect.isfunction(function) and not name.startswith("__"):
            found[f"Case.{name}"] = function
    ours = (decision.__name__, Case.__module__)
    return {name: function for name, function in found.items() if function.__module__ in ours and name not in WORDS_ONLY}


def _flips(function: FunctionType) -> Iterator[tuple[str, CodeType]]:
    """The function with one comparison flipped, one `and` made `or` or the other way round, or one `not` left out: each place."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list, definition.returns = [], None
    for argument in definition.args.args:
        argument.annotation = None
    places = [n for n, node in enumerate(ast.walk(tree)) if _can_be_flipped(node)]
    for place in places:
        mutant = copy.deepcopy(tree)
        node = list(ast.walk(mutant))[place]
        before = ast.unparse(node)
        if isinstance(node, ast.Compare):
            node.ops[0] = FLIPPED[type(node.ops[0])]()
        elif isinstance(node, ast.BoolOp):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        elif isinstance(node, ast.UnaryOp):
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        scope: dict[str, object] = {}
        exec(compile(ast.fix_missing_locations(mutant), function.__code__.co_filename, "exec"), scope)
        made = scope[definition.name]
        assert isinstance(made, FunctionType)
        yield before, made.__code__


def _can_be_flipped(node: ast.AST) -> bool:
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


MUTANTS = [
    pytest.param(f"{name}: {words}", function, code, id=f"{name}, {number}")
    for name, function in _judging_functions().items()
    for number, (words, code) in enumerate(_flips(function))
]


@pytest.mark.parametrize(("words", "function", "code"), MUTANTS)
def test_a_comparison_that_is_flipped_is_noticed(
    words: str, function: FunctionType, code: CodeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "__code__", code)
    assert noticed() == (words not in FLIPS_WITHOUT_EFFECT), words
