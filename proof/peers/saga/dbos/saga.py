"""A saga of three steps that do nothing, as a DBOS workflow, and its callers: threads."""

import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS

# A counter that threads may share: `next` on it is one instruction of the interpreter.
counter = itertools.count()


@DBOS.step()
def step(number: int) -> int:
    next(counter)
    return number


@DBOS.workflow()
def saga() -> int:
    return sum(step(number) for number in (1, 2, 3))


def call(until: float) -> int:
    ended = 0
    while time.monotonic() < until:
        if (total := saga()) != 6:
            raise RuntimeError(f"a saga returned {total}")
        ended += 1
    return ended


DBOS(config={"name": "peer", "system_database_url": sys.argv[1], "log_level": "WARNING"})
DBOS.launch()
print("ready", flush=True)

# `run SECONDS CALLERS` is answered with `ended SAGAS`, anything else with `steps N`.
asked = 0
for line in sys.stdin:
    word, *numbers = line.split()
    if word == "run":
        seconds, callers = (int(number) for number in numbers)
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(callers) as pool:
            ended = sum(pool.map(call, [until] * callers))
        print(f"ended {ended}", flush=True)
    else:
        # Reading the counter advances it by one.
        print(f"steps {next(counter) - asked}", flush=True)
        asked += 1
DBOS.destroy()
