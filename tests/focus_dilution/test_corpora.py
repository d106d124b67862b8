"""Facts about texts as token numbers, and about the chain of a text."""

from __future__ import annotations

import copy
import errno
import hashlib
import importlib
import os
import pickle
import resource
import shutil
import string
import subprocess
import sys
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    Corpus,
    MarkovChain,
    Parameters,
    attention,
    condensation_rate,
    contraction_rates,
    corpora,
    excess_loss,
    focus_rate,
    gradient_flow,
    linear_condensation,
    load_corpus,
    mass_redistribution,
    population_loss,
    predict_timeline,
    rank_one_flow,
    symmetry_breaking_rate,
    train_transformer,
)
from attention_phases.focus_dilution.corpora import split
from hypothesis import given, settings
from hypothesis import strategies as st
from markov import CHAINS
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

MODULE = importlib.import_module("attention_phases.focus_dilution.corpora")
FOLDER = os.environ.get("ATTENTION_PHASES_DATA")
LEVELS = ["word", "char"]
settings.register_profile("no deadline", deadline=None)  # a busy machine takes longer for one example than for another
settings.load_profile("no deadline")
LINES = (
    "One day, Lily didn't see the big <unk>. \"It's a state @-@ of @-@ the @-@ art cat!\"\n"
    "<|endoftext|> ’s 's l’été été\n"
)


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---- tokens


def test_words_marks_and_ends_of_lines_are_tokens() -> None:
    assert split(LINES, "word") == [
        *(
            "One",
            "day",
            ",",
            "Lily",
            "didn't",
            "see",
            "the",
            "big",
            "<unk>",
            ".",
            '"',
            "It's",
            "a",
            "state",
            "@-@",
            "of",
        ),
        *("@-@", "the", "@-@", "art", "cat", "!", '"', "\n", "<|endoftext|>", "’", "s", "'s", "l’été", "été", "\n"),
    ]


@given(st.text(max_size=300))
def test_tokens_have_all_of_a_text_but_its_blanks(text: str) -> None:
    assert split(text, "char") == list(text)
    blank = "".join(c for c in text if c == "\n" or not c.isspace())
    assert "".join(split(text, "word")) == blank


def test_no_token_is_longer_than_a_thousand_characters() -> None:
    for text in ("x" * 5000, "a'" * 5000, "漢’字" * 5000, "<" + "x" * 5000 + ">"):
        tokens = split(text, "word")
        assert "".join(tokens) == text
        assert max(map(len, tokens)) < 1010


words = st.text(string.ascii_letters + "éß漢字ж0123456789", min_size=1, max_size=12)
some_text = st.lists(words | st.sampled_from([",", ".", "\n", "<unk>", "(", "😀", "'s", "don't", "@-@"]), max_size=60)


@given(some_text)
def test_words_that_are_put_together_fall_apart_into_the_same(tokens: list[str]) -> None:
    assert split(" ".join(tokens), "word") == tokens


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("text", [LINES, "a b " * 50, "漢字 😀 ж\n" * 3, "é e\u0301 é", "\ufeffa b"])
def test_a_text_goes_to_numbers_and_back(text: str, level: str, tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, text), level=level, n_tokens=None)
    back = corpus.text(corpus.tokens)
    text = text.removeprefix("\ufeff")
    assert back == (text if level == "char" else " ".join(split(text, "word")))
    np.testing.assert_array_equal(corpus.encode(text), corpus.tokens)
    np.testing.assert_array_equal(corpus.encode(back), corpus.tokens)


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_are_ranks_of_frequency(level: str, tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, LINES * 3 + "the the big"), level=level, n_tokens=None)
    counts = Counter(split(LINES * 3 + "the the big", level))
    assert set(corpus.vocabulary) == set(counts)
    found = [counts[token] for token in corpus.vocabulary]
    assert found == sorted(found, reverse=True)
    np.testing.assert_allclose(corpus.frequencies * len(corpus.tokens), found)


@pytest.mark.parametrize("n_tokens", [2, 3, 5, 12])
def test_all_but_the_most_frequent_tokens_become_unknown(n_tokens: int, tmp_path: Path) -> None:
    text = " ".join(letter for k, letter in enumerate("abcdefgh") for _ in range(30 - 3 * k))
    corpus = load_corpus(written(tmp_path, text), n_tokens=n_tokens)
    kept = "abcdefgh"[: n_tokens - 1] if n_tokens < 8 else "abcdefgh"
    assert set(corpus.vocabulary) == {*kept, "<unk>"} if n_tokens < 8 else set(kept)
    assert corpus.text(corpus.tokens) == " ".join(c if c in kept else "<unk>" for c in text.split())


def test_an_unknown_token_of_the_text_and_those_that_are_cut_off_are_one(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "a <unk> b a <unk> c a d"), n_tokens=3)
    assert corpus.vocabulary == ("<unk>", "a", "b")
    assert corpus.text(corpus.tokens) == "a <unk> b a <unk> <unk> a <unk>"
    assert corpus.encode("a zebra").tolist() == corpus.ids(["a", "<unk>"])


def test_a_token_that_is_not_there_is_refused(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "a b a"))
    with pytest.raises(ValueError, match=r"tokens must be in the vocabulary of text\.txt; got 'c'"):
        corpus.ids(["a", "c"])
    with pytest.raises(ValueError, match=r"text must have tokens of the vocabulary of text\.txt; got 'c'"):
        corpus.encode("a c")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_ends_of_lines_of_any_system_are_the_same(end: str, level: str, tmp_path: Path) -> None:
    texts = [load_corpus(written(tmp_path, LINES.replace("\n", kind)), level=level) for kind in ("\n", end)]
    assert texts[0].vocabulary == texts[1].vocabulary
    np.testing.assert_array_equal(texts[0].tokens, texts[1].tokens)
    assert texts[0].sha256 != texts[1].sha256


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [20, 64, 1000])
def test_how_a_text_is_read_does_not_matter(
    size: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, (LINES + "word " * 7).replace("\n", "\r\n") * 5)
    whole = load_corpus(path, level=level, n_tokens=12)
    monkeypatch.setattr(MODULE, "_PIECE", size)
    pieces = load_corpus(path, level=level, n_tokens=12)
    assert pieces.vocabulary == whole.vocabulary
    np.testing.assert_array_equal(pieces.tokens, whole.tokens)
    np.testing.assert_allclose(pieces.frequencies, whole.frequencies)
    assert pieces.sha256 == whole.sha256


def test_words_beyond_the_room_there_is_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_MOST_WORDS", 3)
    monkeypatch.setattr(MODULE, "_PIECE", 4)
    corpus = load_corpus(written(tmp_path, "a b a c a d d d d e a"), n_tokens=None)
    assert set(corpus.vocabulary) == {"a", "b", "c", "<unk>"}
    assert corpus.text(corpus.tokens) == "a b a c a <unk> <unk> <unk> <unk> <unk> a"


def test_the_numbers_cannot_be_written_to(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "a b a c"))
    with pytest.raises(ValueError, match="read-only"):
        corpus.tokens[0] = 1


# ---- what is no text


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at least 2 different tokens; text.txt has 0 in a text of 0"),
        (b"a", "at least 2 different tokens; text.txt has 1 in a text of 1"),
        (b"aaa\xff\xfe", "must be UTF-8 text; text.txt has the byte 0xff"),
        (b"some text\n\x00\x01\x02\x00", "must be UTF-8 text; text.txt has a zero byte"),
        ("text".encode("utf-16"), "must be UTF-8 text; text.txt has the byte 0xff"),
        (b"cut off: \xe6\xbc", "must be UTF-8 text; text.txt has the byte 0xe6: unexpected end of data"),
    ],
)
def test_what_is_no_text_is_refused(content: bytes, message: str, level: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_corpus(written(tmp_path, content), level=level)


@pytest.mark.parametrize("content", [b"\n\n", b"   ", b" \t ", b"word"])
def test_a_text_of_one_kind_of_word_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="corpus must have at least 2 different tokens"):
        load_corpus(written(tmp_path, content))


@pytest.mark.parametrize(
    "corpus", ["wikitext", "", 3, None, "nowhere/to/be/found.txt", ["a"], np.ones(2), "a\0b", "x" * 5000]
)
def test_what_is_no_corpus_is_refused(corpus: Any) -> None:
    names = "'python-docs', 'wikitext-2', 'tinystories', or the path of a text file"
    with pytest.raises(ValueError, match=f"corpus must be one of {names}; got"):
        load_corpus(corpus)


def test_a_disk_without_room_for_the_tokens_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MODULE, "_renumbered", full)
    with pytest.raises(OSError, match=r"no space is left for the tokens of text\.txt"):
        load_corpus(written(tmp_path, "a b"))


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path} is no file"):
        load_corpus(tmp_path)
    with pytest.raises(ValueError, match="level must be one of 'word', 'char'; got 'byte'"):
        load_corpus(level="byte")
    for n_tokens in (1, 0, 2.5, "all"):
        with pytest.raises(ValueError, match="n_tokens must be a whole number of at least 2"):
            load_corpus(n_tokens=n_tokens)  # type: ignore[arg-type]


# ---- the named corpora


def test_the_default_needs_no_network_and_says_which_text_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from pydoc_data.topics import topics

    monkeypatch.setattr("socket.socket.connect", None)
    corpus = load_corpus()
    text = "\n".join(topics[name] for name in sorted(topics))
    assert corpus.name == "python-docs"
    assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert corpus.n_tokens == 300
    assert len(corpus.tokens) == len(split(text, "word")) > 50_000
    assert "Python Software Foundation" in corpus.licence
    assert load_corpus(level="char", n_tokens=None).text(load_corpus(level="char", n_tokens=None).tokens) == text


def test_a_sample_without_its_file_says_which_one_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder must be a folder with the file wikitext2_valid\.txt; .* has none"):
        load_corpus("wikitext-2", folder=tmp_path)
    (tmp_path / "tinystories_sample.txt").write_text("Once upon a time")
    with pytest.raises(ValueError, match=r"tinystories_sample\.txt must have the sha256 5352b299"):
        load_corpus("tinystories", folder=tmp_path)


def test_addresses_are_pinned() -> None:
    files = [file for origin in MODULE._ORIGINS.values() for file in origin.files]
    assert len(files) == 3
    for file in files:
        assert file.url.startswith("https://raw.githubusercontent.com/")
        assert any(len(part) == 40 and set(part) <= set("0123456789abcdef") for part in file.url.split("/"))
        assert len(file.sha256) == 64


@pytest.mark.skipif(FOLDER is None, reason="ATTENTION_PHASES_DATA names no folder with the samples")
@pytest.mark.parametrize(
    ("name", "n", "licence", "frequent"),
    [("wikitext-2", 455_097, "CC BY-SA", "the"), ("tinystories", 406_378, "CDLA-Sharing", ".")],
)
def test_the_samples_are_what_they_are_said_to_be(name: str, n: int, licence: str, frequent: str) -> None:
    corpus = load_corpus(name, n_tokens=300)
    assert len(corpus.tokens) > n  # which counts what lies between blanks; marks are split off here
    assert licence in corpus.licence
    assert corpus.vocabulary[:2] == ("<unk>", frequent)
    assert corpus.n_tokens == 300
    chain = corpus.chain
    np.testing.assert_allclose(chain.stationary, corpus.frequencies, rtol=1e-12)
    np.testing.assert_allclose(chain.stationary @ chain.transition, chain.stationary, rtol=1e-9)


@pytest.mark.skipif(not FOLDER, reason="ATTENTION_PHASES_DATA names no folder with the samples")
@pytest.mark.parametrize(("name", "least"), [("wikitext-2", 18_000), ("tinystories", 6_500)])
def test_the_whole_vocabulary_of_a_sample_gives_a_chain(name: str, least: int) -> None:
    corpus = load_corpus(name, n_tokens=None)
    assert corpus.n_tokens > least
    np.testing.assert_allclose(corpus.chain.stationary, corpus.frequencies, rtol=1e-12)
    np.testing.assert_allclose(corpus.frequencies @ corpus.chain.matrix, corpus.frequencies, rtol=1e-9)
    kept = corpus.chain.matrix
    assert isinstance(kept, csr_array)
    assert kept.data.nbytes + kept.indices.nbytes + kept.indptr.nbytes < 3 * 2**20


# ---- large texts

LARGE = """
import resource, sys, time
import numpy as np
from attention_phases.focus_dilution import corpora, load_corpus
load_corpus()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
corpus = load_corpus(sys.argv[1], level=sys.argv[2], n_tokens=None)
assert len(corpus.tokens) == int(sys.argv[3]), len(corpus.tokens)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
SIZE = 200 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "level", "n"),
    [(b"sentence ", "word", 1), (b"one two. ", "char", 9), (b"a1b2c3d4e", "word", 9 / 100)],
    ids=["words", "characters", "one long word"],
)
def test_200_mb_of_one_line_fit_into_little_memory(line: bytes, level: str, n: float, tmp_path: Path) -> None:
    """At most 100 MB more than for a small text; two minutes are ten times what it takes."""
    if (free := shutil.disk_usage(tmp_path).free) < 2 * 2**30:  # the text, and four bytes for each of its tokens
        pytest.skip(f"the disk of temporary files has {free / 2**30:.1f} GiB free, two are needed")
    path, repeats = tmp_path / "line.txt", SIZE // 9
    with path.open("wb") as file:
        for _ in range(repeats // 2**10):
            file.write(line * 2**10)
        file.write(b"?")
    n_tokens = round(n * (repeats // 2**10) * 2**10) + 1
    if n < 1:  # a word is cut after 100 letters, and where a piece ends
        length = 9 * (repeats // 2**10) * 2**10
        whole, rest = divmod(length, 2**20)
        n_tokens = whole * -(-(2**20) // 100) + -(-rest // 100) + 1
    result = subprocess.run(
        [sys.executable, "-c", LARGE, str(path), level, str(n_tokens)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) * (1 if sys.platform == "darwin" else 1024) < 100 * 2**20


# ---- the chain of a text


def test_a_chain_has_the_pairs_of_its_text_closed_to_a_ring() -> None:
    chain = MarkovChain.from_tokens([0, 1, 0, 2, 0, 1], 3)  # and 1 -> 0
    np.testing.assert_allclose(chain.transition, [[0.0, 2 / 3, 1 / 3], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(chain.stationary, [3 / 6, 2 / 6, 1 / 6])


@given(st.lists(st.integers(0, 7), min_size=2, max_size=60).filter(lambda ids: len(set(ids)) > 1))
def test_any_text_of_two_tokens_gives_a_chain_whose_stationary_distribution_is_its_frequencies(ids: list[int]) -> None:
    chain = MarkovChain.from_tokens(ids)
    kept = sorted(set(ids))
    assert chain.token_ids.tolist() == kept
    np.testing.assert_allclose(chain.stationary, np.bincount(ids)[kept] / len(ids))
    again = MarkovChain(chain.transition)  # which checks it, and solves for pi
    np.testing.assert_allclose(again.stationary, chain.stationary, rtol=1e-12)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.floats(0.01, 10))
def test_smoothing_adds_to_each_pair_and_keeps_all_tokens(ids: list[int], smoothing: float) -> None:
    chain = MarkovChain.from_tokens(ids, 6, smoothing)
    counts = np.full((6, 6), smoothing)
    np.add.at(counts, (ids, ids[1:] + ids[:1]), 1)
    np.testing.assert_allclose(chain.transition, counts / counts.sum(axis=1, keepdims=True))
    assert chain.token_ids.tolist() == list(range(6))


def test_of_several_texts_that_have_no_token_in_common_the_largest_class_is_left() -> None:
    chain = MarkovChain.from_tokens([[0, 1, 0, 1], [4, 2, 4, 2], [2, 4, 4, 4]], 6)
    assert chain.token_ids.tolist() == [2, 4]
    np.testing.assert_allclose(chain.transition, [[0.0, 1.0], [3 / 5, 2 / 5]])


def test_the_chain_of_a_sample_comes_near_the_chain() -> None:
    """Each row's deviation is that of the mean of its own draws, within five standard errors."""
    for name in ("lazy", "reversible"):
        chain, n = CHAINS[name], 20_000
        found = MarkovChain.from_tokens(chain.sample(1, n, 0)[0], chain.n_tokens)
        error = np.sqrt(chain.transition * (1 - chain.transition) / (n * chain.stationary[:, None]))
        assert (np.abs(found.transition - chain.transition) <= 5 * error + 1e-12).all()


def test_pairs_across_pieces_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    markov = importlib.import_module("attention_phases.focus_dilution.markov_transformer")
    ids = np.random.default_rng(0).integers(5, size=103)
    whole = MarkovChain.from_tokens(ids)
    for size in (1, 2, 7, 103, 104):
        monkeypatch.setattr(markov, "_COUNTED_AT_ONCE", size)
        assert MarkovChain.from_tokens(ids) == whole


def test_a_large_vocabulary_with_few_pairs_takes_little_memory() -> None:
    """A million tokens that may occur, of which a hundred do."""
    ids = np.random.default_rng(0).integers(100, size=5000) * 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chain = MarkovChain.from_tokens(ids, 1_000_000)
    assert chain.n_tokens == 100
    assert chain.token_ids.tolist() == list(range(0, 1_000_000, 10_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 2**10


def zipf_text(d: int, n: int) -> NDArray[np.int64]:
    """A text that has all d tokens, with frequencies near 1/rank, in an order that matters."""
    rng = np.random.default_rng(0)
    ids = np.append(np.arange(d), np.exp(np.log(d) * rng.random(n - d)).astype(np.int64) - 1)
    return rng.permutation(ids)


def test_the_sparse_chain_of_a_text_is_the_dense_one_of_its_matrix() -> None:
    """What is computed from the transitions that occur is what all of them give, to rounding."""
    sparse = MarkovChain.from_tokens(zipf_text(300, 5000))
    assert isinstance(sparse.matrix, csr_array)
    assert sparse.matrix.nnz < 5000
    dense = MarkovChain(sparse.transition, sparse.stationary)
    assert isinstance(dense.matrix, np.ndarray)
    np.testing.assert_allclose(dense.transition, sparse.transition, rtol=1e-15)
    np.testing.assert_allclose(dense.stationary, sparse.stationary, rtol=1e-12)
    for quantity in (condensation_rate, focus_rate, mass_redistribution):
        np.testing.assert_allclose(quantity(sparse), quantity(dense), rtol=1e-10, atol=1e-14)
    for name in ("unigram_entropy", "conditional_entropy"):
        assert np.isclose(getattr(sparse, name), getattr(dense, name), rtol=1e-13)
    np.testing.assert_array_equal(sparse.sample(50, 40, 1), dense.sample(50, 40, 1))
    start = Parameters.gaussian(300, 4, 1e-2, 0)
    assert np.isclose(excess_loss(start, sparse), excess_loss(start, dense), rtol=1e-12)


def test_a_sparse_chain_draws_only_pairs_of_its_text() -> None:
    ids = zipf_text(200, 1000)
    pairs = set(zip(ids.tolist(), np.roll(ids, -1).tolist(), strict=True))
    drawn = MarkovChain.from_tokens(ids).sample(20, 500, 0)
    assert set(zip(drawn[:, :-1].ravel().tolist(), drawn[:, 1:].ravel().tolist(), strict=True)) <= pairs


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_a_sparse_chain_are_the_same_and_cannot_be_written_to_either(again: Callable[[Any], Any]) -> None:
    chain = MarkovChain.from_tokens([0, 1, 0, 2, 0, 1])
    assert chain == MarkovChain([[0.0, 2 / 3, 1 / 3], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert chain != MarkovChain.from_tokens([0, 1, 0, 2])
    for before in (0, chain.transition.sum()):  # without and with what a chain computes once
        other = again(chain)
        assert other == chain
        assert hash(other) == hash(chain)
        assert before or other.transition.sum() == 3
        for values in (other.matrix.data, other.matrix.indices, other.matrix.indptr, other.transition):
            assert not values.flags.writeable


def test_a_whole_vocabulary_takes_memory_for_the_pairs_that_occur() -> None:
    """30000 tokens, whose dense matrix had 7 GB: entropies, rates, samples and the linear flow in 100 MB."""
    d, ids = 30_000, zipf_text(30_000, 400_000)
    tracemalloc.start()
    try:
        chain = MarkovChain.from_tokens(ids)
        assert chain.n_tokens == d
        np.testing.assert_allclose(chain.stationary, np.bincount(ids) / len(ids))
        np.testing.assert_allclose(chain.stationary @ chain.matrix, chain.stationary)
        assert chain.sample(64, 65, 0).shape == (64, 65)
        assert 0 < chain.conditional_entropy < chain.unigram_entropy < np.log(d)
        pi, log_pi = chain.stationary, np.log(chain.stationary)
        covariance = np.cov(pi[ids], log_pi[np.roll(ids, -1)], bias=True)[0, 1]  # over the text's own pairs
        spread = np.linalg.norm(log_pi - log_pi.mean()) / np.linalg.norm(pi) ** 5
        assert np.isclose(focus_rate(chain), spread * covariance * pi[ids].var(), rtol=1e-6)
        start = Parameters.gaussian(d, 4, 1e-6, 0)
        grown = linear_condensation(start, chain, [0.0, 1.0]).alpha
        assert np.isclose(np.linalg.norm(pi) * np.linalg.norm(pi - 1 / d), condensation_rate(chain))
        assert grown.shape == (2, 4)
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "needs_pairs",
    [
        lambda chain, start: chain.transition,
        lambda chain, start: chain.log_transition,
        lambda chain, start: attention(start, chain),
        lambda chain, start: population_loss(start, chain),
        lambda chain, start: gradient_flow(chain, 2),
        lambda chain, start: rank_one_flow(chain),
        lambda chain, start: symmetry_breaking_rate(chain),
        lambda chain, start: predict_timeline(chain, start),
        lambda chain, start: contraction_rates(chain),
        lambda chain, start: train_transformer(chain, 2),
    ],
)
def test_what_needs_all_pairs_of_a_whole_vocabulary_is_refused(needs_pairs: Callable[..., object]) -> None:
    """Before anything so large is made."""
    chain = MarkovChain.from_tokens(np.arange(30_000))
    start = Parameters.gaussian(30_000, 2, 1e-3, 0)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"chain must have at most 10000 tokens where arrays .* got 30000"):
            needs_pairs(chain, start)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), r"token_ids must be whole numbers of shape \(n,\) or"),
        (([0.5, 1],), "token_ids must be whole numbers"),
        (([[[0, 1]]],), "token_ids must be whole numbers"),
        (([0, 3], 3), r"token_ids must be in \[0, 2\]; got 0 to 3"),
        (([-1, 1],), r"token_ids must be in \[0, 1\]; got -1 to 1"),
        (([2, 2, 2], 5), "token_ids must give a chain of at least 2 tokens; its largest closed class has 1"),
        ((np.arange(10_001), None, 0.1), "n_tokens must be at most 10000 with smoothing, .*; got 10001"),
        (([0, 1], 2, -1), r"smoothing must be a number in \[0"),
        (([0, 1], 1.5), "n_tokens must be a whole number"),
    ],
)
def test_what_gives_no_chain_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MarkovChain.from_tokens(*arguments)


def test_windows_are_of_the_text_and_begin_anywhere(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, " ".join(f"w{k}" for k in range(40))), n_tokens=None)
    windows = corpus.sample(2000, 5, 0)
    assert (np.diff(windows, axis=1) == 1).all()
    assert set(windows[:, 0]) == set(range(36))
    np.testing.assert_array_equal(windows, corpus.sample(2000, 5, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="length must be a whole number of at least 1 and at most 40; got 41"):
        corpus.sample(1, 41, 0)
    assert isinstance(corpus, Corpus)
    assert corpora.UNKNOWN not in corpus.vocabulary
