"""Read every counter through the package and from the source, and print both: `python -m tests.chaos.reader`."""

from __future__ import annotations

import json

import django


def main() -> None:
    django.setup()
    from tests.app.models import Counter
    from visibility.read import read_many

    truth = dict(Counter.objects.values_list("name", "value"))
    found = {name: snapshot.data["value"] for name, snapshot in read_many("counter", list(truth)).items()}
    print(json.dumps({"truth": truth, "read": found}))  # noqa: T201


if __name__ == "__main__":
    main()
