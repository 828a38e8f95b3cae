"""The small breakages that are tried: what may be changed in a source, and into what.

The operators are PIT's defaults (boundaries and negation of conditions, arithmetic, deleted calls,
returned values; https://pitest.org/quickstart/mutators) with those that Python adds: ``in``,
``is``, exceptions that are caught, loops.

Left out is what says nothing of the tests: docstrings, annotations, texts and log calls; and
waiting times and constants in capitals, whose values are choices, so that a test of one could only
repeat it ("arid" lines: Petrovic and Ivankovic, State of Mutation Testing at Google, ICSE 2018).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_UNTOUCHED = ("annotation", "returns", "decorator_list", "bases", "type_params")
_CLOSED = (ast.Attribute, ast.Call, ast.Constant, ast.Name, ast.Subscript)
_TIMES = re.compile(r"(seconds|timeout)$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Its path below the repository.
        line: Where the change begins, from 1.
        last_line: Where what is changed ends.
        start: The first byte that is replaced.
        end: The byte after the last one.
        text: What stands there instead.
        operator: What kind of change this is.
        at_import: Whether the line runs when the file is imported, and not in a function.
    """

    file: str
    line: int
    last_line: int
    start: int
    end: int
    text: str
    operator: str
    at_import: bool

    def apply(self, source: bytes) -> bytes:
        """The file as it is with this change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of one file, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, text, operator, at_import in _changes(ast.parse(source), at_import=True):
        last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        found.append(
            Mutant(
                file=file,
                line=node.lineno,
                last_line=last_line,
                start=starts[node.lineno - 1] + node.col_offset,
                end=starts[last_line - 1] + last_column,
                text=text,
                operator=operator,
                at_import=at_import,
            )
        )
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def _changes(
    node: ast.AST, *, at_import: bool
) -> Iterator[tuple[ast.stmt | ast.expr, str, str, bool]]:
    """What may be changed in and below ``node``: what, into what, by which operator."""
    for changed, text, operator in _changes_of(node):
        yield changed, text, operator, at_import
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for field, child in _children(node):
        yield from _changes(child, at_import=at_import and not (is_function and field == "body"))


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The nodes below that may be changed, and what they are to this one."""
    for field, value in ast.iter_fields(node):
        if field in _UNTOUCHED:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _says_nothing(node, field, child):
                yield field, child


def _says_nothing(parent: ast.AST, field: str, child: ast.AST) -> bool:
    match child:
        case ast.JoinedStr():  # A text; and Python 3.11 does not know where its parts stand.
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            if name.isupper() or name == "__all__":
                return True
        case ast.Assign(targets=[ast.Tuple(elts=names)]):
            if all(isinstance(one, ast.Name) and one.id.isupper() for one in names):
                return True
        case ast.keyword(arg=str(name)) if _TIMES.search(name) or name == "stacklevel":
            return isinstance(child.value, ast.Constant)
    match parent:
        case ast.Call(func=ast.Name(id="print") | ast.Attribute(attr="warn")):
            return True
        case ast.Call(func=ast.Attribute(attr="sleep" | "wait")):
            return field == "args"
        case ast.Call(func=ast.Attribute(attr="join")):
            return field == "args" and isinstance(child, ast.Constant)
        case ast.AnnAssign(target=ast.Name(id=name)) if _TIMES.search(name):
            return field == "value" and isinstance(child, ast.Constant)
        case ast.arguments():
            return _TIMES.search(_parameter(parent, child)) is not None
    return False


def _parameter(arguments: ast.arguments, default: ast.AST) -> str:
    """The name of the parameter that has this default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :] + arguments.kwonlyargs
    for one, value in zip(with_default, [*arguments.defaults, *arguments.kw_defaults], strict=True):
        if value is default:
            return one.arg
    return ""


def _changes_of(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str, str]]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for at, op in enumerate(ops):
                for other in _COMPARED[type(op)]:
                    changed = [*ops[:at], other(), *ops[at + 1 :]]
                    yield node, _text(ast.Compare(left, changed, comparators)), "comparison"
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, _text(ast.BoolOp(other_op, values)), "and-or"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, _text(operand), "negation"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            if not (_is_text(left) or _is_text(right)):
                yield node, _text(ast.BinOp(left, _COMPUTED[type(op)](), right)), "arithmetic"
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _COMPUTED:
            if not _is_text(value):
                changed_node = ast.AugAssign(target, _COMPUTED[type(op)](), value)
                yield node, ast.unparse(changed_node), "arithmetic"
            yield node, "pass", "statement"
        case ast.Constant(value=bool(value)):
            yield node, str(not value), "constant"
        case ast.Constant(value=int(value) | float(value)):
            yield node, str(value + 1), "number"
        case ast.Return(value=value) if value is not None and not _is_falsy(value):
            yield node, "return None", "return"
        case ast.For(iter=items) | ast.AsyncFor(iter=items):
            yield items, "()", "loop"
        case ast.ExceptHandler(type=caught) if caught is not None:
            yield caught, "()", "except"
        case ast.Break():
            yield node, "continue", "loop"
        case ast.Continue():
            yield node, "break", "loop"
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete():
            yield node, "pass", "statement"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass", "statement"
    for condition in _conditions(node):
        yield condition, f"not ({ast.unparse(condition)})", "condition"


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Tests of branches that no other operator negates."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            tests = [test]
        case ast.comprehension(ifs=ifs):
            tests = ifs
        case _:
            return
    for test in tests:
        if not isinstance(test, ast.Constant | ast.Compare | ast.BoolOp) and not (
            isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        ):
            yield test


def _text(node: ast.expr) -> str:
    """An expression as source, in parentheses, since its surroundings may bind closer."""
    text = ast.unparse(node)
    return text if isinstance(node, _CLOSED) else f"({text})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_falsy(node: ast.expr) -> bool:
    """Whether it is a constant that says no, as None does."""
    return isinstance(node, ast.Constant) and not node.value
