"""``python -m tests.docs.prose``: the English of pages and strings, by the word lists below; one line for every fault.

All pages: words of ``INSTEAD``, lines longer than 119 columns (tables excepted, and what cannot be broken), and
paragraphs that do not end as a sentence does. Pages not in ``NOT_YET``: house words as well, and the share of long
sentences. Strings of the packages (docstrings, help, errors, everything printed): house words. Code in a page or a
string is read for its columns only.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = 119
LONG = 25  # words of a sentence
# What we do not write, and what to write instead.
INSTEAD = {
    r"the README": "a link to the page; the README is not in the site",
    r"utili[sz]e[sd]?|leverag(e|es|ed|ing)": "use",
    r"in order to": "to",
    r"and/or": "or",
    r"whilst": "while",
    r"e\.g\.": "for example",
    r"i\.e\.": "that is",
    r"etc\.": "name the rest, or such as",
    r"vs\.": "against",
    r"obviously|of course|clearly,|simply": "nothing",
    r"seamless(ly)?|state-of-the-art|cutting-edge|blazing(ly)?": "a number",
    r"anonymi[sz]ed": "private at an epsilon; nothing here is anonymous",
    r"completely (private|safe|secure)": "private at an epsilon",
    r"privacy budget is (gone|burnt|burned)": "the budget is spent",
    r"homogenous": "homogeneous",
    r"hyper-parameters?": "hyperparameter",
    r"data-?set's": "of the data",
    r"fine[- ]tun(e|es|ed|ing)": "tune",
    r"optimiz(e|es|ed|er|ers|ing|ation)": "optimise: the pages are in British English",
    r"behavior|color|neighbor": "the British spelling",
    r"please note that|note that|it should be noted": "the sentence alone",
}
# Words that this project made its own, and the field's word for each. A pattern leaves out what the field says too.
HOUSE = {
    r"(some|no|every|any)body('s)?|whoever": "the actor: a client, the server, the operator, an observer",
    r"beside": "versus, compared with, next to, in addition to",
    r"(?<![\"'])zeroed(?![\"'])|sums? set to zero": "noise-only control",
    r"dear(est)?": "most expensive",
    r"paid(?!:)|pays?|paying": "charged, covered, spent, costs",
    r"mend(s|ed|ing)?": "fix",
    r"rivals?": "baseline",
    r"deals?( of)?": "random split",
    r"crews?": "worker pool",
    r"shel(f|ves)": "state store",
    r"desks?": "trial store",
    r"councils?": "committee of guardians",
    r"houses?|rooms?(?!\s+(for|to)\b)": "package, module, layer",
    r"letter ?box(es)?|sealed letters?": "ciphertext",
    r"loudness": "signal-to-noise ratio",
    r"beliefs?": "posterior",
    r"habits?": "exploration strategy, behaviour",
    r"riddles?|peeked|ceilings?": "what is counted",
    r"the law as|held to the law": "invariants",
    r"roads?|walk(s|ed|ing)? (down|through)": "data flow, descend",
    r"sealed(?!:)": "encrypted",
    r"officers?|recount(s|ed)?|witness(es)?": "auditor, verification, commit log",
}
# Pages whose sentences were not edited yet; the list only shrinks.
NOT_YET = (".github/", "docs/results/records.md", "docs/results/shared-prior-tried.md")
PACKAGES = ("privbo", "accountant")
LARGEST_SHARE = 0.1  # of sentences longer than LONG, on an edited page
_LIST, _HOUSE = (
    [(re.compile(rf"(?<![\w/.-])(?:{bad})(?![\w-])", re.IGNORECASE), good) for bad, good in words.items()]
    for words in (INSTEAD, HOUSE)
)
_GENERATED = re.compile(r"<!-- table .*?<!-- end -->|```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"``.*?``|`[^`]*`|^ *(>>>|\.\.\.) .*$", re.DOTALL | re.MULTILINE)
# Not prose: tables, headings, comments, pictures, directives, addresses of links.
_SKIPPED = re.compile(r"[|#<>(:%]|!\[|\$\$|\[[\w-]+\]: ")
_END = re.compile(r"[.!?:]['\")*_\]]*$|\)[*_]*$|[,;]$|\bQED$")


def pages() -> list[Path]:
    """Give every page that is read: the site's, and what stands at the top of the repository."""
    folders = (ROOT / name for name in ("docs", "paper", ".github"))
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def paragraphs(text: str):
    """Give every paragraph of prose, with its first line's number and whether code follows it."""
    code, block, start = False, list[str](), 1
    lines = [*text.split("\n"), ""]
    if lines[0] == "---":  # a notebook's head
        lines[: lines.index("---", 1) + 1] = [""] * (lines.index("---", 1) + 1)
    for number, line in enumerate(lines, 1):
        fence = line.lstrip().startswith(("```", ":::"))
        if fence or not line.strip() or re.match(r" *([-*+]|\d+\.) ", line) or code:
            if block and not _SKIPPED.match(block[0]):
                after = next((later for later in lines[number - 1 :] if later.strip()), "")
                yield start, "\n".join(block), after.startswith(("```", "<!--", "|", "-", "1.", ":::", "$$", "  "))
            block, start = [], number
        code = code != line.lstrip().startswith("```")
        if line.strip() and not fence and not code:
            block.append(line)


def sentences(text: str):
    """Give the sentences of a page's prose; code, a formula and a link's address count as one word or none."""
    for _, paragraph, _ in paragraphs(text):
        prose = re.sub(r"^ *([-*+]|\d+\.) +", "", paragraph)
        prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", "X", prose, flags=re.DOTALL))
        yield from re.split(r"(?<=[.!?])[)\"'*_\]]*\s+(?=[\"'(*_\[]*[A-Z0-9])", prose.strip())


def faults(text: str):
    """Give the line and the words of every fault of a page."""
    for number, line in enumerate(text.split("\n"), 1):
        breakable = not line.startswith(("|", "![")) and max(map(len, line.split()), default=0) < COLUMNS - 20
        if len(line) > COLUMNS and breakable:
            yield number, f"{len(line)} columns; at most {COLUMNS}"
        if line.lstrip().startswith("%"):
            yield number, "begins with %: the site takes the line for a comment and leaves it out"
    for number, paragraph, before_code in paragraphs(text):
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+|(?<!\*)\*[^*]+\*", "`", paragraph)  # no code, links, titles
        for pattern, good in _LIST:
            if found := pattern.search(prose):
                yield number + prose[: found.start()].count("\n"), f"{found[0]!r}: write {good}"
        words = prose.split()
        if len(words) > 12 and not before_code and not _END.search(prose.rstrip().rstrip("`")):
            yield number, f"a paragraph ends without a full stop: ...{' '.join(words[-4:])}"


def house_words(text: str):
    """Give the line and the words of every house word of a text, code and generated tables left out."""
    for hidden in (_GENERATED, _CODE):
        text = hidden.sub(lambda found: "X" + "\n" * found[0].count("\n"), text)
    for pattern, good in _HOUSE:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, f"{found[0]!r}: write {good}"


def faults_of_edited(text: str):
    """Give the faults that only edited pages are asked about."""
    yield from house_words(text)
    is_long = [len(sentence.split()) > LONG for sentence in sentences(text)]
    if (share := sum(is_long) / max(1, len(is_long))) > LARGEST_SHARE:
        yield 1, f"{share:.0%} of the sentences have more than {LONG} words; at most {LARGEST_SHARE:.0%}"


def faults_of_code(source: str):
    """Give the house words in the strings of a module: docstrings, help, errors, what is printed; no identifiers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from ((node.lineno + line - 1, words) for line, words in house_words(node.value))


def all_faults() -> list[str]:
    """Give every fault of every page, and of the strings of the packages."""
    found = []
    for page in pages():
        name, text = str(page.relative_to(ROOT)), page.read_text()
        listed = [*faults(text), *(() if name.startswith(NOT_YET) else faults_of_edited(text))]
        found += [f"{name}:{line}: {words}" for line, words in listed]
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        found += [f"{path.relative_to(ROOT)}:{line}: {words}" for line, words in faults_of_code(path.read_text())]
    return found


if __name__ == "__main__":
    listed = all_faults()
    print("\n".join(listed) or f"the prose of {len(pages())} pages and of {' and '.join(PACKAGES)} is clean")
    sys.exit(bool(listed))
