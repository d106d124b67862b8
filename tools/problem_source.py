"""Read the source of a problem set, and refuse one that would show students what they should not see.

The first lines of `homework` say what a source may hold. A slip, such as a misspelt mark, would hand an answer or a
hidden test to students without a word. So whatever is not exactly as it should be is refused by name.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jinja2
import jinja2.meta
import jupytext
import numpy as np
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from jupytext.myst import MystMetadataParsingError

if TYPE_CHECKING:
    from pathlib import Path

TEST = re.compile(r"def (test|hidden)_(\w+)\(env\):\n")
BEGIN, END, LINE = "# BEGIN SOLUTION", "# END SOLUTION", "# SOLUTION"
LIKE_A_MARK = re.compile(r"[#%]\s*(?:(?:begin|end)[\s_-]*)?solution\b", re.IGNORECASE)
OTHER_MARK = re.compile(
    r"#\s*(?i:begin|end)\s+(?i:question|prompt|tests?|ignore|hidden)\b"  # of otter, and of nbgrader
    r"|#\s*(?:SEED|IGNORE|HIDDEN|SOLUTION NO PROMPT)\s*$|^\s*```otter\b"
)
LIKE_A_TEST = re.compile(r"^\s*(?:async\s+)?def\s+(?:(?:test|hidden)_\w*|\w+\s*\(\s*env\b).*$", re.MULTILINE)
LIKE_A_CELL = re.compile(r"^\s*(?:`{3,}|~{3,}|:{3,})\s*\{?(?:code|raw)\b.*$", re.MULTILINE | re.IGNORECASE)
BREAK = re.compile(r"^ {0,3}\+{3,}[ \t]*(\{.*\S)", re.MULTILINE)
HELPERS = {"answer", "call", "close", "numbers"}


class ProblemSet(NamedTuple):
    """A source, read: its name and seed, the values of its parameters, how long a cell may run, and its cells."""

    name: str
    seed: int | None
    values: dict[str, Any]
    seconds: float
    cells: list[Any]


def choose(parameters: dict[str, list[Any]], seed: int | None, name: str) -> dict[str, Any]:
    """The values of the parameters: the published ones without a seed, others with one.

    Raises:
        ValueError: a parameter has no other value, or no name that may stand between braces.
    """
    for parameter, values in parameters.items():
        if not isinstance(parameter, str) or not parameter.isidentifier() or parameter == "hidden_seed":
            raise ValueError(f"{name}: a parameter must have a name like beta, and not hidden_seed; got {parameter}")
        if not isinstance(values, list) or len(values) < 2 or values[0] in values[1:]:
            needed = "must be a list of the published value and at least one other"
            raise ValueError(f"{name}: parameter {parameter} {needed}; got {values}")
    if seed is None:
        published = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        return {parameter: values[0] for parameter, values in parameters.items()} | {"hidden_seed": published}
    rng = np.random.default_rng([seed, *name.encode()])
    drawn = {parameter: values[rng.integers(1, len(values))] for parameter, values in parameters.items()}
    return drawn | {"hidden_seed": int(rng.integers(2**63))}


def read(source: Path, seed: int | None = None) -> ProblemSet:
    """A problem set with its published parameters, or with those that the seed chooses.

    Raises:
        ValueError: the source is not as the first lines of `homework` say.
    """
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} must be a text file in UTF-8; {error}") from None
    parts = re.match(r"---\n(.*?\n)---\n(.*)", text, re.DOTALL)
    header = _header(source.name, parts[1] if parts else "")
    assert parts
    values = choose(header["parameters"], seed, source.stem)
    body = _filled(source.name, parts[2], values, first_line=parts[1].count("\n") + 3)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    try:
        notebook = jupytext.reads("---\n" + yaml.safe_dump({"kernelspec": kernel}) + "---\n" + body, "md:myst")
        breaks = [json.loads(text) for text in BREAK.findall(body)]
    except (ValueError, MystMetadataParsingError) as error:
        raise ValueError(f'{source.name}: what follows +++ must be like {{"question": "name"}}; {error}') from None
    check(source.name, breaks, notebook.cells)
    return ProblemSet(source.stem, seed, values, header["seconds"], notebook.cells)


def _header(name: str, text: str) -> dict[str, Any]:
    """The settings in a source's header."""
    try:
        header = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} must begin with a header in YAML; {' '.join(str(error).split())}") from None
    settings = header.get("homework") if isinstance(header, dict) else None
    if not isinstance(settings, dict) or settings.keys() != {"parameters", "seconds"}:
        found = sorted(map(str, settings)) if isinstance(settings, dict) else settings
        raise ValueError(
            f"{name} must have a header with the key homework, and in it parameters and seconds; got {found}"
        )
    seconds, parameters = settings["seconds"], settings["parameters"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(f"{name}: seconds must be a positive number; got {seconds}")
    if not isinstance(parameters, dict):
        raise ValueError(f"{name}: parameters must be names, each with its list of values; got {parameters}")
    return settings


def _filled(name: str, body: str, values: dict[str, Any], first_line: int) -> str:
    """The body with values in the places of parameters."""
    engine = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    advice = f"braces must hold a parameter ({', '.join(values)}); where they are meant, as in a formula, write {{ {{"
    try:
        used = jinja2.meta.find_undeclared_variables(engine.parse(body)) - engine.globals.keys()
        for unknown in sorted(used - values.keys()):
            place = re.search(rf"\{{[{{%][^}}]*\b{unknown}\b", body)
            line = first_line + body[: place.start() if place else 0].count("\n")
            raise ValueError(f"{name}, line {line}: {advice}; got `{unknown}`")
        for unused in sorted(values.keys() - used - {"hidden_seed"}):
            raise ValueError(f"{name}: each parameter must be used; {unused} is not")
        return engine.from_string(body).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"{name}, line {first_line + error.lineno - 1}: {advice}; {error.message}") from None
    except (jinja2.TemplateError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{name}: {advice}; {error}") from None


def check(name: str, breaks: list[Any], cells: list[Any]) -> None:
    """Refuse what would show students a test or an answer that they should not see, or lose a test."""
    found = [dict(cell.metadata) for cell in cells if cell.cell_type == "markdown" and cell.metadata]
    for settings, kept in zip(breaks, [*found, *[None] * len(breaks)], strict=False):
        if settings != kept:
            _refuse(
                name,
                "text must follow each line that begins with +++, and no cell may hold one",
                f"+++ {json.dumps(settings)}",
            )
    questions: list[list[Any]] = [[]]
    for cell in cells:
        if "question" in cell.metadata:
            questions.append([])
        questions[-1].append(cell)
    for cell in questions[0]:
        where = f"{name}: before the first question"
        _check_cell(where, cell)
        if cell.metadata or is_test(cell) or is_solution(cell):
            _refuse(where, "there must be no test, solution or setting", _first(cell))
    if len(questions) == 1:
        raise ValueError(f'{name} must have a question, which begins with +++ {{"question": "name", "points": 1}}')
    names: list[str] = []
    tests: list[str] = []
    for question in questions[1:]:
        _check_question(name, question)
        names.append(question[0].metadata["question"])
        tests += [_first(cell).partition("(")[0][4:] for cell in question if is_test(cell)]
    for kind, used in [("question", names), ("test", tests)]:
        lower = [one.lower() for one in used]
        for again in (one for i, one in enumerate(used) if one.lower() in lower[:i]):
            raise ValueError(f"{name}: a {kind} must have a name of its own; got {again} again")


def is_test(cell: Any) -> bool:
    """Whether a cell is a test."""
    return cell.cell_type == "code" and bool(TEST.match(cell.source))


def is_solution(cell: Any) -> bool:
    """Whether a cell, or something in it, is for the instructor alone."""
    if cell.cell_type == "code":
        lines = [line.strip() for line in cell.source.splitlines()]
        return not is_test(cell) and any(line == BEGIN or line.endswith(LINE) for line in lines)
    return bool(cell.metadata.get("solution"))


def check_given(problems: ProblemSet, student: Any) -> None:
    """Refuse a student's notebook in which there is something secret after all, or code that is none."""
    names = [_first(cell)[4:].partition("(")[0] for cell in problems.cells if is_test(cell)]
    secrets = [str(problems.values["hidden_seed"]), *(name for name in names if name.startswith("hidden"))]
    for text in (*(cell.source for cell in student.cells), *student.metadata.otter.tests.values()):
        for secret in secrets:
            if secret in text:
                line = next(line for line in text.splitlines() if secret in line)
                _refuse(problems.name, "students must not see hidden_seed or the name of a hidden test", line)
    for cell in student.cells:
        if cell.cell_type == "code":
            try:
                _parsed(cell.source)
            except SyntaxError as error:
                needed = f"what students get of a cell, `{_first(cell)}` ..., must be Python ({error.msg})"
                _refuse(problems.name, needed, error.text or "")


def _check_question(name: str, cells: list[Any]) -> None:
    """Refuse a question that is not as it should be."""
    settings, question = dict(cells[0].metadata), cells[0].metadata["question"]
    where = f"{name}: in question {question}"
    if not isinstance(question, str) or not re.fullmatch(r"\w+", question, re.ASCII):
        _refuse(where, "the name must consist of letters, digits and _", question)
    if not settings.keys() <= {"question", "points", "manual"}:
        _refuse(where, "the keys after +++ must be question, points and manual", ", ".join(settings))
    if settings.get("manual", True) is not True:
        _refuse(where, "manual must be true, or left out", settings["manual"])
    answered = False
    for cell in cells:
        _check_cell(where, cell)
        if cell is not cells[0] and cell.metadata and dict(cell.metadata) != {"solution": True}:
            _refuse(where, 'the setting after +++ must be {"solution": true}', json.dumps(cell.metadata))
        if answered and not is_test(cell):
            _refuse(where, "nothing but tests may follow the model answer", _first(cell))
        answered = answered or (cell.cell_type == "markdown" and is_solution(cell))
    tests = sum(map(is_test, cells))
    if settings.get("manual"):
        if tests or not answered:
            _refuse(where, "which a person marks, there must be a model answer and no test", f"{tests} tests")
    elif not tests:
        _refuse(where, 'there must be a test; or a person marks it, with "manual": true', "none")
    elif not any(is_solution(cell) for cell in cells if cell.cell_type == "code"):
        _refuse(where, f"a cell must have a line with {LINE}, or {BEGIN} and {END}", "none")
    _check_points(where, settings.get("points"), tests)


def _check_points(where: str, points: Any, tests: int) -> None:
    """Refuse points that otter would not take, or take for others."""

    def is_number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf

    shares = points if isinstance(points, list) and tests else [points]
    if not all(map(is_number, shares)) or not sum(shares):
        _refuse(where, "points must be a positive number or, for tests, a list of numbers", json.dumps(points))
    if isinstance(points, list) and len(points) != tests:
        _refuse(where, f"points must be one number or one for each of the {tests} tests", json.dumps(points))


def _check_cell(where: str, cell: Any) -> None:
    """Refuse a cell with a mark that would not be understood."""
    code, test = cell.cell_type == "code", LIKE_A_TEST.search(cell.source)
    if cell.cell_type == "raw" or (code and cell.metadata):
        _refuse(
            where, "a cell must be text, or code without options", json.dumps(cell.metadata) if code else _first(cell)
        )
    for line in cell.source.splitlines():
        if OTHER_MARK.search(line):
            _refuse(where, "the only marks in a cell must be those of a solution", line)
    if not code and is_solution(cell):
        return
    if not code:
        for slip in (test, LIKE_A_CELL.search(cell.source), re.search("<!--.*", cell.source)):
            if slip:
                _refuse(where, "text, which students read, must hold no cell, test or hidden comment", slip[0])
    if code and (test or is_test(cell)):
        _check_test(where, cell, test[0] if test else _first(cell))
    else:
        _check_marks(where, cell)


def _check_test(where: str, cell: Any, got: str) -> None:
    """Refuse a test that would be taken for something else."""
    try:
        (function,) = ast.parse(cell.source).body
    except (SyntaxError, ValueError):
        function = None
    if not is_test(cell) or not isinstance(function, ast.FunctionDef):
        needed = "a test must be a cell of its own that begins with `def test_name(env):` or `def hidden_name(env):`"
        _refuse(where, needed, got)


def _check_marks(where: str, cell: Any) -> None:
    """Refuse marks of a solution that are misspelt or that leave a part of it to students."""
    code, inside = cell.cell_type == "code", False
    alone: set[int] = set()
    for number, line in enumerate(cell.source.splitlines(), start=1):
        text = line.strip()
        if code and text == (END if inside else BEGIN):
            inside = not inside
        elif code and text.endswith(LINE) and text != LINE and len(LIKE_A_MARK.findall(text)) == 1:
            if not inside:
                alone.add(number)
        elif LIKE_A_MARK.search(text):
            _refuse(
                where,
                f"a solution must be code before {LINE} on its line, or lie between the lines {BEGIN} and {END}, "
                'or be text after +++ {"solution": true}',
                text,
            )
    if inside:
        _refuse(where, f"{END} must follow", BEGIN)
    if not code:
        return
    try:
        tree = _parsed(cell.source)
    except SyntaxError as error:
        _refuse(where, f"a cell must be Python ({error.msg})", error.text or _first(cell))
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if len(lines) > 1 and alone.intersection(lines):
                _refuse(where, f"a statement of several lines must lie between {BEGIN} and {END}", ast.unparse(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in HELPERS:
            _refuse(where, "only a test may use answer, call, close and numbers", ast.unparse(node))


def _parsed(source: str) -> ast.Module:
    """A cell's code, with what only notebooks understand."""
    return ast.parse(TransformerManager().transform_cell(source))


def _first(cell: Any) -> str:
    """A cell's first line."""
    return str(cell.source.partition("\n")[0])


def _refuse(where: str, needed: str, got: object) -> NoReturn:
    """Say what was found and what is needed."""
    raise ValueError(f"{where}, {needed}; got `{str(got).strip()}`")
