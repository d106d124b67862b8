r"""Real text as a sequence of tokens: words or characters, of which the most frequent ones are kept.

The text is read piece by piece, and its tokens go to a temporary file that is mapped into memory: memory does not grow
with the corpus. A text must be UTF-8; line ends of any system count as ``\n``.

A word is a run of letters and digits, with apostrophes inside it; all other characters that are no white space are
tokens of their own, as are the end of a line, names in angle brackets (``<unk>``, ``<|endoftext|>``), endings like 's
that stand alone, and ``@-@``, which is WikiText's hyphen inside a word. Tokens that are not kept become ``<unk>``.
"""

import errno
import functools
import hashlib
import io
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike, NDArray

from attention_phases import _checks
from attention_phases._arrays import AnyArray, Array, IntArray
from attention_phases.downloads import PinnedFile, fetch
from attention_phases.focus_dilution.markov_transformer import MarkovChain, Seed

LEVELS = ("word", "char")
UNKNOWN = "<unk>"
_WORD = re.compile(
    r"<\|?\w{1,30}\|?>|@[-.,]@|\w{1,100}(?:['’]\w{1,100}){0,9}|'(?:s|t|re|ve|m|ll|d)\b|\n|[^\w\s]"  # no token is longer
)
_PIECE = 2**20  # characters that are read at once; where so many have no blank between them, a word may be cut
_MOST_WORDS = 2**20  # different ones; what first appears after so many is unknown
_CHARACTERS = 0x110000  # that Unicode has room for
_NO_WORD = 0xFFFFFFFF  # in a file of words, one that is not counted

_WIKITEXT = "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2/"
_STORIES = "https://raw.githubusercontent.com/gusjengis/toy-RNN/e4c7ff8bba4ff7989e69a3a816ebe4b14813b41e/data/"


@dataclass(frozen=True)
class _Origin:
    files: tuple[PinnedFile, ...]
    source: str
    licence: str


_ORIGINS = {
    "wikitext-2": _Origin(
        (
            PinnedFile(
                "wikitext2_valid.txt",
                _WIKITEXT + "valid.txt",
                1_121_681,
                "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            ),
            PinnedFile(
                "wikitext2_test.txt",
                _WIKITEXT + "test.txt",
                1_256_449,
                "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            ),
        ),
        "WikiText-2, validation and test part, from articles of Wikipedia (Merity, Xiong, Bradbury, Socher 2017); "
        f"{_WIKITEXT}",
        "Creative Commons Attribution-ShareAlike (CC BY-SA)",
    ),
    "tinystories": _Origin(
        (
            PinnedFile(
                "tinystories_sample.txt",
                _STORIES + "tinystories_sample.txt",
                2_097_152,
                "5352b299dcb1a32898b2d779b145b5a05f3e1265953fd21c264c9f9f9c9ae33d",
            ),
        ),
        f"the first 2 MiB of the training part of TinyStories (Eldan, Li 2023); {_STORIES}",
        "Community Data License Agreement, Sharing (CDLA-Sharing)",
    ),
}
_PYTHON_DOCS = "python-docs"
NAMES = (_PYTHON_DOCS, *_ORIGINS)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as token numbers.

    Attributes:
        name: "wikitext-2", "tinystories", "python-docs", or the name of a file.
        level: "word" or "char".
        tokens: (n,), numbers in the vocabulary, on disk where there are many. They cannot be written to.
        vocabulary: the d tokens, the most frequent first.
        source: where the text is from.
        licence: of the text.
        sha256: of the text, before anything was made of it.
    """

    name: str
    level: str
    tokens: Int[AnyArray, " n"]
    vocabulary: tuple[str, ...]
    source: str
    licence: str
    sha256: str

    @property
    def n_tokens(self) -> int:
        """d, the number of different tokens."""
        return len(self.vocabulary)

    @functools.cached_property
    def frequencies(self) -> Array:
        """How often each token occurs, over the length of the text, (d,)."""
        return _counts(self.tokens, self.n_tokens) / len(self.tokens)

    @functools.cached_property
    def chain(self) -> MarkovChain:
        """The Markov chain with the text's frequencies of tokens and of pairs: `MarkovChain.from_tokens`."""
        return MarkovChain.from_tokens(self.tokens, self.n_tokens)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """The numbers of tokens.

        Raises:
            ValueError: one of them is not in the vocabulary.
        """
        places = self._places
        for token in (wanted := list(tokens)):
            if token not in places:
                raise ValueError(f"tokens must be in the vocabulary of {self.name}; got {_checks.shown(token)}")
        return [places[token] for token in wanted]

    def encode(self, text: str) -> Int[IntArray, " n"]:
        """The token numbers of a text; what is not in the vocabulary becomes ``<unk>``.

        Raises:
            ValueError: something is not in the vocabulary, and neither is ``<unk>``.
        """
        places = self._places
        tokens = split(text, self.level)
        strange = next((token for token in tokens if token not in places), None)
        if strange is not None and UNKNOWN not in places:
            raise ValueError(f"text must have tokens of the vocabulary of {self.name}; got {_checks.shown(strange)}")
        return np.array([places.get(token, places.get(UNKNOWN, -1)) for token in tokens], dtype=np.int64)

    def text(self, ids: ArrayLike) -> str:
        """The text of token numbers: characters side by side, words with a blank between them."""
        between = " " if self.level == "word" else ""
        return between.join(self.vocabulary[i] for i in np.asarray(ids, dtype=np.int64).tolist())

    def sample(self, n_sequences: int, length: int, seed: Seed) -> Int[IntArray, "n_sequences length"]:
        """Windows of the text that begin anywhere, each place as likely as any other.

        Args:
            n_sequences: how many, >= 1.
            length: tokens of each, >= 1 and at most those of the text.
            seed: a whole number, or a NumPy generator, which is advanced.

        Raises:
            ValueError: names the argument, what it must be and what it got.
        """
        n_sequences = _checks.integer("n_sequences", n_sequences, 1)
        length = _checks.integer("length", length, 1, len(self.tokens))
        begins = _checks.generator(seed).integers(len(self.tokens) - length + 1, size=n_sequences)
        windows: IntArray = self.tokens[begins[:, None] + np.arange(length)].astype(np.int64)
        return windows

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.vocabulary)}


def load_corpus(
    corpus: str | os.PathLike[str] = _PYTHON_DOCS,
    *,
    level: str = "word",
    n_tokens: int | None = 300,
    folder: str | os.PathLike[str] | None = None,
) -> Corpus:
    """A text, split into tokens.

    "wikitext-2" and "tinystories" are samples that lie at public addresses which do not change. They are downloaded
    once, checked, and kept in the user's cache folder; or they are read from a folder that has the files
    wikitext2_valid.txt, wikitext2_test.txt and tinystories_sample.txt. "python-docs" needs no network: it is the text
    of the topics that Python's own help() shows. Its text, and so its sha256, changes with the version of Python.

    Args:
        corpus: "wikitext-2", "tinystories", "python-docs", or the path of a UTF-8 text file.
        level: "word" or "char".
        n_tokens: d, at least 2: so many different tokens are left, the most frequent ones and, if it takes that or the
            text has it, ``<unk>`` for all others; None keeps all.
        folder: that has the samples' files, in place of the network; default: the one that the environment variable
            ATTENTION_PHASES_DATA names, if any.

    Raises:
        ValueError: names the argument; also where a file is missing, empty or no text, or has less than two different
            tokens, or a sample in the folder has a wrong checksum.
        DownloadError: the sample could not be downloaded; the message says what went wrong.
        OSError: the file cannot be read, or there is no space for the tokens in the folder for temporary files.
    """
    level = _checks.choice("level", level, LEVELS)
    most = None if n_tokens is None else _checks.integer("n_tokens", n_tokens, 2)
    if isinstance(corpus, str) and corpus == _PYTHON_DOCS:
        text = _python_docs()
        contents: list[IO[bytes] | Path] = [io.BytesIO(text.encode())]
        name, source = _PYTHON_DOCS, "topics of Python's help(), from pydoc_data of this Python"
        licence = "Python Software Foundation License Version 2"
    elif isinstance(corpus, str) and corpus in _ORIGINS:
        origin = _ORIGINS[corpus]
        contents = [fetch(file, folder) for file in origin.files]
        name, source, licence = corpus, origin.source, origin.licence
    else:
        path = _text_file(corpus)
        contents, name, source, licence = [path], path.name, str(path), "not known"
    digest = hashlib.sha256()
    for content in contents:
        with _opened(content) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    try:
        tokens, vocabulary = _encoded(_pieces(contents, name), level, most)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, f"no space is left for the tokens of {name}", tempfile.gettempdir()) from None
        raise
    if len(vocabulary) < 2:
        raise ValueError(
            f"corpus must have at least 2 different tokens; {name} has {len(vocabulary)} in a text of {len(tokens)}"
        )
    return Corpus(name, level, tokens, vocabulary, source, licence, digest.hexdigest())


def split(text: str, level: str) -> list[str]:
    """The tokens of a text, in order."""
    return _WORD.findall(text) if level == "word" else list(text)


def _python_docs() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def _text_file(corpus: Any) -> Path:
    names = ", ".join(map(repr, NAMES))
    wrong = f"corpus must be one of {names}, or the path of a text file; got {_checks.shown(corpus)}"
    if not isinstance(corpus, str | os.PathLike) or not os.fspath(corpus):
        raise ValueError(wrong)
    path = Path(corpus)
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a zero in it
        there = False
    if not there:
        raise ValueError(wrong)
    if not path.is_file():
        raise ValueError(f"corpus must be one of {names}, or the path of a text file; {path} is no file")
    return path


def _opened(content: IO[bytes] | Path) -> IO[bytes]:
    if isinstance(content, Path):
        return content.open("rb")
    content.seek(0)
    return io.BytesIO(content.read())


def _pieces(contents: Sequence[IO[bytes] | Path], name: str) -> Iterator[str]:
    """The text of all contents, in pieces that end where a word ends."""
    for content in contents:
        with _opened(content) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as stream:
            rest = ""
            while piece := _read(stream, name):
                rest += piece
                end = max(rest.rfind(" "), rest.rfind("\n")) + 1
                if not end and len(rest) < _PIECE:
                    continue
                end = end or len(rest)
                yield rest[:end]
                rest = rest[end:]
            yield rest


def _read(stream: io.TextIOWrapper, name: str) -> str:
    try:
        piece = stream.read(_PIECE)
    except UnicodeDecodeError as error:
        wrong = error.object[error.start : error.start + 1].hex()
        raise ValueError(f"corpus must be UTF-8 text; {name} has the byte 0x{wrong}: {error.reason}") from None
    if "\0" in piece:
        raise ValueError(f"corpus must be UTF-8 text; {name} has a zero byte, as binary files have")
    return piece


def _encoded(pieces: Iterator[str], level: str, n_tokens: int | None) -> tuple[Int[AnyArray, " n"], tuple[str, ...]]:
    """Token numbers, on disk, and the vocabulary.

    In a first pass tokens are numbered as they come; then it is known which ones are kept.
    """
    words: dict[str, int] = {}
    counts = np.zeros(0, dtype=np.int64)
    unknown, length = 0, 0
    with tempfile.TemporaryFile() as file:
        for piece in pieces:
            ids = _numbered(piece, words) if level == "word" else _code_points(piece)
            length += len(ids)
            counted = ids[ids != _NO_WORD]
            unknown += len(ids) - len(counted)
            found = np.bincount(counted)
            if len(found) > len(counts):
                counts.resize(len(found), refcheck=False)
            counts[: len(found)] += found
            file.write(ids.tobytes())
        names = list(words) if level == "word" else list(map(chr, range(len(counts))))
        kept, vocabulary = _kept(names, counts, unknown, n_tokens)
        new = np.full(len(counts) + 1, kept.get(UNKNOWN, 0), dtype=np.min_scalar_type(len(vocabulary)))
        for i in np.flatnonzero(counts).tolist():
            new[i] = kept.get(names[i], new[-1])
        file.seek(0)
        return _renumbered(file, new, length), vocabulary


def _numbered(piece: str, words: dict[str, int]) -> NDArray[np.uint32]:
    """Numbers of the piece's words; new ones are added to `words`, as long as there is room."""
    tokens = _WORD.findall(piece)
    for token in dict.fromkeys(tokens):
        if token not in words and len(words) < _MOST_WORDS:
            words[token] = len(words)
    return np.fromiter(map(words.get, tokens, itertools.repeat(_NO_WORD)), dtype=np.uint32, count=len(tokens))


def _code_points(piece: str) -> NDArray[np.uint32]:
    return np.frombuffer(piece.encode("utf-32-le"), dtype="<u4")


def _kept(
    names: Sequence[str], counts: IntArray, unknown: int, n_tokens: int | None
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The vocabulary, by falling frequency, and each token's place in it."""
    by_count = np.argsort(-counts, kind="stable")
    order = [i for i in by_count.tolist() if counts[i]]
    own = next((i for i in order if names[i] == UNKNOWN), None)
    unknown += 0 if own is None else int(counts[own])
    others = [i for i in order if i != own]
    if n_tokens is not None and len(others) + bool(unknown) > n_tokens:
        unknown += int(counts[others[n_tokens - 1 :]].sum())
        others = others[: n_tokens - 1]
    ranked = [(int(counts[i]), names[i]) for i in others]
    if unknown:
        ranked.append((unknown, UNKNOWN))
        ranked.sort(key=lambda entry: -entry[0])
    vocabulary = tuple(name for _, name in ranked)
    return {name: i for i, name in enumerate(vocabulary)}, vocabulary


def _renumbered(file: IO[bytes], new: AnyArray, length: int) -> Int[AnyArray, " n"]:
    """The numbers in a file after a change of numbers, in another file that is gone when nobody uses them."""
    if not length:
        return np.empty(0, dtype=new.dtype)
    with tempfile.TemporaryFile() as result:
        while piece := file.read(4 * _PIECE):
            old = np.minimum(np.frombuffer(piece, dtype="<u4"), len(new) - 1)
            result.write(new[old].tobytes())
        result.flush()
        return np.memmap(result, dtype=new.dtype, mode="r", shape=(length,))


def _counts(tokens: Int[AnyArray, " n"], n_tokens: int) -> Int[IntArray, " d"]:
    total = np.zeros(n_tokens, dtype=np.int64)
    for begin in range(0, len(tokens), _PIECE):
        total += np.bincount(tokens[begin : begin + _PIECE], minlength=n_tokens)
    return total
