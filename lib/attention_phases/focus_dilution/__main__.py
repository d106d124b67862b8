"""Command line: runs on real text that take longer than a chapter may, and what the chains of texts look like."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from attention_phases import stored
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.corpora import LEVELS, NAMES, Corpus, load_corpus
from attention_phases.focus_dilution.real_text import RUNS, describe, named, train
from attention_phases.focus_dilution.stability import stability
from attention_phases.sweeps import alone

_RANKS = (0, 1, 2, 3, 4, 20, 60)  # of the tokens that are watched, where none are named


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attention_phases.focus_dilution", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--out", required=True, type=Path, help="file to write, NAME.csv")
    every.add_argument("--folder", help="folder that has the named corpora, in place of the network")
    several = argparse.ArgumentParser(add_help=False)
    several.add_argument("--corpora", required=True, nargs="+", help="as in train --corpus")
    trains = argparse.ArgumentParser(add_help=False)
    trains.add_argument("--tokens", type=int, default=300, help="size of the vocabulary (default: 300)")
    trains.add_argument("--seeds", type=int, default=3, help="number of starts (default: 3)")
    trains.add_argument("--width", type=int, default=32, help="of the embedding (default: 32)")
    trains.add_argument("--init-scale", type=float, default=1e-3, help="of the initial weights (default: 0.001)")
    trains.add_argument("--learning-rate", type=float, default=0.02, help="of training (default: 0.02)")
    trains.add_argument("--batch", type=int, default=64, help="contexts of a minibatch (default: 64)")
    trains.add_argument("--context", type=int, default=64, help="tokens of a context (default: 64)")
    command = commands.add_parser(
        "train",
        parents=[every, trains],
        help="train on a text, on its Markov chain, and follow the flow of the chain",
        description="Train on a text, on its Markov chain, and follow the gradient flow of the chain, from the same "
        "start. Writes OUT, a table of frames, and a table of what happens when, whose name ends in -events. The same "
        "command goes on where it was interrupted: until it is done, a hidden folder beside OUT keeps the runs.",
    )
    command.add_argument("--corpus", required=True, help=f"{', '.join(NAMES)}, or the path of a UTF-8 text file")
    command.add_argument("--level", choices=LEVELS, default="word", help="tokens (default: word)")
    command.add_argument(
        "--queries", nargs="+", help="tokens to watch; newline and space are names of those (default: some)"
    )
    command.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="which runs (default: all three)")
    command.add_argument("--time", type=float, default=2000.0, help="of the flow, to stop at (default: 2000)")
    command.add_argument("--frames", type=int, default=96, help="of each run in the table (default: 96)")
    command.add_argument("--device", default="cpu", help="where to train: cpu, cuda, ... (default: cpu)")
    command = commands.add_parser(
        "stability",
        parents=[every, several, trains],
        help="what takes training away from the flow: contexts, minibatches or steps",
        description="Follows the flow of the chains of texts to a time, and goes on from there with longer contexts, "
        "larger minibatches, shorter steps and the exact gradient. Writes OUT, a table of how far each comes and of "
        "the largest curvature of the loss there.",
    )
    command.add_argument("--time", type=float, default=700.0, help="of the flow, to go on from (default: 700)")
    command.add_argument("--duration", type=float, default=20.0, help="of what goes on from there (default: 20)")
    command.add_argument("--frames", type=int, default=60, help="of the flow (default: 60)")
    command = commands.add_parser(
        "describe",
        parents=[every, several],
        help="frequencies, pairs and rates of texts",
        description="Writes OUT, a table of the tokens of the texts at the first size of the vocabulary, and a table "
        "of the texts' chains at all sizes, whose name ends in -rates.",
    )
    command.add_argument("--tokens", type=int, nargs="+", default=[300], help="sizes of the vocabulary (default: 300)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given)
    out: Path = options.out
    if out.suffix != ".csv" or not out.parent.is_dir() or out.is_dir():
        parser.error(f"--out must be a file NAME.csv in a folder that is there; got {out}")
    if options.command != "describe" and (options.seeds < 1 or options.frames < 2):
        parser.error("--seeds must be at least 1 and --frames at least 2")
    head = stored.origin(f"python -m attention_phases.focus_dilution {shlex.join(given)}", "torch")
    try:
        with alone(out):
            if options.command == "train":
                _train(options, head)
            elif options.command == "stability":
                _stability(options, head)
            else:
                _describe(options, head)
    except (ValueError, OSError, ConvergenceError, MemoryError) as error:
        what = str(error) or "no memory is left"
        if what.startswith("checkpoint must"):
            what += f"; to begin anew, remove the folder {_checkpoints(out)}"
        parser.exit(1, f"{parser.prog}: {what}\n")
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from here" if options.command == "train" else ""
        parser.exit(130, f"{parser.prog}: interrupted{goes_on}\n")
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What `train` and `stability` take alike."""
    return {
        "seeds": range(options.seeds),
        "width": options.width,
        "init_scale": options.init_scale,
        "learning_rate": options.learning_rate,
        "batch": options.batch,
        "context": options.context,
        "n_frames": options.frames,
        "report": lambda line: print(line, file=sys.stderr, flush=True),
    }


def _train(options: argparse.Namespace, head: list[str]) -> None:
    corpus = load_corpus(options.corpus, level=options.level, n_tokens=options.tokens, folder=options.folder)
    ranks = [rank for rank in _RANKS if rank < corpus.n_tokens]
    checkpoints = _checkpoints(options.out)
    frames, events = train(
        corpus,
        tokens=named(corpus, options.queries) if options.queries else [corpus.vocabulary[rank] for rank in ranks],
        runs=options.runs,
        t_max=options.time,
        device=options.device,
        folder=checkpoints,
        **_settings(options),
    )
    head += _about(corpus)
    _write(frames, options.out, head)
    _write(events, options.out.with_stem(f"{options.out.stem}-events"), head)
    shutil.rmtree(checkpoints, ignore_errors=True)


def _checkpoints(out: Path) -> Path:
    """The folder that keeps the runs of an unfinished command."""
    return out.with_name(f".{out.stem}")


def _stability(options: argparse.Namespace, head: list[str]) -> None:
    tables = []
    for name in dict.fromkeys(options.corpora):
        corpus = load_corpus(name, n_tokens=options.tokens, folder=options.folder)
        tables.append(stability(corpus, time=options.time, duration=options.duration, **_settings(options)))
        head += _about(corpus)
    _write(pd.concat(tables, ignore_index=True), options.out, head)


def _describe(options: argparse.Namespace, head: list[str]) -> None:
    corpora = [
        load_corpus(name, level=level, n_tokens=n_tokens, folder=options.folder)
        for name in dict.fromkeys(options.corpora)
        for level in LEVELS
        for n_tokens in sorted(options.tokens)
    ]
    tokens, chains = describe(corpora)
    for corpus in {corpus.name: corpus for corpus in corpora}.values():
        head += _about(corpus)
    words = tokens[tokens["level"] == LEVELS[0]]
    most = words.groupby("corpus")["n_tokens"].transform("max")  # a text may have fewer words than were allowed
    first = words["n_tokens"] == most.clip(upper=options.tokens[0])
    _write(words[first].drop_duplicates(["corpus", "rank"]), options.out, head)
    chains = chains.drop_duplicates(["corpus", "level", "n_tokens"])  # the whole vocabulary, several times
    _write(chains, options.out.with_stem(f"{options.out.stem}-rates"), head)


def _about(corpus: Corpus) -> list[str]:
    return [
        f"text: {corpus.source}",
        f"licence of the text: {corpus.licence}",
        f"sha256 of the text: {corpus.sha256}; {len(corpus.tokens)} tokens, {corpus.n_tokens} different ones",
    ]


def _write(table: pd.DataFrame, path: Path, head: Sequence[str]) -> None:
    part = path.with_name(f".{path.name}")
    content = table.to_csv(index=False, float_format="%.5g", lineterminator="\n")
    part.write_text("".join(f"# {line}\n" for line in head) + content, encoding="utf-8", newline="\n")
    part.replace(path)  # at once: a reader finds the old table or the new one
    print(path)


if __name__ == "__main__":
    sys.exit(main())
