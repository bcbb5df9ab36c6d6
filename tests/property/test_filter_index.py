"""The filter index agrees with a list that is searched from end to end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isthmus.mqtt.filters.index import FilterIndex, _Leaf, _Node
from support.topic_oracle import (
    TOPICS,
    by_regular_expression,
    close_filters,
    filters_for,
    listed_filters,
    topic_names,
)

some_filters = st.one_of(listed_filters, close_filters)
some_topics = st.one_of(st.sampled_from(TOPICS), topic_names)
some_values = st.integers(0, 3)


def leaves_below(index: FilterIndex[int]) -> int:
    """Checks the invariant of the shape: only the root may have fewer than two filters below."""

    def walk(node: _Node[int]) -> int:
        assert node.literals != {}
        count = 0
        for part in node.parts():
            if isinstance(part, _Leaf):
                count += 1
            else:
                below = walk(part)
                assert below >= 2
                count += below
        return count

    return walk(index._root)


@settings(deadline=None)
@given(st.data(), topic_names)
def test_filters_like_the_topic(data: st.DataObject, topic: str) -> None:
    topic_filters = data.draw(st.lists(filters_for(topic), max_size=10, unique=True))
    index: FilterIndex[int] = FilterIndex()
    for value, topic_filter in enumerate(topic_filters):
        index.add(topic_filter, value)
    expected = [f for f in topic_filters if by_regular_expression(f, topic)]
    assert sorted(index.match(topic)) == [
        value for value, f in enumerate(topic_filters) if f in expected
    ]


class FilterIndexMachine(RuleBasedStateMachine):
    """Random additions and removals beside a dictionary of what should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.index: FilterIndex[int] = FilterIndex()
        self.model: dict[str, list[int]] = {}

    @rule(topic_filter=some_filters, value=some_values)
    def add(self, topic_filter: str, value: int) -> None:
        values = self.model.setdefault(topic_filter, [])
        assert self.index.add(topic_filter, value) == (value not in values)
        if value not in values:
            values.append(value)

    @rule(topic_filter=some_filters, value=some_values)
    def discard(self, topic_filter: str, value: int) -> None:
        values = self.model.get(topic_filter, [])
        assert self.index.discard(topic_filter, value) == (value in values)
        if value in values:
            values.remove(value)
            if not values:
                del self.model[topic_filter]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def discard_what_is_there(self, data: st.DataObject) -> None:
        topic_filter = data.draw(st.sampled_from(sorted(self.model)))
        self.discard(topic_filter, data.draw(st.sampled_from(self.model[topic_filter])))

    @rule(topic=some_topics)
    def match(self, topic: str) -> None:
        filters = [f for f in self.model if by_regular_expression(f, topic)]
        values = {value for f in filters for value in self.model[f]}
        assert sorted(self.index.match(topic)) == sorted(values)

    @invariant()
    def holds_what_was_added(self) -> None:
        assert len(self.index) == sum(map(len, self.model.values()))
        for topic_filter, values in self.model.items():
            assert self.index.values(topic_filter) == values

    @invariant()
    def has_no_node_too_many(self) -> None:
        leaves = leaves_below(self.index)
        assert leaves + len(self.index._exact) == len(self.model)

    def teardown(self) -> None:
        for topic_filter, values in self.model.items():
            for value in values:
                assert self.index.discard(topic_filter, value)
        assert len(self.index) == 0
        assert list(self.index._root.parts()) == []
        assert not self.index._exact


TestFilterIndex = FilterIndexMachine.TestCase
TestFilterIndex.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
