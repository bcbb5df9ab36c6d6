"""What is kept over a restart: whatever happens to a file, all but the damaged records are read."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.exchange import kept_records
from isthmus.exchange.client.client import FOR_EVER, Client, read_state, write_state

bodies = st.lists(st.binary(max_size=40) | st.just(b"\xf5\xa7" * 8), max_size=6)


@settings(deadline=None)
@given(bodies)
def test_what_was_written_is_read(kept: list[bytes]) -> None:
    read = kept_records.read(kept_records.write("wills", 3, kept))
    assert read.is_("wills", 3)
    assert (read.records, read.damage) == (kept, [])


@settings(deadline=None, max_examples=50)
@given(bodies)
@example([b"one", b"two", b"three"])
def test_a_flipped_bit_anywhere_costs_one_record(kept: list[bytes]) -> None:
    data = kept_records.write("wills", 3, kept)
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            read = kept_records.read(bytes(flipped))
            assert read.is_("wills", 3)
            assert read.damage
            assert any(start <= place < end for start, end in read.damage)
            missing = [
                at for at in range(len(kept)) if read.records == [*kept[:at], *kept[at + 1 :]]
            ]
            assert missing or read.records == kept


@settings(deadline=None, max_examples=50)
@given(bodies, st.data())
def test_a_torn_file_has_what_was_written_before(kept: list[bytes], data: st.DataObject) -> None:
    whole = kept_records.write("wills", 3, kept)
    for cut in range(len(whole)):
        read = kept_records.read(whole[:cut])
        assert read.records == kept[: len(read.records)]
    # What is appended behind the torn end is read again.
    found = kept_records.read_header(whole)
    assert found is not None
    cut = data.draw(st.integers(found.size, len(whole)))
    torn = whole[:cut] + kept_records.record(b"after", found.salt)
    records = kept_records.read(torn).records
    # Unless its first bytes happen to be what the torn record lacks.
    assert records[-1] == b"after" or records == kept[: len(records)]


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=20))
def test_a_client_cannot_plant_a_record(around: bytes, planted: bytes) -> None:
    """Its bytes stand in a record; damage to that must not bring another one to light."""
    guess = kept_records.record(planted, 0)
    body = around + guess + around
    data = bytearray(kept_records.write("wills", 3, [body, b"next"]))
    found = kept_records.read_header(bytes(data))
    assert found is not None
    data[found.size + 5] ^= 1  # the length
    assert kept_records.read(bytes(data)).records == [b"next"]


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_anything_else_is_taken_for_something_else(noise: bytes) -> None:
    read = kept_records.read(noise)
    assert (read.header, read.records) == (None, [])
    assert read.damage == ([(0, len(noise))] if noise else [])


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5, unique=True))
def test_a_flipped_bit_costs_one_clients_subscriptions(numbers: list[int]) -> None:
    clients = [Client(f"client-{n}", FOR_EVER, {f"t/{n}/#": f"t/{n}/#"}) for n in numbers]
    data = write_state(clients, 0.0)
    names = [client.client_id for client in clients]
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 4
        read = [client.client_id for client in read_state(bytes(flipped))]
        assert len(read) >= len(names) - 1
        assert not set(read) - set(names)
