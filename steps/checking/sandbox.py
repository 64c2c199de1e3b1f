"""The script of an own interpreter that limits its process, and then runs a program and its tests.

:mod:`steps.checking.code` runs the text of this file. A program that exits early does not pass,
because the script writes the secret word of success only after the tests. No program can feign a
failure of the sandbox, because the pipe that tells its start is closed then.
"""

# pyright: basic

import asyncio
import builtins
import contextlib
import ctypes
import inspect
import json
import os
import resource
import sys
import threading
import traceback
import types
import unittest


def main() -> None:
    """Run what stdin tells, and write the secret word, and behind it why there is no verdict."""
    start = int(sys.argv.pop())
    told = json.load(sys.stdin)
    limit(start, told)
    passed, tests, mark = told["passed"], told["tests"], told["mark"]
    module = types.ModuleType("solution")
    sys.modules["__main__"] = sys.modules["solution"] = module
    space = module.__dict__
    program, ran, before = told.pop("program"), [], machinery()
    os.write(start, b"started")
    os.close(start)
    with contextlib.suppress(SystemExit):  # as a script may end; the tests judge what it defined
        exec(compile(program, "program", "exec", dont_inherit=True), space)
    own = dict(space)
    space["__name__"] = "__main__"

    def note(what: str) -> None:
        if what != "handled":
            ran.append(what)
        elif isinstance(sys.exc_info()[1], AssertionError):
            ran.append("fails")

    setattr(builtins, mark, note)
    unittest.main = lambda *args, **options: None
    threading.excepthook = lambda failed: ran.append("caught" if in_tests(failed) else "")
    reason, expected = "", False
    if told["form"] == "doctest":
        examples(tests, space, ran)
    elif told["form"] == "pytest":
        expected = by_pytest(tests, own)
    else:
        statements(tests, space)
        for name in told["called"]:
            if name != "check":
                call(space[name])
            elif candidate := chosen(told["names"], own):
                if (held := call(space[name], candidate[0])) is False:
                    raise AssertionError("check returned False")
                ran += ["begins"] * (held is True)
            else:
                reason = "the row's tests do not say which function check gets; name entry_point"
        expected = by_unittest(space, own)
    if "fails" in ran and not expected:
        if "holds" not in ran:
            raise AssertionError("an assertion failed, and the tests caught it")
        reason = "the tests caught an assertion that failed, and others held"
    elif "caught" in ran and not expected:
        reason = "the row's tests caught an error, so an assertion may not have run"
    if any(now is not before[name] for name, now in machinery().items() if name in before):
        raise AssertionError("the program changed what tests assert with")
    reason = reason or ("" if any(ran) else "no assertion of the row's tests ran")
    sys.stdout.flush()
    os.write(1, (passed + reason).encode())
    os._exit(0)


def limit(start: int, told: dict) -> None:
    dies_with_parent = 1
    ctypes.CDLL(None).prctl(dies_with_parent, 9)
    if not told["network"]:
        new_user, new_network = 0x10000000, 0x40000000
        if ctypes.CDLL(None).unshare(new_user | new_network):
            os.write(start, b"no network")
            os._exit(1)
    seconds = int(told["seconds"]) + 1
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, told["memory"]),
        (resource.RLIMIT_FSIZE, 2**24),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def machinery() -> dict:
    """What tests assert with; a program that changes it passes nothing."""
    found = {f"builtins.{name}": held for name, held in vars(builtins).items()}
    for kind in (unittest.TestCase, unittest.TestSuite, unittest.TestResult):
        found |= {f"{kind.__name__}.{name}": held for name, held in vars(kind).items()}
    volatile = ("builtins._", "TestCase._classSetupFailed", "TestCase._class_cleanups")
    return {name: held for name, held in found.items() if name not in volatile}


def in_tests(failed) -> bool:
    """Whether a thread of the tests ended with an error."""
    frames = traceback.extract_tb(failed.exc_traceback)
    return any(os.path.basename(frame.filename) in ("tests", "test_row.py") for frame in frames)


def statements(tests: str, space: dict) -> None:
    try:
        exec(compile(tests, "tests", "exec", dont_inherit=True), space)
    except SystemExit as ended:  # `sys.exit(unittest.main())` of the tests is their end
        trace = ended.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        if trace is None or trace.tb_frame.f_code.co_filename != "tests" or ended.code:
            raise


def call(function, *given):
    result = function(*given)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def chosen(names: list, own: dict) -> list:
    """The function under test, if it is known."""
    for name in names:
        if name in own:
            return [own[name]]
        if "Solution" in own and hasattr(own["Solution"], name):
            return [getattr(own["Solution"](), name)]
        if not name.isidentifier():  # `Solution().add`
            return [eval(name, own)]
    functions = [f for f in own.values() if isinstance(f, types.FunctionType)]
    functions = [f for f in functions if f.__code__.co_filename == "program"]
    if names or not functions:
        raise NameError(f"the program defines no function {names[0] if names else ''}")
    return functions if len(functions) == 1 else []


def by_unittest(space: dict, own: dict) -> bool:
    """Whether a test failed as it should."""

    class Result(unittest.TestResult):
        def addSkip(self, test, reason):
            method = getattr(test, test._testMethodName, None)
            if not any(getattr(each, "__unittest_skip__", False) for each in (type(test), method)):
                self.failures.append((test, f"the program skipped it: {reason}"))

    result = Result()
    for name, case in space.items():
        is_case = isinstance(case, type) and issubclass(case, unittest.TestCase)
        if is_case and case.__module__ == "__main__" and own.get(name) is not case:
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    told = [why for _, why in (*result.failures, *result.errors)]
    told += ["unexpected success"] * len(result.unexpectedSuccesses)
    if told:
        why = told[0].strip().splitlines()[-1]
        raise AssertionError(f"{len(told)} of {result.testsRun} tests failed, first: {why}")
    return bool(result.expectedFailures)


def examples(tests: str, space: dict, ran: list) -> None:
    import doctest

    test = doctest.DocTestParser().get_doctest(tests, space, "tests", None, 0)
    ran += ["begins" for example in test.examples if example.want]
    failed = doctest.DocTestRunner(verbose=False).run(test).failed
    if failed:
        raise AssertionError(f"{failed} of {len(test.examples)} examples failed")


def by_pytest(tests: str, own: dict) -> bool:
    """Whether a test failed as it should."""
    import pytest

    class Plugin:
        failed = expected = 0

        def pytest_pycollect_makeitem(self, collector, name, obj):
            return [] if own.get(name, collector) is obj else None  # a test of the program's

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem):
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                names = pyfuncitem._fixtureinfo.argnames
                asyncio.run(pyfuncitem.obj(**{n: pyfuncitem.funcargs[n] for n in names}))
                return True

        def pytest_runtest_logreport(self, report):
            was_skipped = report.when == "call" and report.skipped
            self.failed += was_skipped and not hasattr(report, "wasxfail")
            self.expected += report.skipped and hasattr(report, "wasxfail")

    builtins.__dict__["__program__"] = own
    with open("test_row.py", "w", encoding="utf-8") as file:
        first = [line for line in tests.splitlines() if line.startswith("from __future__")]
        names = "globals().update({k: v for k, v in __program__.items() if k[:2] != '__'})"
        file.write("\n".join([*first, names, ""]))
        file.write("\n".join(line for line in tests.splitlines() if line not in first))
    plugin = Plugin()
    quiet = ["-q", "-x", "-p", "no:cacheprovider", "--assert=plain", "test_row.py"]
    status = pytest.main(quiet, plugins=[plugin])
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        return False
    if status or plugin.failed:
        raise AssertionError(f"pytest ended with {status!r}, {plugin.failed} tests skipped")
    return bool(plugin.expected)


if __name__ == "__main__":
    main()
