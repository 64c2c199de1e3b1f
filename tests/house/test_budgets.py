"""Each package stays within its budget of lines."""

import budgets


def test_no_package_has_outgrown_its_budget() -> None:
    lines, held = budgets.counted(), budgets.budgets()
    over = {name: n - held.get(name, 0) for name, n in lines.items() if n > held.get(name, 0)}
    assert over == {}, "more lines than tests/house/budgets.toml allows: delete, or give a reason"


def test_the_table_names_no_package_that_is_gone() -> None:
    assert budgets.budgets().keys() <= budgets.counted().keys()


def test_writing_the_table_keeps_its_comments_and_follows_the_packages() -> None:
    table = '# reason\n"a" = 5  # why\n"gone" = 1\n'
    assert budgets.rewritten('"a" = 5\n', {"a": 6}) == '"a" = 5\n'  # a raise is by hand
    assert budgets.rewritten(table, {"a": 4, "new": 2}) == '# reason\n"a" = 4  # why\n"new" = 2\n'
