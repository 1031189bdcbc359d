"""Fair shares of partitions: what is divided, and that claims in any order come to rest."""

from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.cursors.fair_share import divide, share

NAMES = st.sets(st.text(max_size=3), min_size=1, max_size=8)


@given(NAMES, st.integers(0, 100))
def test_shares_add_up(members, partitions):
    """All partitions belong to a member, and no member has two more than another."""
    shares = [share(members, name, partitions) for name in members]
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1


@given(NAMES, st.integers(0, 100), st.data())
def test_shares_depend_on_who_is_there_alone(members, partitions, data):
    """In whatever order a process hears of the others, it finds the same share."""
    name = data.draw(st.sampled_from(sorted(members)))
    order = data.draw(st.permutations(sorted(members)))
    assert share(order, name, partitions) == share(members, name, partitions)


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)), st.integers(0, 20))
def test_division_keeps_to_the_share(held, others, most):
    """What is kept and taken is no more than the share, and nothing is given up to take another."""
    free = others - held
    found = divide(held, free, most)
    kept = held - found.surplus
    assert found.taken <= free
    assert found.surplus <= held
    assert len(kept) == min(len(held), most)
    assert len(kept | found.taken) == min(most, len(held | free))
    again = divide(kept | found.taken, free - found.taken, most)
    assert not again.taken
    assert not again.surplus


@given(
    NAMES,
    st.integers(0, 20),
    st.lists(st.integers(0, 8), min_size=20, max_size=20),
    st.randoms(use_true_random=False),
)
def test_claims_come_to_rest(members, partitions, holders, random):
    """From anything that may be held, two rounds of claims in any order end in fair shares."""
    names = sorted(members)
    held = {name: set() for name in names}
    for partition in range(partitions):
        if holders[partition] < len(names):
            held[names[holders[partition]]].add(partition)
    moved = []
    for _ in range(3):
        moved.append(False)
        random.shuffle(names)
        for name in names:
            free = set(range(partitions)).difference(*held.values())
            found = divide(held[name], free, share(members, name, partitions))
            moved[-1] = moved[-1] or bool(found.taken or found.surplus)
            held[name] = (held[name] | found.taken) - found.surplus
    assert not moved[-1]
    assert {name: len(mine) for name, mine in held.items()} == {
        name: share(members, name, partitions) for name in names
    }
