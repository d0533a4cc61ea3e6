"""Cuts a long JSON array into its elements, compiled: commas between them and line ends in them are replaced.

What is left are objects one a line, which are read in columns. Strings are passed over.
"""

from engine.schedule.compiled import compiled

DEPTH, IN_STRING, ESCAPED, ENDED = 0, 1, 2, 3
STATE = 4  # numbers between calls: the four above, zeros at first

_QUOTE, _BACKSLASH, _COMMA, _SPACE, _LINE, _RETURN = 34, 92, 44, 32, 10, 13
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93


@compiled
def split(data, begin, state):
    """Cut bytes `data` from `begin` on, in place.

    Returns the end of the last whole element, and where the array ended (or the length of `data`).
    """
    depth, in_string, escaped = state[DEPTH], state[IN_STRING], state[ESCAPED]
    whole = 0
    at = begin
    while at < len(data):
        byte = data[at]
        if in_string:
            if escaped:
                escaped = 0
            elif byte == _BACKSLASH:
                escaped = 1
            elif byte == _QUOTE:
                in_string = 0
        elif byte == _QUOTE:
            in_string = 1
        elif byte in (_OPEN, _OPEN_LIST):
            depth += 1
        elif byte in (_CLOSE, _CLOSE_LIST):
            if depth == 0:
                state[ENDED] = 1
                whole = at
                break
            depth -= 1
        elif byte == _COMMA and depth == 0:
            data[at] = _LINE
            whole = at + 1
        elif byte in (_LINE, _RETURN):
            data[at] = _SPACE
        at += 1
    state[DEPTH], state[IN_STRING], state[ESCAPED] = depth, in_string, escaped
    return whole, at
