"""Which columns of a DataFrame the arguments of a logged network are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkdl_runner.tracking.models.example import Example

Columns = str | Sequence[str] | Mapping[str, str | Sequence[str]] | None


def names_of(columns: Columns, example: Example) -> dict[str, list[str]] | None:
    """The columns of each argument.

    Raises:
        ValueError: They are not as many as the numbers of a row, or an argument has none.
    """
    if columns is None:
        return None
    by_argument = columns if isinstance(columns, Mapping) else {"": columns}
    if by_argument.keys() != example.tensors.keys():
        takes = ", ".join(filter(None, example.tensors)) or "one tensor"
        raise ValueError(
            f"log_model: columns is of {', '.join(by_argument) or 'no argument'}, and "
            f"input_example has {takes}. Name the columns of each argument: columns={{'tokens': "
            "'words', …}."
        )
    named = {
        argument: [given] if isinstance(given, str) else list(given)
        for argument, given in by_argument.items()
    }
    for argument, names in named.items():
        rows = example.tensors[argument]
        numbers = rows[0].numel()
        if not names or (len(names) > 1 and (rows.ndim != 2 or numbers != len(names))):
            of = f" for {argument}" if argument else ""
            raise ValueError(
                f"log_model: columns has {len(names)} names{of}, and a row of input_example has "
                f"{numbers} numbers in the shape {list(rows.shape[1:])}. Name one column of "
                "arrays, or one column for each number of a flat row."
            )
    # In the order of the arguments.
    return {argument: named[argument] for argument in example.tensors}
