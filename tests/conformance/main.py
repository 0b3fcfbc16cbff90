"""Runs the conformance tests here and below, several beside each other, and says which failed: main.py KUBECONFIG [PATTERN]"""

import importlib
import pathlib
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import world

BESIDE = 8


def main():
    kubeconfig, pattern = sys.argv[1], re.compile(sys.argv[2] if len(sys.argv) > 2 else "")
    files = sorted(pathlib.Path(__file__).parent.rglob("*.py"))
    # Each finds the others by their names alone.
    sys.path.extend(str(folder) for folder in {file.parent for file in files})
    for file in files:
        if file.stem != "main":
            importlib.import_module(file.stem)
    api = world.Api.of_kubeconfig(kubeconfig)
    tests = [test for test in world.TESTS if pattern.search(test[0])]
    failed = 0
    with ThreadPoolExecutor(BESIDE) as pool:
        beside = [(name, pool.submit(world.run_one, api, test)) for name, test, serial in tests if not serial]
        results = [(name, running.result()) for name, running in beside]
    results += [(name, world.run_one(api, test)) for name, test, serial in tests if serial]
    for name, trace in results:
        if trace:
            failed += 1
            print(f"--- FAILED: {name}\n{trace}")
    print(f"{len(results) - failed} passed, {failed} failed")
    sys.exit(failed > 0 or not results)


if __name__ == "__main__":
    main()
