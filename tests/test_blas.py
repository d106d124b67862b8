"""BLAS has one thread inside a limited function, and what it had before afterwards, with Python threads, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import threading
from attention_phases._blas import one_thread
from threadpoolctl import ThreadpoolController


def sizes():
    return {pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info()}


if sizes() != {2}:
    raise SystemExit(3)

assert one_thread(one_thread(sizes))() == {1}
assert sizes() == {2}
try:
    one_thread(lambda: 1 / 0)()
except ZeroDivisionError:
    assert sizes() == {2}

first_inside, second_begun, first_ended = (threading.Event() for _ in range(3))
found = []


@one_thread
def first():
    first_inside.set()
    second_begun.wait()


@one_thread
def second():
    first_ended.wait()
    found.append(sizes())


def call_first():
    first()
    first_ended.set()


def call_second():
    threading.Timer(0.2, second_begun.set).start()  # when it is inside, or waits
    second()


threads = [threading.Thread(target=call_first), threading.Thread(target=call_second)]
threads[0].start()
first_inside.wait()
threads[1].start()
for thread in threads:
    thread.join()
assert found == [{1}], found
assert sizes() == {2}
"""


def test_a_limited_function_has_one_blas_thread_and_leaves_what_was() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    result = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=False, timeout=60)
    if result.returncode == 3:
        pytest.skip("BLAS does not take two threads here")
    assert result.returncode == 0
