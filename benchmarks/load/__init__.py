"""The load tool's own speed: what it receives and records when nothing else is slow.

source   a process that floods subscribers with valid messages, as fast as they take them
tool     the load processes under test, driven as the coordinator drives them
rounds   one flood: rate, CPU per message, and whether every row is in the files
"""
