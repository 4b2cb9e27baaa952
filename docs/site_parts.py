"""Parts of the site that are made from the code: settings, commands, formulas, and docstrings as Sphinx reads them."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # Sphinx and docutils are read where a page is made: tests read the tables without them
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent
Table: TypeAlias = Mapping[str, Any]  # a part of the JSON schema
_MARK = re.compile(r"^<!-- (settings|commands|defaults: (?P<kind>[\w-]+)) -->$", re.MULTILINE)
_PAGE = re.compile(r"``docs/([\w/-]+)\.md``|docs/([\w/-]+)\.md")
_AS_FOR = re.compile(r"As for ``(\w+)``\.")
_ATTRIBUTE = re.compile(r"^(\w+(?:, \w+)*): ")


def formula_in_line(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers draw without scripts."""
    _write_formula(translator, node, as_block=False)


def formula_on_its_own(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    _write_formula(translator, node, as_block=True)


def _write_formula(translator: HTML5Translator, node: nodes.math | nodes.math_block, *, as_block: bool) -> None:
    from docutils.nodes import SkipNode
    from docutils.utils.math.latex2mathml import tex2mathml

    translator.body.append(tex2mathml(node.astext(), as_block=as_block))
    raise SkipNode


def docstring_for_sphinx(
    _app: Sphinx, _what: str, _name: str, _thing: object, _options: object, lines: list[str]
) -> None:
    """Turn what docstrings have for readers of the code into what Sphinx links and draws: pages, Markdown tables."""
    lines[:] = _tables(_blocks(_PAGE.sub(_link, "\n".join(lines)).split("\n")))


def _link(found: re.Match[str]) -> str:
    """Give a link to a page that is there; what is not in the site stays a name."""
    name = found[1] or found[2]
    return f":doc:`/{name}`" if (HERE / f"{name}.md").exists() else found[0]


def _blocks(lines: list[str]) -> Iterator[str]:
    """Give lines with bars that stand for norms escaped, and with indented code of its own said to be code."""
    before = ""  # the last line that is not blank
    for line in lines:
        indented = line.startswith("    ")
        if indented and before and not before.startswith(" ") and not before.endswith(":"):
            yield from ["::", ""]
        plain = not line.startswith("|") and not line.strip().startswith((">>>", "..."))
        yield re.sub(r"(``.*?``)|\|", lambda found: found[1] or "\\|", line) if plain else line
        before = line if line.strip() else before


def _tables(lines: Iterator[str]) -> Iterator[str]:
    """Give lines with Markdown tables written as Sphinx's."""
    inside = False
    for line in lines:
        row, inside_before = line.startswith("|"), inside
        inside = row
        if not row:
            yield line
            continue
        if not inside_before:
            yield from [".. list-table::", "   :header-rows: 1", ""]
        if not set(line) <= set("|-: "):
            for column, cell in enumerate(line.strip("|").split("|")):
                yield f"   {' ' if column else '*'} - {cell.strip()}"


_BY_NAME = re.compile(r"^ +- ``(\w+)``: (.*?)(?=\n +- ``|\n\n)", re.DOTALL | re.MULTILINE)
"""A setting that a function takes by name, and its text."""


def described(schema: Table) -> dict[str, str]:
    """Give the texts of a settings' ``Attributes``, by name."""
    texts: dict[str, str] = {}
    names: list[str] = []
    _, _, attributes = inspect.cleandoc(str(schema.get("description", ""))).partition("Attributes:\n")
    inside = itertools.takewhile(lambda line: not line or line.startswith(" "), attributes.split("\n"))
    for line in textwrap.dedent("\n".join(inside)).rstrip().split("\n"):
        if found := _ATTRIBUTE.match(line):
            names = found[1].split(", ")
            texts |= dict.fromkeys(names, line[found.end() :].strip())
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {name: _followed(name, text) for name, text in texts.items()}


def _followed(name: str, text: str) -> str:
    """Give a text, or the one that it sends its reader to."""
    if (found := _AS_FOR.fullmatch(text)) is None:
        return text
    from privbo.protocol.settings import settings_schema
    from privbo.runs.sources import algorithms

    (kind,) = (kind for kind in algorithms().values() if kind.__name__ == found[1])
    return described(settings_schema(kind))[name]


def allowed(part: Table, definitions: Table) -> str:
    """Say in words which values a schema takes."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        inner = definitions[name]
        return f"table [{name}](#table-{name.lower()})" if "properties" in inner else allowed(inner, definitions)
    for key in ("anyOf", "oneOf"):
        if key in part:
            return " or ".join(dict.fromkeys(allowed(inner, definitions) for inner in part[key]))
    if "enum" in part or "const" in part:
        return ", ".join(f"`{_written(value)}`" for value in part.get("enum", [part.get("const")]))
    kind = str(part.get("type", "value"))
    if kind == "array":
        return f"list of {allowed(part['items'], definitions)}" if "items" in part else "list"
    words = {
        "object": "table",
        "null": "nothing",
        "string": "text",
        "integer": "whole number",
        "boolean": "`true`, `false`",
    }
    bounds = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = [f"{sign} {part[key]:g}" for key, sign in bounds.items() if key in part]
    return " ".join([words.get(kind, kind), ", ".join(limits)]).strip()


def _written(value: object) -> str:
    if value is None:
        return "none"
    return json.dumps(value)


def settings_table(schema: Table, definitions: Table, made: object = None) -> Iterator[str]:
    """Give one table of settings as Markdown: name, what is allowed, default, meaning.

    Tables that are ``made`` with defaults of their own show in what these differ from the table's.
    """
    from privbo.protocol.settings import dump_settings

    texts, needed = described(schema), set(schema.get("required", ()))
    yield "| setting | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for name, part in schema["properties"].items():
        if name != "type" or "const" not in part:
            inner = getattr(made, name, None) if "default" not in part else None
            default = part.get("default") if inner is None else dump_settings(inner, defaults=False)
            default = "must be given" if name in needed else f"`{_written(default)}`"
            default = "that table's" if default == "`{}`" and inner is not None else default
            text = texts.get(name, "").replace("``", "`").replace("|", "\\|")
            if not text:
                raise ValueError(f"{schema.get('title')}.{name} has no words under Attributes")
            cells = [f"`{name}`", allowed(part, definitions).replace("|", "\\|"), default, text]
            yield f"| {' | '.join(cells)} |"


def settings_reference() -> Iterator[str]:
    """Give every table of a configuration file, from the schema that ``privbo schema`` prints."""
    from privbo.runs.loop import run
    from privbo.runs.sources import algorithms
    from privbo.runs.spec import Spec, schema

    found = dict(schema())
    # The file's table has no words of its own: they stand at ``Spec``, and at ``run`` for what both take by name.
    texts = described({"description": str(run.__doc__).replace("Args:", "Attributes:")})
    texts |= {name: " ".join(text.split()) for name, text in _BY_NAME.findall(str(run.__doc__))}
    texts["directory"] = "Where the run is kept; none for a new folder below ``runs``."
    words = ["Attributes:", *(f"{name}: {text}" for name, text in texts.items())]
    found["description"] = str(Spec.__doc__).replace("Attributes:", "\n        ".join(words))
    definitions: Table = found["$defs"]  # type: ignore[assignment]  # the schema's own form
    top: Any = found["properties"]
    yield from ["", "## The file", "", *settings_table({**found, "properties": top}, definitions), ""]
    for table, title in (("privacy", "Privacy"), ("algorithm", "Algorithms")):
        yield from [f"## {title}", ""]
        for kind in top[table]["oneOf"]:
            if "title" in kind:
                tag = kind["properties"].get("type", {}).get("const")
                made = algorithms()[tag]() if table == "algorithm" and tag else None
                heading = f'`type = "{tag}"`' if tag else f"`[{table}]`: {kind['title']}"
                yield from [f"### {heading}", "", *settings_table(kind, definitions, made), ""]
    yield from ["## Tables inside these", ""]
    for name, part in sorted(definitions.items()):
        if "properties" in part:
            yield from [f"(table-{name.lower()})=", "", f"### {name}", "", *settings_table(part, definitions), ""]
    yield from _sweep_reference(definitions)


def _sweep_reference(known: Table) -> Iterator[str]:
    """Give the tables of a sweep's file that are not a run's as well."""
    from privbo.comparisons.sweep_file import SweepConfig
    from privbo.protocol.settings import settings_schema

    schema: Any = settings_schema(SweepConfig)
    definitions = schema["$defs"]
    yield from ["## A sweep", "", "What `privbo compare FILE` reads ([compare](how-to/compare.md)).", ""]
    yield from [*settings_table(schema, definitions), ""]
    for name, part in sorted(definitions.items()):
        if "properties" in part and name not in known:
            yield from [f"(table-{name.lower()})=", "", f"### {name}", "", *settings_table(part, definitions), ""]


def defaults_of(kind: str) -> Iterator[str]:
    """Give the settings of one algorithm with their defaults."""
    from privbo.protocol.settings import settings_schema
    from privbo.runs.sources import algorithms

    schema: Any = settings_schema(algorithms()[kind])
    definitions = schema.get("$defs", {})
    for line in settings_table(schema, definitions, algorithms()[kind]()):
        yield re.sub(r"\]\(#(table-[\w]+)\)", r"](/settings.md#\1)", line)


def commands() -> Iterator[str]:
    """Give every command with its help, as a terminal shows it."""
    import typer.main

    from privbo.cli.main import app

    yield from _command(typer.main.get_command(app), "privbo")


def _command(command: Any, name: str) -> Iterator[str]:  # noqa: ANN401  (click's, whose types typer hides)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield from [f"## {name}", "", (command.help or "").replace("\b", ""), ""]
        yield from ["| option | meaning | default |", "|---|---|---|"]
        for option in command.params:
            yield _option(option)
        yield ""
    else:
        for key, found in sorted(inner.items()):
            yield from _command(found, f"{name} {key}")


def _option(option: Any) -> str:  # noqa: ANN401  (click's, whose types typer hides)
    is_option = option.param_type_name == "option"
    words = [*option.opts, *option.secondary_opts] if is_option else [option.name.upper()]
    plain = option.default is not None and not callable(option.default) and option.default not in ((), False)
    shown = f"`{option.default}`" if plain else ""
    meaning = " ".join((getattr(option, "help", None) or "").split())
    return f"| {', '.join(f'`{word}`' for word in words)} | {meaning} | {shown} |"


def _generated(_app: Sphinx, _name: str, source: list[str]) -> None:
    """Put what is made from the code in the place of its mark."""
    makers = {"settings": settings_reference, "commands": commands}

    def made(found: re.Match[str]) -> str:
        return "\n".join(defaults_of(found["kind"]) if found["kind"] else makers[found[1]]())

    source[0] = _MARK.sub(made, source[0])


def _lazily(_app: Sphinx, doctree: nodes.document, _name: str) -> None:
    """Have pictures loaded when a reader comes near them."""
    from docutils.nodes import image as picture

    for image in doctree.findall(picture):
        image["loading"] = "lazy"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts."""
    app.add_html_math_renderer("mathml", (formula_in_line, None), (formula_on_its_own, None))
    app.connect("source-read", _generated)
    app.connect("doctree-resolved", _lazily)
    app.connect("autodoc-process-docstring", docstring_for_sphinx, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
