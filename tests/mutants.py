"""Take a core line out of the code, and see that the suite notices.

    python -m tests.mutants [NAME …]

Each mutant is one change of one line in a copy of the tree; the named tests must pass without it and fail with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    """Each key of `edits` becomes its value in `file`; `tests` are pytest arguments that must notice."""

    file: str
    edits: dict[str, str]
    tests: str


LUA = "visibility/soft/lua"
RULES = "tests/test_rules.py -k rule_"
MUTANTS = {
    "lease first": Mutant(
        "visibility/sockets/watching.py",
        {
            'renewed = await leases.arenew(wanted)\n            reach("watch.leased")\n': (
                "self.early = await look.alook([one.resource for one in wanted])\n"
                '            reach("watch.leased")\n            renewed = await leases.arenew(wanted)\n'
            ),
            "found = await look.alook(name for name, front in names.items() if front)": "found = self.early",
        },
        f"{RULES}1",
    ),
    "look again": Mutant("visibility/gate/decide.py", {"again = self._look(cold)": "again = set()"}, f"{RULES}2"),
    "distrust": Mutant(
        "visibility/gate/decide.py", {"looks.distrust(resources)": "pass"}, "tests/test_gate.py -k a_lane_sheds_is_marked"
    ),
    "epoch": Mutant(f"{LUA}/done.lua", {" and (seen[3] or '0') == epoch\n": "\n"}, f"{RULES}3"),
    "epoch at the store": Mutant(f"{LUA}/store.lua", {"(seen[4] or '0') == ARGV[i + 2] and visible": "visible"}, f"{RULES}3"),
    "trust taken away": Mutant(f"{LUA}/renew.lua", {"redis.call('DEL', fresh[k])": ""}, f"{RULES}3"),
    "trust compare": Mutant(f"{LUA}/trust.lua", {"(seen[1] or '') == gen and ": ""}, f"{RULES}3"),
    "stamp": Mutant(
        "visibility/dirty.py",
        {'return stamp.split(".")[:2] == [str(self.flag), str(self.scopes)]': "return not self.dirty"},
        f"{RULES}4",
    ),
    "generation compare": Mutant(
        f"{LUA}/done.lua", {"local clean = how ~= 'back' and (seen[2] or '0') == gen": "local clean = how ~= 'back'"}, f"{RULES}5"
    ),
    "generation compare at the store": Mutant(
        f"{LUA}/store.lua", {"if gen ~= '' and (seen[3] or '0') == gen then": "if gen ~= '' then"}, f"{RULES}5"
    ),
    "flag compare": Mutant(
        "visibility/dirty.py",
        {"same = [(key, seen[key].flag) for key in part]": 'same = list(table.filter(key__in=part).values_list("key", "mark"))'},
        f"{RULES}6",
    ),
    "authorisation re-check": Mutant(
        "visibility/sockets/proving.py",
        {"if name not in answer.allowed and": "if False and"},
        "tests/test_access.py -k S8_the_hook",
    ),
    "owner": Mutant(f"{LUA}/store.lua", {"local owns = seen[1] == token and claims[n]": "local owns = claims[n]"}, f"{RULES}7"),
    "claim lease": Mutant(f"{LUA}/store.lua", {" and claims[n] and tonumber(claims[n]) > now": ""}, f"{RULES}7"),
    "version check": Mutant(
        f"{LUA}/store.lua", {"if owns and tonumber(seen[2] or '0') >= fence then": "if false then"}, f"{RULES}7"
    ),
    "built since the look": Mutant(
        "visibility/builds/rounds.py",
        {" and found[r].claim_ms is None": ""},
        "tests/test_recompute.py -k had_begun",
    ),
    "mark first": Mutant("visibility/recompute.py", {"dirty.mark(": "(lambda *_: None)("}, f"{RULES}8"),
    "lease check": Mutant(
        f"{LUA}/among.lua", {"if score and tonumber(score) > now then": "if score then"}, "tests/test_testing.py -k leases"
    ),
}


def passes(tree: Path, arguments: str) -> bool:
    """Whether these tests pass in this tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments.split()]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VISIBILITY_TEST_")}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, env=environment, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
    return done.returncode == 0


def main(names: list[str]) -> int:
    """Try the mutants; answers how many lived."""
    lived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".ci", ".venv", "venv*", "__pycache__", "*.sqlite3*"))
        for name in names or list(MUTANTS):
            mutant = MUTANTS[name]
            path = tree / mutant.file
            before = path.read_text()
            after = before
            for old, new in mutant.edits.items():
                if after.count(old) != 1:
                    raise SystemExit(f"{name}: {mutant.file} has {after.count(old)} times {old!r}")
                after = after.replace(old, new)
            if not passes(tree, mutant.tests):
                raise SystemExit(f"{name}: {mutant.tests} fails without any mutation")
            path.write_text(after)
            alive = passes(tree, mutant.tests)
            path.write_text(before)
            lived += alive
            print(f"{'LIVED ' if alive else 'caught'}  {name}: {mutant.file}", flush=True)  # noqa: T201
    return lived


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
