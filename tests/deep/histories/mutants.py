"""Break the model in one place at a time: comparisons with it must find each mutant.

A mutant lacks one guard, one statement, one operand of a condition, one branch of an expression or
one field of a new state, or it has another bound.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.deep.histories.kafka_cache import KafkaCache, LeaderEpochState
from tests.deep.histories.partition import Partition

_BOUNDS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


@dataclass(frozen=True)
class Mutant:
    """A class of the model, and the place in one of its methods that is changed."""

    broken: type
    method: str
    place: int
    what: str

    def __str__(self) -> str:
        return f"{self.broken.__name__}.{self.method} {self.what}"

    def partition_class(self) -> type[Partition]:
        """Return the model's partition with the changed method."""
        function = _function_of(self.broken, self.method)
        _, change = list(_changes(function))[self.place]
        change()
        module = ast.fix_missing_locations(ast.Module([function], []))
        names = dict(vars(sys.modules[self.broken.__module__]))
        exec(compile(module, str(self), "exec"), names)
        changed = {self.method: names[self.method]}
        if self.broken is LeaderEpochState:
            changed = {"epoch_class": type("LeaderEpochState", (LeaderEpochState,), changed)}
        return type("Partition", (Partition,), changed)


def _mutants_of(broken: type) -> Iterator[Mutant]:
    for name, member in vars(broken).items():
        if not name.startswith("__") and (
            inspect.isfunction(member) or isinstance(member, property)
        ):
            changes = enumerate(_changes(_function_of(broken, name)))
            yield from (Mutant(broken, name, place, what) for place, (what, _) in changes)


def _function_of(broken: type, name: str) -> ast.FunctionDef:
    member = getattr(vars(broken)[name], "fget", vars(broken)[name])
    [function] = ast.parse(textwrap.dedent(inspect.getsource(member))).body
    assert isinstance(function, ast.FunctionDef)
    return function


def _changes(function: ast.FunctionDef) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what may be changed in the method, each with the function that changes it."""
    for node in ast.walk(function):
        match node:
            case ast.If(test=test, body=[*_, ast.Raise() | ast.Return()], orelse=[]):
                change = partial(setattr, node, "body", [ast.Pass()])
                yield f"without 'if {ast.unparse(test)}'", change
            case ast.While(test=test):
                yield f"without 'while {ast.unparse(test)}'", partial(setattr, node, "test", _FALSE)
            case ast.Expr(value=ast.Call() as call):
                yield f"without '{ast.unparse(call)}'", partial(setattr, node, "value", _TRUE)
            case ast.BoolOp(op=op, values=values):
                neutral = ast.Constant(isinstance(op, ast.And))
                for place, value in enumerate(values):
                    change = partial(values.__setitem__, place, neutral)
                    yield f"without '{ast.unparse(value)}'", change
            case ast.IfExp(body=body, orelse=other):
                yield f"always '{ast.unparse(body)}'", partial(setattr, node, "test", _TRUE)
                yield f"always '{ast.unparse(other)}'", partial(setattr, node, "test", _FALSE)
            case ast.Compare(ops=ops):
                for place, bound in enumerate(ops):
                    if type(bound) in _BOUNDS:
                        change = partial(ops.__setitem__, place, _BOUNDS[type(bound)]())
                        yield f"with another bound in '{ast.unparse(node)}'", change
            case ast.Call(func=ast.Name("replace") | ast.Attribute(attr="recorded"), keywords=sets):
                for each in sets:
                    change = partial(sets.remove, each)
                    yield f"without '{each.arg}={ast.unparse(each.value)}'", change


_TRUE, _FALSE = ast.Constant(True), ast.Constant(False)
_NOT_SHOWN = {
    "KafkaCache.next_with_txn_index without 'highest is not None'",
    "KafkaCache.next_with_txn_index without 'each.start_offset <= highest'",
    "Partition.once without 'request_id is not None'",
    "Partition.once without 'request_id is None'",
    "Partition.lost_with without 'while last + 1 in self.lost'",
}
"""What these leave out follows from the rest; the last one shows too rarely to wait for it."""
MUTANTS = [
    mutant
    for broken in (LeaderEpochState, KafkaCache, Partition)
    for mutant in _mutants_of(broken)
    if str(mutant) not in _NOT_SHOWN
]
