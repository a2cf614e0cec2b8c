"""A follow graph of a million, made by the database itself: authors with 1k, 10k, 100k and 1M followers."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import connection

from tests.app.models import Follow
from visibility.read import read_many
from visibility.soft import leases

FIRST = 1_000
WATCHING = 100


def grow(audiences: list[int]) -> list[User]:
    """An author for each size of audience. Follower n follows every author whose audience is larger than n."""
    authors = [User.objects.create(pk=n + 1, username=f"author{n}") for n in range(len(audiences))]
    follow, column = Follow._meta.db_table, connection.ops.quote_name
    names = f"({column('follower_id')}, {column('author_id')})"
    with connection.cursor() as cursor:
        # The followers themselves are not needed: the gate never reads the table of users.
        if connection.vendor == "postgresql":
            cursor.execute("SET session_replication_role = replica")
            for author, size in zip(authors, audiences, strict=True):
                cursor.execute(
                    f"INSERT INTO {follow} {names} SELECT n, %s FROM generate_series(%s, %s) n",
                    [author.pk, FIRST, FIRST + size - 1],
                )
            cursor.execute("SET session_replication_role = origin")
            cursor.execute(f"VACUUM ANALYZE {follow}")
        else:
            cursor.execute("PRAGMA foreign_keys = OFF")
            for author, size in zip(authors, audiences, strict=True):
                cursor.execute(
                    f"INSERT INTO {follow} {names} WITH RECURSIVE s(n) AS (SELECT %s UNION ALL SELECT n + 1 FROM s WHERE n < %s) "
                    "SELECT n, %s FROM s",
                    [FIRST, FIRST + size - 1, author.pk],
                )
            cursor.execute("ANALYZE")
    return authors


def look(smallest: int, seconds: float = 3_600) -> list[str]:
    """A hundred followers, spread over the smallest audience, have their feeds open: leases, and snapshots that are trusted."""
    step = max(1, smallest // WATCHING)
    keys = [str(FIRST + n * step) for n in range(min(WATCHING, smallest))]
    leases.renew([leases.Watch(f"feed:{key}", f"{key}/tab", "watch", seconds) for key in keys])
    read_many("feed", keys)
    return keys
